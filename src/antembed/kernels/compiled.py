"""How kernels are compiled and their machine code is kept.

Numba's own cache compares the time of a function's file, not of what it calls; and when a process is killed between writing the
index and the data, or two processes write, the index may name other code. Here the folder is named by a hash of all kernels, of
the compiler and of the processor, so that what is in it is never old; and one process writes at a time.

ANTEMBED_BOUNDSCHECK=1 compiles kernels that raise IndexError instead of reading or writing elsewhere (slower, a folder apart).
"""

import functools
import hashlib
import logging
import os
import platform
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
import numba
from numba import njit
from numba.core.caching import FunctionCache, IndexDataCacheFile
from numba.core.codegen import get_host_cpu_features

from antembed.files import default_cache, locked

BOUNDS_CHECKED = os.environ.get("ANTEMBED_BOUNDSCHECK", "") not in ("", "0")
HERE = Path(__file__).parent
config: Any = numba.config
log = logging.getLogger("antembed")


def features() -> set[str]:
    """What the processor that kernels are compiled for can do, in LLVM's words."""
    named = get_host_cpu_features() if config.CPU_FEATURES is None else config.CPU_FEATURES
    return {word[1:] for word in named.split(",") if word.startswith("+")}


def _digest() -> str:
    asked = config.CPU_NAME, config.CPU_FEATURES
    host = () if all(asked) else (llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten())
    machine = platform.machine(), host
    made_by = numba.__version__, llvm.llvm_version_info, platform.python_version()
    found = hashlib.sha256(repr((asked, machine, made_by, BOUNDS_CHECKED)).encode())
    for file in sorted(HERE.glob("*.py")):
        found.update(file.name.encode() + file.read_bytes())
    return found.hexdigest()[:32]


DIGEST = _digest()


def _folder() -> Path:
    """NUMBA_CACHE_DIR; or beside the source, where Python's own are, if that can be written; or the user's cache."""
    if config.CACHE_DIR:
        return Path(config.CACHE_DIR)
    beside = HERE / "__pycache__"
    with suppress(OSError):
        beside.mkdir(exist_ok=True)
    return beside if os.access(beside, os.W_OK) else default_cache() / "kernels"


FOLDER = _folder() / DIGEST


class KernelCache(FunctionCache):
    """Machine code of one function, by signature, in our folder."""

    def __init__(self, function: Callable[..., Any]):
        before, config.CACHE_DIR = config.CACHE_DIR, str(FOLDER)
        try:
            super().__init__(function)
        finally:
            config.CACHE_DIR = before  # other packages keep theirs
        self._cache_file = IndexDataCacheFile(self._cache_path, self._impl.filename_base, DIGEST)

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        found = super().load_overload(sig, target_context)
        if found is None:
            _say_once()
        return found

    def save_overload(self, signature: Any, data: Any) -> None:
        with suppress(OSError):  # of a full disk: it was compiled, and will be again
            Path(self._cache_path).mkdir(parents=True, exist_ok=True)
            with locked(Path(self._cache_path) / ".lock", self._cache_path, wait=True):
                super().save_overload(signature, data)


@functools.cache
def _say_once() -> None:
    log.info("compiling kernels for this processor, once: it takes some seconds (`antembed warmup` compiles all of them)")


def compile_kernel(*, cache: bool = True, **options: Any) -> Any:
    """A decorator: numba.njit with these options, its machine code kept."""

    def decorate(function: Callable[..., Any]) -> Any:
        dispatcher = njit(boundscheck=BOUNDS_CHECKED, **options)(function)
        if cache:
            with suppress(RuntimeError, OSError):  # there is no folder to write to: compiled anew each time
                dispatcher._cache = KernelCache(function)
        return dispatcher

    return decorate
