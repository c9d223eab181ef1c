"""Columns of ids that are built piece by piece: in memory, or on an entry of the cache, where they are found again.

An entry is a folder named by the hash of the file's contents and of how it was read. It is filled under another name and
renamed when it is whole, so that nobody ever opens half of one.
"""

import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import polars as pl

from antembed.data.text import PARTIAL

VERSION = 1  # of what is on an entry: a change makes all old entries strangers
PIECE = 1 << 20
STALE = 24 * 3600  # seconds after which an unfinished entry is nobody's


def default_cache() -> Path:
    """ANTEMBED_CACHE, or antembed in the user's folder of caches."""
    if named := os.environ.get("ANTEMBED_CACHE"):
        return Path(named)
    if caches := os.environ.get("XDG_CACHE_HOME"):
        return Path(caches) / "antembed"
    try:
        return Path.home() / ".cache" / "antembed"
    except RuntimeError:  # nobody's process has no home
        return Path(tempfile.gettempdir()) / "antembed-cache"


class Column:
    """Numbers that come piece by piece; kept in a file if there is one."""

    def __init__(self, kind: Any, path: Path | None):
        self.kind, self.path, self.length = np.dtype(kind), path, 0
        self._pieces: list[np.ndarray] = []
        self._file = open(path, "wb") if path else None  # noqa: SIM115 (closed by finish)

    def __len__(self) -> int:
        return self.length

    def append(self, values: np.ndarray) -> None:
        values = np.ascontiguousarray(values, self.kind)
        self.length += len(values)
        if self._file is None:
            self._pieces.append(values)
        else:
            self._file.write(values.data)

    def finish(self, change: Callable[[np.ndarray], np.ndarray] | None = None) -> np.ndarray:
        """All of it, each piece changed on the way; read-only if it is a file's."""
        if self._file is None:
            return np.concatenate([change(piece) if change else piece for piece in self._pieces])
        assert self.path is not None
        self._file.close()
        if change is not None and self.length:
            whole = np.memmap(self.path, self.kind, "r+", shape=(self.length,))
            for start in range(0, self.length, PIECE):
                whole[start : start + PIECE] = change(whole[start : start + PIECE])
            whole.flush()
        return np.memmap(self.path, self.kind, "r", shape=(self.length,))

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


class CacheEntry:
    """A place for the columns of one file, or (without a folder) none: they stay in memory."""

    def __init__(self, folder: Path | None):
        self.folder = folder

    @classmethod
    def of_file(cls, cache: Path, path: Path, how: dict[str, Any]) -> "CacheEntry":
        """The entry of this file read in this way."""
        with open(path, "rb") as file:
            contents = hashlib.file_digest(file, "sha256")
        contents.update(json.dumps([VERSION, how], sort_keys=True).encode())
        return cls(cache / f"ratings-{contents.hexdigest()[:32]}")

    @property
    def scratch(self) -> Path | None:
        """Where temporary files of the entry's size may lie."""
        if self.folder is not None:
            self.folder.parent.mkdir(parents=True, exist_ok=True)
        return None if self.folder is None else self.folder.parent

    def about(self) -> dict[str, Any] | None:
        """What was said when it was filled; None if it is not there."""
        if self.folder is None or not (self.folder / "about.json").is_file():
            return None
        return json.loads((self.folder / "about.json").read_text())

    def column(self, name: str, kind: str) -> np.ndarray:
        assert self.folder is not None
        return np.memmap(self.folder / name, np.dtype(kind), "r")

    def labels(self, side: str) -> pl.Series:
        assert self.folder is not None
        return pl.read_parquet(self.folder / f"{side}.parquet").to_series()

    @contextmanager
    def temporary_file(self) -> Iterator[BinaryIO]:
        with tempfile.NamedTemporaryFile(prefix=PARTIAL, dir=self.scratch) as file:
            yield file  # type: ignore[misc]

    @contextmanager
    def writing(self) -> Iterator["Writer"]:
        """Fill the entry: on leaving it is there as a whole, or not at all."""
        if self.folder is None:
            yield Writer(None)
            return
        assert self.scratch is not None
        self._sweep()
        partial = Path(tempfile.mkdtemp(prefix=PARTIAL, dir=self.scratch))
        writer = Writer(partial)
        try:
            yield writer
            for file in partial.iterdir():
                with open(file, "rb") as written:
                    os.fsync(written.fileno())
            try:
                os.rename(partial, self.folder)
            except OSError:
                if self.about() is None:  # what is there is half an entry; else another process was faster with the same
                    shutil.rmtree(self.folder, ignore_errors=True)
                    os.rename(partial, self.folder)
        finally:
            writer.close()
            shutil.rmtree(partial, ignore_errors=True)  # maps of removed files live on until they are closed

    def _sweep(self) -> None:
        """Remove what was left by processes that were killed."""
        assert self.scratch is not None
        for left in self.scratch.glob(f"{PARTIAL}*"):
            with suppress(FileNotFoundError):  # it may be renamed or removed at any moment
                if time.time() - left.stat().st_mtime > STALE:
                    shutil.rmtree(left, ignore_errors=True) if left.is_dir() else left.unlink()


class Writer:
    """Hands out columns and remembers what they are."""

    def __init__(self, folder: Path | None):
        self.folder = folder
        self._columns: dict[str, Column] = {}

    def column(self, name: str, kind: Any) -> Column:
        self._columns[name] = Column(kind, self.folder / name if self.folder else None)
        return self._columns[name]

    def labels(self, side: str, labels: pl.Series) -> None:
        if self.folder is not None:
            labels.to_frame().write_parquet(self.folder / f"{side}.parquet")

    def done(self, about: dict[str, Any]) -> None:
        if self.folder is not None:
            kinds = {name: column.kind.str for name, column in self._columns.items()}
            (self.folder / "about.json").write_text(json.dumps(about | {"columns": kinds}))

    def close(self) -> None:
        for column in self._columns.values():
            column.close()
