"""The cache of data: arrays that took long to make, mapped into memory when they are needed again.

    entry = CacheEntry.of(default_cache(), "ratings", file, options)     # named by contents and options
    with entry.locked():                                                 # other processes wait
        if (about := entry.about()) is None:
            with entry.writing() as writer:
                writer.column("users", np.int32).append(users)           # chunk by chunk
                writer.done({"skipped": 0})
    users = entry.column("users", "i4")

An entry is a folder. It is written under a temporary name and renamed when complete. about.json has the checksums of its files:
an entry that is not as it was written is written anew.
"""

import hashlib
import json
import os
import shutil
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

import numpy as np
import polars as pl
from numpy.typing import DTypeLike

from antembed.data.text_file import PARTIAL
from antembed.files import JSON, locked, read_checked, write_checked

VERSION = 2  # of the layout of an entry; a change invalidates all old entries
CACHED_FROM = 32 << 20  # bytes; reading smaller files is faster than the cache
CHUNK = 1 << 20  # rows changed, or bytes checked, at a time
ABOUT = "about.json"
STALE = 24 * 3600  # seconds after which an unfinished entry is removed
# What cached data depend on: contents of arrays and files, and anything that JSON can hold.
Part = np.ndarray | Path | str | int | float | Sequence[str] | Mapping[str, object]


def fingerprint(*parts: Part) -> str:
    """A hash of the contents. Each part starts with its kind and size, so that ("ab", "c") differs from ("a", "bc")."""
    found = hashlib.sha256(json.dumps(VERSION).encode())
    for part in parts:
        if isinstance(part, np.ndarray):
            found.update(f"array {part.dtype.str} {part.shape}".encode())
            found.update(np.ascontiguousarray(part).data)
        elif isinstance(part, Path):
            for file in sorted(filter(Path.is_file, part.iterdir())) if part.is_dir() else [part]:
                with open(file, "rb") as opened:
                    found.update(f"file {file.name} {hashlib.file_digest(opened, 'sha256').hexdigest()}".encode())
        else:
            text = json.dumps(part, sort_keys=True).encode()
            found.update(f"plain {len(text)} ".encode() + text)
    return found.hexdigest()[:32]


class Column:
    """An array that is appended to chunk by chunk; in a file if a path is given."""

    def __init__(self, kind: DTypeLike, path: Path | None):
        self.kind, self.path, self.length = np.dtype(kind), path, 0
        self._chunks: list[np.ndarray] = []
        self._file = open(path, "wb") if path else None  # noqa: SIM115 (closed by finish)

    def __len__(self) -> int:
        return self.length

    def append(self, values: np.ndarray) -> None:
        values = np.ascontiguousarray(values, self.kind)
        self.length += len(values)
        if self._file is None:
            self._chunks.append(values)
        else:
            self._file.write(values.data)

    def finish(self, change: Callable[[np.ndarray], np.ndarray] | None = None) -> np.ndarray:
        """The array, with `change` applied to each chunk; read-only if it is in a file."""
        if self._file is None:
            return np.concatenate([change(chunk) if change else chunk for chunk in self._chunks])
        assert self.path is not None
        self._file.close()
        if change is not None and self.length:
            mapped = np.memmap(self.path, self.kind, "r+", shape=(self.length,))
            for start in range(0, self.length, CHUNK):
                mapped[start : start + CHUNK] = change(mapped[start : start + CHUNK])
            mapped.flush()
        return np.memmap(self.path, self.kind, "r", shape=(self.length,))

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


class CacheEntry:
    """The cached columns of one file; without a folder, columns stay in memory."""

    def __init__(self, folder: Path | None):
        self.folder = folder

    @classmethod
    def of(cls, cache: Path, kind: str, *parts: Part) -> "CacheEntry":
        """The entry of what depends on these files, arrays and options."""
        return cls(cache / f"{kind}-{fingerprint(*parts)}")

    @property
    def scratch(self) -> Path | None:
        """The folder for large temporary files."""
        if self.folder is None:
            return None
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        return self.folder.parent

    def about(self) -> JSON | None:
        """The description given to `Writer.done`; None if there is no entry, or it is damaged."""
        found = None if self.folder is None else read_checked(self.folder / ABOUT)
        if self.folder is None or found is None:
            return None
        try:
            same = {file.name: _checksum(file) for file in self.folder.iterdir() if file.name != ABOUT} == found["files"]
        except OSError:
            return None
        return found if same else None

    @contextmanager
    def locked(self) -> Iterator[None]:
        """One process looks for the entry and writes it; others wait."""
        if self.folder is None or self.scratch is None:
            yield
            return
        with locked(self.scratch / f".{self.folder.name}.lock", self.folder, wait=True):
            yield

    def column(self, name: str, kind: str) -> np.ndarray:
        """An array of the entry, mapped."""
        assert self.folder is not None
        empty = (self.folder / name).stat().st_size == 0  # which cannot be mapped
        return np.empty(0, np.dtype(kind)) if empty else np.memmap(self.folder / name, np.dtype(kind), "r")

    def labels(self, side: str) -> pl.Series:
        assert self.folder is not None
        return pl.read_parquet(self.folder / f"{side}.parquet").to_series()

    @contextmanager
    def temporary_file(self) -> Iterator[BinaryIO]:
        with tempfile.NamedTemporaryFile(prefix=PARTIAL, dir=self.scratch) as file:
            yield file  # type: ignore[misc]

    @contextmanager
    def writing(self) -> Iterator["Writer"]:
        """Write the entry; it appears on leaving the context, complete or not at all."""
        if self.folder is None:
            yield Writer(None)
            return
        assert self.scratch is not None
        self._sweep()
        partial = Path(tempfile.mkdtemp(prefix=PARTIAL, dir=self.scratch))
        writer = Writer(partial)
        try:
            yield writer
            writer.close()
            files = {file.name: _checksum(file, sync=True) for file in partial.iterdir()}
            write_checked(partial / ABOUT, writer.about | {"files": files})
            try:
                os.rename(partial, self.folder)
            except OSError:
                if self.about() is None:  # an incomplete entry is there; otherwise another process was faster
                    shutil.rmtree(self.folder, ignore_errors=True)
                    os.rename(partial, self.folder)
        finally:
            writer.close()
            shutil.rmtree(partial, ignore_errors=True)  # memory maps of removed files stay valid until they are closed

    def _sweep(self) -> None:
        """Remove temporary files left by killed processes."""
        assert self.scratch is not None
        for left in self.scratch.glob(f"{PARTIAL}*"):
            with suppress(FileNotFoundError):  # it may be renamed or removed meanwhile
                if time.time() - left.stat().st_mtime > STALE:
                    shutil.rmtree(left, ignore_errors=True) if left.is_dir() else left.unlink()


def _checksum(path: Path, sync: bool = False) -> str:
    """Of a file's contents."""
    found = 0
    with open(path, "rb") as file:
        while chunk := file.read(CHUNK):
            found = zlib.crc32(chunk, found)
        if sync:
            os.fsync(file.fileno())
    return f"{found:08x}"


class Writer:
    """Creates the columns of an entry and writes their description."""

    def __init__(self, folder: Path | None):
        self.folder = folder
        self.about: JSON = {}
        self._columns: dict[str, Column] = {}

    def column(self, name: str, kind: DTypeLike) -> Column:
        self._columns[name] = Column(kind, self.folder / name if self.folder else None)
        return self._columns[name]

    def labels(self, side: str, labels: pl.Series) -> None:
        if self.folder is not None:
            labels.to_frame().write_parquet(self.folder / f"{side}.parquet")

    def done(self, about: dict[str, object]) -> None:
        """All is written; `about` describes it."""
        self.about = about | {"columns": {name: column.kind.str for name, column in self._columns.items()}}

    def close(self) -> None:
        for column in self._columns.values():
            column.close()
