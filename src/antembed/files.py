"""Atomic writes (temporary name, sync, rename), locks, JSON lines that survive a crash, folders no other user can write."""

import atexit
import functools
import glob
import json
import logging
import mmap
import os
import secrets
import shutil
import socket
import stat
import tempfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, BinaryIO

if TYPE_CHECKING:  # Python 3.12 has it in collections.abc
    from typing_extensions import Buffer

JSON = dict[str, Any]  # plain data: what a JSON object holds

try:
    import fcntl
except ImportError:  # not on Windows, where two processes must not write to one log or one run
    fcntl = None  # type: ignore[assignment]

TEMPORARY = ".antembed-tmp"  # how names of files end that are being written; those of killed processes are removed
MOST_LINKS = 40  # symbolic links on the way to a folder: as Linux
log = logging.getLogger("antembed")


def default_cache() -> Path:
    """ANTEMBED_CACHE, or `antembed` in the user's cache folder. For a user without a home folder: one of their own in the
    temporary folder or, if another user has taken its name, a new one that is removed at the end of the process."""
    if named := os.environ.get("ANTEMBED_CACHE"):
        return Path(named)
    if caches := os.environ.get("XDG_CACHE_HOME"):
        return Path(caches) / "antembed"
    try:
        return Path.home() / ".cache" / "antembed"
    except RuntimeError:  # a user without a home folder
        return _temporary_cache(Path(tempfile.gettempdir()))


@functools.cache
def _temporary_cache(folder: Path) -> Path:
    user = os.getuid() if hasattr(os, "getuid") else "cache"
    try:
        return private_folder(folder / f"antembed-{user}")
    except OSError as error:
        made = Path(tempfile.mkdtemp(prefix="antembed-"))
        atexit.register(shutil.rmtree, made, ignore_errors=True)
        log.warning("%s; nothing is cached beyond this process: set ANTEMBED_CACHE to a folder of your own", error)
        return made


def private_folder(path: str | os.PathLike[str]) -> Path:
    """The folder, which only this user (and root) can write or replace; made so if it is missing, with its parents.

    PermissionError, with the reason, if others could change what is in it: it belongs to another user, group or others may
    write to it, it is a symbolic link; or others could replace a folder or link on the way to it. (In a folder with the
    sticky bit, as /tmp, they cannot replace what is ours.) Windows has no such owners and bits: nothing is checked there."""
    path = Path(os.path.abspath(path))
    if os.name == "nt":
        path.mkdir(parents=True, exist_ok=True)
        return path
    if path.is_symlink():
        raise PermissionError(f"{path} is a symbolic link")
    root = at = Path(path.anchor)
    left, links = list(path.parts[:0:-1]), 0
    while left:
        step = Path(os.path.normpath(at / left.pop()))  # `at` has no links in it: .. is its parent
        if not os.path.lexists(step):
            with suppress(FileExistsError):  # another process of ours was faster
                os.mkdir(step, 0o700)
        _check_owner(step, not left)
        if not step.is_symlink():
            at = step
            continue
        if (links := links + 1) > MOST_LINKS:
            raise OSError(f"{path}: more than {MOST_LINKS} symbolic links")
        target = Path(os.readlink(step))
        at, left = root if target.is_absolute() else at, left + [part for part in target.parts[::-1] if part != target.anchor]
    return at


def _check_owner(step: Path, last: bool) -> None:
    """PermissionError if others could change this folder or link; a folder on the way may be root's, or sticky."""
    found = os.lstat(step)
    if found.st_uid != os.getuid() and (last or found.st_uid != 0):
        raise PermissionError(f"{step} belongs to user {found.st_uid}, not to {os.getuid()}")
    open_to_others = stat.S_ISDIR(found.st_mode) and found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    if open_to_others and (last or not found.st_mode & stat.S_ISVTX):
        mode = stat.S_IMODE(found.st_mode)
        raise PermissionError(f"{step} can be written by others (mode {mode:o}; `chmod go-w` would forbid it)")


class LockedError(ValueError):
    """Another process has it."""


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """A file to write to, which becomes `path` at the end. After a crash or a full disk, the old or the new file is there,
    complete; a temporary file that a killed process has left is removed by the next write to `path`."""
    path = Path(path)
    _remove_leftovers(path)
    file = _open_temporary(path)
    try:
        yield file
        file.flush()
        os.fsync(file.fileno())
        if os.name == "nt":
            file.close()  # Windows renames no open file; elsewhere it stays locked until it has its name
        os.replace(file.name, path)
    except BaseException:
        with suppress(OSError):  # what a full disk cannot take was reported before
            file.close()
        Path(file.name).unlink(missing_ok=True)
        raise
    file.close()
    sync_folder(path.parent)


def is_temporary(path: Path) -> bool:
    """Whether `replacing` made this name."""
    return path.name.startswith(".") and path.name.endswith(TEMPORARY)


def _open_temporary(path: Path) -> BinaryIO:
    """A new file, locked as long as it is open: what is not locked is left over."""
    while True:
        file = open(path.parent / f".{path.name}.{secrets.token_hex(4)}{TEMPORARY}", "xb")  # noqa: SIM115 (closed by replacing)
        _try_lock(file.fileno(), wait=True)
        if os.fstat(file.fileno()).st_nlink:
            return file
        file.close()  # another process has taken it for a leftover, before it was locked


def _remove_leftovers(path: Path) -> None:
    for left in path.parent.glob(f".{glob.escape(path.name)}.*{TEMPORARY}"):
        with suppress(FileNotFoundError), open(left, "rb") as file:
            if _try_lock(file.fileno()):
                left.unlink()


def _try_lock(handle: int, wait: bool = False) -> bool:
    """Whether the file is locked by us now; also False where the file system has no locks."""
    if fcntl is None:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


@contextmanager
def locked(path: Path, what: object, *, wait: bool = False) -> Iterator[None]:
    """Inside, no other process is inside with the same lock file, which says who is: a pid and a host. `what`, for the error of
    those who come second; with `wait` they wait instead. A lock that a killed process has left is taken over; one of another
    host cannot be known to be left, and stays."""
    file = _open_locked(path, what, wait)
    try:
        file.seek(0)
        file.truncate()
        json.dump({"pid": os.getpid(), "host": socket.gethostname()}, file)
        file.flush()
        yield
    finally:
        path.unlink(missing_ok=True)  # before it is unlocked: who waits for it will see that it is gone
        file.close()


def _open_locked(path: Path, what: object, wait: bool) -> IO[str]:
    while True:
        file = open(path, "a+", encoding="utf-8", errors="replace")  # noqa: SIM115 (closed by locked)
        try:
            if fcntl is not None:
                fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                    _check_host(file, path, what)
                    return file
        except BlockingIOError:
            owner = _owner(file)
            file.close()
            by = f"process {owner['pid']} on {owner['host']}" if owner else "another process"
            raise LockedError(f"{what} is in use by {by}; wait for it or end it, or choose another name") from None
        except BaseException:
            file.close()
            raise
        file.close()  # its owner has removed it meanwhile


def _check_host(file: IO[str], path: Path, what: object) -> None:
    owner, here = _owner(file), socket.gethostname()
    if owner and owner["host"] != here:
        raise LockedError(
            f"{what} was in use by process {owner['pid']} on {owner['host']}, which cannot be seen from {here}; "
            f"if it has ended, delete {path}"
        )


def _owner(file: IO[str]) -> JSON | None:
    """Who wrote the lock file; None if it does not say."""
    file.seek(0)
    owner = _parsed(file.read().encode())
    return owner if owner is not None and {"pid", "host"} <= owner.keys() else None


def write_atomically(path: str | os.PathLike[str], data: "bytes | Iterable[Buffer]") -> None:
    """Write `data`, or its chunks, to `path`, completely or not at all."""
    with replacing(path) as file:
        file.writelines([data] if isinstance(data, bytes) else data)


def append_json(path: str | os.PathLike[str], row: JSON) -> None:
    """Append one line and sync. An incomplete line left by a crash is removed first; a missing line end is added."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and not path.is_file():
        raise OSError(f"{path} is no file; give the name of a .jsonl file")
    with open(path, "a+b") as file:
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_EX)
        tail, start = _last_line(file)
        if tail and not tail.startswith(b"{"):
            raise ValueError(f"{path} ends with {tail[:60]!r}, which is no row of records; give another file")
        if tail and _parsed(tail) is None:
            file.truncate(start)
        elif tail:
            file.write(b"\n")
        file.write(json.dumps(row).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


def _last_line(file: BinaryIO) -> tuple[bytes, int]:
    """What follows the last line end, and where it begins."""
    if not file.seek(0, os.SEEK_END):
        return b"", 0
    with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        start = mapped.rfind(b"\n") + 1
        return mapped[start:], start


def read_json_lines(path: str | os.PathLike[str]) -> list[JSON]:
    """All rows. An incomplete last line, left by a crash, is skipped; any other bad line is an error."""
    lines = Path(path).read_bytes().splitlines()
    rows = [_parsed(line) for line in lines]
    if rows and rows[-1] is None:
        rows.pop()
    for number, row in enumerate(rows, 1):
        if row is None:
            raise ValueError(f"{path}: line {number} is no JSON object: {lines[number - 1][:60]!r}; remove it")
    return [row for row in rows if row is not None]


def write_checked(path: str | os.PathLike[str], row: JSON) -> None:
    """Write an object as JSON with a checksum: what a cache holds must not change a result when it is damaged."""
    write_atomically(path, json.dumps({"crc32": _checksum(row), "content": row}).encode())


def read_checked(path: str | os.PathLike[str]) -> JSON | None:
    """What `write_checked` wrote; None if it is not there, or not as it was written."""
    try:
        found = _parsed(Path(path).read_bytes()) or {}
    except OSError:
        return None
    content = found.get("content")
    return content if isinstance(content, dict) and found.get("crc32") == _checksum(content) else None


def _checksum(row: JSON) -> str:
    return f"{zlib.crc32(json.dumps(row, sort_keys=True).encode()):08x}"


def _parsed(line: bytes) -> JSON | None:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None


def sync_folder(folder: Path) -> None:
    """Let names in this folder outlive a crash."""
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
