"""Unpack downloaded archives safely: plain files only, inside the folder only, up to a size limit."""

import shutil
import stat
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO

from antembed.data.text import DataError

MAX_BYTES = 16 << 30  # unpacked
MAX_FILES = 10_000
PIECE = 1 << 20
Member = tuple[str, bool, bool, IO[bytes] | None]  # name, is a folder, is a plain file, contents


def unpack(archive: Path, folder: Path, max_bytes: int = MAX_BYTES) -> None:
    """Unpack a .zip or .tar (.gz, .bz2, .xz) into an empty folder; a single top folder of the archive is stripped.

    An archive with absolute paths, "..", links, devices or more than `max_bytes` bytes is rejected.
    """
    count, left = 0, max_bytes
    try:
        for name, is_folder, is_file, contents in _members(archive):
            parts = PurePosixPath(name).parts
            if name.startswith("/") or ".." in parts or "\\" in name or ":" in name or not parts:
                raise DataError(f"{archive} contains {name!r}, a path outside its folder; nothing was unpacked")
            if not (is_folder or is_file):
                raise DataError(f"{archive} contains {name!r}, a link or a device, no file; nothing was unpacked")
            if is_folder or parts[-1].startswith("._") or parts[0] == "__MACOSX":
                continue
            count += 1
            if count > MAX_FILES:
                raise DataError(f"{archive} has more than {MAX_FILES} files; nothing was unpacked")
            assert contents is not None
            path = folder.joinpath(*parts)
            path.parent.mkdir(parents=True, exist_ok=True)
            with contents, open(path, "xb") as out:  # x: fail on repeated names
                while piece := contents.read(PIECE):  # the size in the header is not trusted
                    left -= len(piece)
                    if left < 0:
                        raise DataError(f"{archive} unpacks to more than {max_bytes} bytes; nothing was unpacked")
                    out.write(piece)
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, OSError, RuntimeError) as error:
        raise DataError(f"{archive} could not be unpacked ({error}); download it again") from error
    if not count:
        raise DataError(f"{archive} has no files")
    _lift(folder)


def _members(archive: Path) -> Iterator[Member]:
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as packed:
            for info in packed.infolist():
                kind = stat.S_IFMT(info.external_attr >> 16)
                is_file = not info.is_dir() and kind in (0, stat.S_IFREG)
                yield info.filename, info.is_dir(), is_file, packed.open(info) if is_file else None
        return
    with tarfile.open(archive, "r:*") as tar:
        for member in tar:
            yield member.name, member.isdir(), member.isreg(), tar.extractfile(member) if member.isreg() else None


def _lift(folder: Path) -> None:
    """Move the contents of a single inner folder one level up."""
    inside = list(folder.iterdir())
    if len(inside) == 1 and inside[0].is_dir():
        only = inside[0].rename(folder / ".lifted")  # it may contain a file of the same name
        for path in only.iterdir():
            shutil.move(path, folder / path.name)
        only.rmdir()
