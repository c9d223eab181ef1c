"""How kernels are compiled and their machine code is kept.

Numba's own cache compares the time of a function's file, not of what it calls; and when a process is killed between writing the
index and the data, or two processes write, the index may name other code. Here the folder is named by a hash of the kernel's
file, of the kernel files and files of this room that it names, of the compiler and of the processor, so that what is in it is
never old; and one process writes at a time. Kernels stand in this room and in files named …_kernel.py, and use constants of
these alone (tests/test_structure.py): a constant is part of the machine code.

Numba unpickles what it finds, and runs it. So machine code is kept only in a folder that no other user can write or replace
(`private_folder`); without one, kernels are compiled in memory, and a line says so.

ANTEMBED_BOUNDSCHECK=1 compiles kernels that raise IndexError instead of reading or writing elsewhere (slower, a folder apart).
"""

import functools
import hashlib
import inspect
import logging
import os
import platform
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
import numba
from numba import njit, types
from numba.core.caching import CompileResultCacheImpl, FunctionCache, IndexDataCacheFile, NullCache, UserProvidedCacheLocator
from numba.core.codegen import get_host_cpu_features

from antembed.files import default_cache, locked, private_folder

BOUNDS_CHECKED = os.environ.get("ANTEMBED_BOUNDSCHECK", "") not in ("", "0")
HERE = Path(__file__).parent
KERNELS = {file.stem: file for file in HERE.parent.rglob("*_kernel.py")}
config: Any = numba.config
log = logging.getLogger("antembed")


def features() -> set[str]:
    """What the processor that kernels are compiled for can do, in LLVM's words."""
    named = get_host_cpu_features() if config.CPU_FEATURES is None else config.CPU_FEATURES
    return {word[1:] for word in named.split(",") if word.startswith("+")}


def sources(file: Path) -> set[Path]:
    """The files whose text decides about the machine code of this file's functions: the kernels and files of this room that it
    names, those that these name, and this one."""
    named = KERNELS | {f"native.{own.stem}": own for own in HERE.glob("*.py")}
    found, todo = set(), [file, Path(__file__)]
    while todo:
        if (file := todo.pop()) not in found:
            found.add(file)
            todo += [named[name] for name in set(re.findall(r"\w+_kernel\b|\bnative\.\w+", file.read_text())) if name in named]
    return found


@functools.cache
def digest(file: Path) -> str:
    """Of what machine code of this file's functions depends on."""
    asked = config.CPU_NAME, config.CPU_FEATURES
    host = () if all(asked) else (llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten())
    machine = platform.machine(), host
    made_by = numba.__version__, llvm.llvm_version_info, platform.python_version()
    found = hashlib.sha256(repr((asked, machine, made_by, BOUNDS_CHECKED)).encode())
    for source in sorted(sources(file), key=lambda source: source.name):
        found.update(source.name.encode() + source.read_bytes())
    return found.hexdigest()[:32]


def kept_in(file: Path) -> str:
    """The folder of this file's machine code, by name and digest: clones and copies of the source share it."""
    return f"{file.stem}-{digest(file)}"


def _folder() -> Path:
    """NUMBA_CACHE_DIR; or beside the source, where Python's own are, if that can be written; or the user's cache."""
    if config.CACHE_DIR:
        return private_folder(config.CACHE_DIR)
    with suppress(OSError):
        beside = private_folder(HERE / "__pycache__")
        if os.access(beside, os.W_OK):
            return beside
    return private_folder(default_cache() / "kernels")


def _own_folder() -> tuple[Path | None, str]:
    """Where machine code is kept; or None, and why it is not."""
    try:
        return private_folder(_folder()), ""
    except OSError as error:
        return None, str(error)


FOLDER, WITHOUT = _own_folder()
_made = functools.cache(private_folder)  # the functions of a file share a folder


class NoCache(NullCache):
    """Compiled in memory, in each process anew."""

    def __init__(self, why: str):
        self.why = why

    def load_overload(self, sig: Any, target_context: Any) -> None:
        _say_why(self.why)


class _Locator(UserProvidedCacheLocator):
    """By the file's name and digest, not by its path."""

    @classmethod
    def get_suitable_cache_subpath(cls, py_file: str) -> str:
        return kept_in(Path(py_file))


class _CacheImpl(CompileResultCacheImpl):
    _locator_classes = [_Locator]  # noqa: RUF012 — an instance variable for Numba


class KernelCache(FunctionCache):
    """Machine code of one function, by signature, in our folder."""

    _impl_class = _CacheImpl

    def __init__(self, function: Callable[..., Any], folder: Path):
        own = _made(folder / _Locator.get_suitable_cache_subpath(inspect.getfile(function)))
        before, config.CACHE_DIR = config.CACHE_DIR, str(folder)
        try:
            super().__init__(function)
        finally:
            config.CACHE_DIR = before  # other packages keep theirs
        if Path(self._cache_path) != own:
            raise OSError(f"{own} cannot be written")  # Numba would look elsewhere
        self._cache_file = IndexDataCacheFile(self._cache_path, self._impl.filename_base, own.name)

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


def is_compiled(kernel: Any) -> bool:
    """Whether machine code of a kernel is there, in this process or in the folder."""
    cache = kernel._cache
    return bool(kernel.signatures) or (isinstance(cache, KernelCache) and os.path.exists(cache._cache_file._index_path))


@functools.cache
def _say_why(why: str) -> None:
    log.warning(
        "kernels are compiled in memory, in each process anew, which takes some seconds: %s. Machine code is kept only where "
        "no other user can write: set NUMBA_CACHE_DIR to a folder of your own",
        why,
    )


@functools.cache
def _say_once() -> None:
    log.info("compiling kernels for this processor, once: it takes some seconds (`antembed warmup` compiles all of them)")


def compile_kernel(*, cache: bool = True, **options: Any) -> Any:
    """A decorator: numba.njit with these options, its machine code kept."""

    def decorate(function: Callable[..., Any]) -> Any:
        compiling: Any = {"boundscheck": BOUNDS_CHECKED, "no_cfunc_wrapper": True, **options}  # nobody calls it from C
        dispatcher = njit(**compiling)(function)
        found = dispatcher.get_call_template
        # f(0) in another kernel is f(n): Numba would compile it once more for each literal.
        dispatcher.get_call_template = lambda args, kws: found(tuple(map(types.unliteral, args)), kws)
        if cache:
            dispatcher._cache = _cache_of(function)
        return dispatcher

    return decorate


def _cache_of(function: Callable[..., Any]) -> KernelCache | NoCache:
    if FOLDER is None:
        return NoCache(WITHOUT)
    try:
        return KernelCache(function, FOLDER)
    except (RuntimeError, OSError) as error:
        return NoCache(str(error))


compiled: Any = compile_kernel(nogil=True, error_model="numpy")  # what most kernels are compiled by
