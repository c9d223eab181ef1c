"""Compiled kernels where Numba is installed; look-up does without them."""

from collections.abc import Callable
from functools import cache
from importlib import import_module
from types import ModuleType

from antembed.serving.container import DamagedError


@cache
def kernels(name: str) -> ModuleType | None:
    """antembed.kernels.NAME, if Numba is installed."""
    try:
        return import_module(f"antembed.kernels.{name}")
    except ImportError as error:
        if (error.name or "").split(".")[0] not in ("numba", "llvmlite"):
            raise
        return None


def on_all_cores(work: Callable[[int, int], object], rows: int, width: int) -> None:
    """work(start, stop) over [0, rows), in parts."""
    threads = kernels("threads")
    assert threads is not None
    threads.parallel_for(work, rows, width, threads.usable_cpus())


def decode_on_all_cores(decode: Callable[[int, int], int], rows: int, width: int) -> None:
    """decode(start, stop) → −1, or the block that is damaged."""

    def work(start: int, stop: int) -> None:
        if (block := decode(start, stop)) >= 0:
            raise DamagedError(f"block {block} ends too soon")

    on_all_cores(work, rows, width)
