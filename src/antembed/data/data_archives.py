"""Unpack downloaded archives safely: plain files only, inside the folder only, up to a size limit."""

import bz2
import gzip
import lzma
import os
import shutil
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO, cast

from antembed.data.data_plain import DataError

MAX_BYTES = 16 << 30  # unpacked
MAX_FILES = 10_000  # and folders
HEADERS = 64 << 20  # bytes of a tar archive beside its files
COMPRESSED = {b"\x1f\x8b": gzip.GzipFile, b"BZh": bz2.BZ2File, b"\xfd7zXZ\0": lzma.LZMAFile}
BROKEN = (tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error, EOFError, OSError, RuntimeError)
PIECE = 1 << 20
Member = tuple[str, bool, bool, IO[bytes] | None]  # name, is a folder, is a plain file, contents


def unpack(archive: Path, folder: Path, max_bytes: int = MAX_BYTES) -> None:
    """Unpack a .zip or .tar (.gz, .bz2, .xz) into an empty folder; a single top folder of the archive is stripped.

    An archive with absolute paths, "..", links, devices or more than `max_bytes` bytes is rejected, and so is one whose own
    checksums do not fit: it is read to its end.
    """
    try:
        count = _unpack(archive, folder, max_bytes)
    except DataError:
        raise
    except (*BROKEN, ValueError, LookupError) as error:
        raise DataError(f"{archive} could not be unpacked ({error}); download it again") from error
    if not count:
        raise DataError(f"{archive} has no files")
    _lift(folder)


def _unpack(archive: Path, folder: Path, max_bytes: int) -> int:
    files, left = 0, max_bytes
    for count, (name, is_folder, is_file, contents) in enumerate(_members(archive, max_bytes), 1):
        parts = PurePosixPath(name).parts
        if name.startswith("/") or ".." in parts or "\\" in name or ":" in name or not (parts or is_folder):
            raise DataError(f"{archive} contains {name!r}, a path outside its folder; nothing was unpacked")
        if not (is_folder or is_file):
            raise DataError(f"{archive} contains {name!r}, a link or a device, no file; nothing was unpacked")
        if count > MAX_FILES:
            raise DataError(f"{archive} has more than {MAX_FILES} files; nothing was unpacked")
        if is_folder or parts[-1].startswith("._") or parts[0] == "__MACOSX":
            continue
        files += 1
        assert contents is not None
        path = folder.joinpath(*parts)
        path.parent.mkdir(parents=True, exist_ok=True)
        with contents, open(path, "xb") as out:  # x: fail on repeated names
            while piece := contents.read(PIECE):  # the size in the header is not trusted
                left -= len(piece)
                if left < 0:
                    raise DataError(f"{archive} unpacks to more than {max_bytes} bytes; nothing was unpacked")
                out.write(piece)
            out.flush()
            os.fsync(out.fileno())
    return files


def _members(archive: Path, max_bytes: int) -> Iterator[Member]:
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as packed:
            for info in packed.infolist():
                kind = stat.S_IFMT(info.external_attr >> 16)
                is_file = not info.is_dir() and kind in (0, stat.S_IFREG)
                yield info.filename, info.is_dir(), is_file, packed.open(info) if is_file else None
        return
    with open(archive, "rb") as file:
        start = file.read(6)
    opened = next((how for magic, how in COMPRESSED.items() if start.startswith(magic)), open)
    with opened(archive, "rb") as plain:
        stream = _Capped(archive, cast(IO[bytes], plain), max_bytes)
        with tarfile.open(fileobj=cast(IO[bytes], stream), mode="r:") as tar:
            for member in tar:
                yield member.name, member.isdir(), member.isreg(), tar.extractfile(member) if member.isreg() else None
        while stream.read(PIECE):  # the checksum of the stream is behind its end
            pass


class _Capped:
    """A stream of limited length, in pieces of limited length: a header may claim any size."""

    def __init__(self, archive: Path, stream: IO[bytes], max_bytes: int):
        self.archive, self.stream, self.most = archive, stream, max_bytes + HEADERS

    def read(self, n: int) -> bytes:
        if n > HEADERS:
            raise DataError(f"{self.archive} claims a header of {n} bytes; nothing was unpacked")
        self._check(self.stream.tell())
        return self.stream.read(n)

    def seek(self, position: int) -> int:
        self._check(position)
        return self.stream.seek(position)

    def tell(self) -> int:
        return self.stream.tell()

    def _check(self, position: int) -> None:
        if position > self.most:
            raise DataError(f"{self.archive} unpacks to more than {self.most - HEADERS} bytes; nothing was unpacked")


def _lift(folder: Path) -> None:
    """Move the contents of a single inner folder one level up."""
    inside = list(folder.iterdir())
    if len(inside) == 1 and inside[0].is_dir():
        only = inside[0].rename(folder / ".lifted")  # it may contain a file of the same name
        for path in only.iterdir():
            shutil.move(path, folder / path.name)
        only.rmdir()
