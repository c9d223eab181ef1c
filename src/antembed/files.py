"""Atomic writes (temporary name, sync, rename), and JSON lines that survive a crash."""

import json
import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

if TYPE_CHECKING:  # Python 3.12 has it in collections.abc
    from typing_extensions import Buffer

JSON = dict[str, Any]  # plain data: what a JSON object holds

try:
    import fcntl
except ImportError:  # not on Windows, where two processes must not write to one log
    fcntl = None  # type: ignore[assignment]


Row = dict[str, Any]  # a JSON object


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """A file to write to, which becomes `path` at the end. After a crash or a full disk, the old or the new file is there as a
    whole."""
    path = Path(path)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o666 & ~_umask())  # mkstemp creates a private file
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def write_atomically(path: str | os.PathLike[str], data: "bytes | Iterable[Buffer]") -> None:
    """Write `data`, or its pieces, to `path`, as a whole or not at all."""
    with replacing(path) as file:
        file.writelines([data] if isinstance(data, bytes) else data)


def append_json(path: str | os.PathLike[str], row: dict[str, Any]) -> None:
    """Append one line and sync. An incomplete line left by a crash is removed first; a missing line end is added."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a+b") as file:
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        before, newline, tail = file.read().rpartition(b"\n")
        if tail and _parsed(tail) is None:
            file.truncate(len(before) + len(newline))
        elif tail:
            file.write(b"\n")
        file.write(json.dumps(row).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


def read_json_lines(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """All rows. An incomplete last line, left by a crash, is skipped; any other bad line is an error."""
    lines = Path(path).read_bytes().splitlines()
    rows = [_parsed(line) for line in lines]
    if rows and rows[-1] is None:
        rows.pop()
    for number, row in enumerate(rows, 1):
        if row is None:
            raise ValueError(f"{path}: line {number} is no JSON object: {lines[number - 1][:60]!r}; remove it")
    return [row for row in rows if row is not None]


def _parsed(line: bytes) -> Row | None:
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) else None


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _sync_folder(folder: Path) -> None:
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
