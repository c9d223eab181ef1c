"""A corpus → streams of word ids: folders in the layout of PTB and WikiText, or one file, cut 90/5/5 in its order.

Words are what stands between white space; a line ends with `<eos>` (a file of one line, as text8, has none). Files are read
once, in chunks; ids go to the cache and are mapped into memory, so a corpus may be larger than that.
"""

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from antembed.data.cache import CacheEntry, Writer
from antembed.data.text_file import DataError, decompressed
from antembed.data.vocabulary import SPECIAL, UNKNOWN, Vocabulary
from antembed.files import JSON, default_cache

PARTS = {"train": ("train",), "validation": ("valid", "validation", "dev"), "test": ("test",)}
SHARES = (0.9, 0.05)  # of one file: for training, for validation; the rest is for the test
CHUNK = 1 << 22  # numbers at a time
END = "<eos>"
ONE_LINE = 1 << 20  # bytes without a newline from which on a file is taken to have no lines
VERSION = 1  # of the cache; a change makes cached corpora be read anew


@dataclass(frozen=True)
class Corpus:
    """Ids of the parts, one after the other; mapped files or arrays."""

    vocabulary: Vocabulary
    train: np.ndarray  # (n,) int32
    validation: np.ndarray
    test: np.ndarray
    digest: str = ""
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.train) + len(self.validation) + len(self.test)


def read_corpus(path: str | Path, *, min_count: int = 1, max_vocab: int | None = None, cache: Path | None = None) -> Corpus:
    """The corpus in a folder or file. The vocabulary has the words of all parts, as is usual for PTB and WikiText, by their
    counts in the training part: with `min_count` > 1 those seen there so often, at most `max_vocab`; all others are `<unk>`.
    `cache`: where ids are kept (default: the user's cache folder)."""
    files = corpus_files(Path(path))
    options: dict[str, object] = {"corpus": VERSION, "min_count": min_count, "max_vocab": max_vocab}
    digest = _digest(files)
    name = hashlib.sha256(json.dumps([digest, options], sort_keys=True).encode()).hexdigest()[:32]
    entry = CacheEntry((default_cache() if cache is None else cache) / f"corpus-{name}")
    with entry.locked():
        about = entry.about()
        if about is None:
            with entry.writing() as writer:
                about = _encode(files, writer, min_count, max_vocab)
                writer.done(about)
    words = entry.labels("words").to_list()
    vocabulary = Vocabulary(words, entry.column("counts", "i8"), entry.column("counts", "i8"), about["lines"])
    parts = {part: entry.column(part, "i4") for part in PARTS}
    for part, ids in parts.items():
        if len(ids) and not (ids.min() >= 0 and ids.max() < len(words)):
            raise DataError(f"{entry.folder} has words of {part} outside its {len(words)}; delete it")
    return Corpus(vocabulary, **parts, digest=digest, notes=tuple(about["notes"]))


class Numbers(defaultdict[bytes, int]):
    """Words and their numbers, in the order in which they came."""

    def __init__(self) -> None:
        super().__init__(self.__len__)
        self.of([*(name.encode() for name in SPECIAL), END.encode()])

    def of(self, words: list[bytes]) -> np.ndarray:
        return np.fromiter(map(self.__getitem__, words), np.int32, len(words))


def split_words(text: bytes, lines: bool = True) -> list[bytes]:
    """What stands between white space; `lines`: a line ends with END."""
    return (text.replace(b"\n", f" {END} ".encode()) if lines else text).split()


def words_of_text(text: str) -> list[str]:
    """The words of a text in memory, as the files' are."""
    return [word.decode() for word in split_words(text.encode())]


def corpus_of(parts: dict[str, list[str]], *, min_count: int = 1, max_vocab: int | None = None) -> Corpus:
    """A corpus of words in memory, by part."""
    known = Numbers()
    numbers = {part: known.of([word.encode() for word in parts.get(part, [])]) for part in PARTS}
    ids, vocabulary = _vocabulary(known, numbers, 0, min_count, max_vocab)
    found = {part: ids[given] for part, given in numbers.items()}
    digest = hashlib.sha256(b"".join(part.tobytes() for part in found.values())).hexdigest()
    return Corpus(vocabulary, **found, digest=digest)


def corpus_files(path: Path) -> dict[str, Path]:
    """The file of each part; one file under "all"."""
    if path.is_file():
        return {"all": path}
    if not path.is_dir():
        raise DataError(
            f"{path} is neither a file nor a folder; give a text file, or a folder with train, valid and test files"
        )
    found: dict[str, Path] = {}
    for part, names in PARTS.items():
        matching = [file for file in sorted(path.iterdir()) if file.is_file() and _is_part(file.name, names)]
        if len(matching) > 1:
            raise DataError(
                f"{path} has {len(matching)} files for {part}: {', '.join(file.name for file in matching)}; keep one"
            )
        if matching:
            found[part] = matching[0]
    if "train" not in found:
        have = ", ".join(file.name for file in found.values()) or "none"
        raise DataError(f"{path} needs a file for training (*train*); it has {have}; or give one text file")
    return found


def _is_part(name: str, words: tuple[str, ...]) -> bool:
    """wiki.train.tokens, ptb.valid.txt, test.txt.gz: one of the words between dots, dashes or underscores."""
    plain = name.lower().removesuffix(".gz").removesuffix(".zst").replace("-", ".").replace("_", ".")
    return any(word in plain.split(".") for word in words)


def _digest(files: dict[str, Path]) -> str:
    found = hashlib.sha256()
    for part, file in files.items():
        with file.open("rb") as opened:
            found.update(part.encode() + hashlib.file_digest(opened, "sha256").digest())
    return found.hexdigest()


def _encode(files: dict[str, Path], writer: Writer, min_count: int, max_vocab: int | None) -> JSON:
    """One pass over the files: words by number; then, chunk by chunk, by their ids in the vocabulary."""
    if empty := [str(file) for file in files.values() if not file.stat().st_size]:
        raise DataError(f"{empty[0]} is empty (0 bytes); give a file of text")
    known, lines = Numbers(), 0
    raw = {part: writer.column(f"raw-{part}", np.int32) for part in files}
    for part, file in files.items():
        for numbers, newlines in _numbers(file, known):
            raw[part].append(numbers)
            lines += newlines
    parts = {part: column.finish() for part, column in raw.items()}
    if "all" in parts:
        found = parts["all"]
        first, second = int(len(found) * SHARES[0]), int(len(found) * sum(SHARES))
        parts = {"train": found[:first], "validation": found[first:second], "test": found[second:]}
    ids, vocabulary = _vocabulary(known, parts, lines, min_count, max_vocab)
    if parts["train"].max(initial=0) <= known[END.encode()]:  # line ends are no words
        raise DataError(f"{next(iter(files.values()))} has no words to train on; is it a text file?")
    sizes = {}
    for part in PARTS:
        column, numbers = writer.column(part, np.int32), parts.get(part, np.empty(0, np.int32))
        for start in range(0, len(numbers), CHUNK):
            column.append(ids[numbers[start : start + CHUNK]])
        sizes[part] = column.length
        column.close()
    writer.labels("words", pl.Series("word", vocabulary.words, pl.String))
    stored = writer.column("counts", np.int64)
    stored.append(vocabulary.counts)
    stored.close()
    for column in raw.values():
        assert column.path is not None
        column.path.unlink()
    notes = [f"no file for {part}: the model is not measured on it" for part, n in sizes.items() if part != "train" and not n]
    return {**sizes, "lines": lines, "notes": notes}


def _numbers(file: Path, known: Numbers) -> Iterator[tuple[np.ndarray, int]]:
    """The numbers of a file's words, chunk by chunk, and how many lines end there."""
    with file.open("rb") as opened:
        left, lined = b"", None
        for chunk in decompressed(file, opened):
            text = left + chunk
            if lined is None:
                if b"\n" not in text and len(text) < ONE_LINE:
                    left = text
                    continue
                lined = b"\n" in text
            end = max(text.rfind(b" "), text.rfind(b"\n"), text.rfind(b"\t")) + 1
            left = text[end:]
            if end:
                yield known.of(split_words(_utf8(text[:end], file), lined)), text.count(b"\n", 0, end)
        if left.strip() or left.endswith(b"\n"):
            yield known.of(split_words(_utf8(left, file), bool(lined) or b"\n" in left)), left.count(b"\n")


def _utf8(text: bytes, file: Path) -> bytes:
    try:
        text.decode()
    except UnicodeDecodeError as error:
        raise DataError(f"{file} is no UTF-8 text (byte {text[error.start]:#x}); convert it, for example with iconv") from error
    return text


def _vocabulary(
    known: Numbers, parts: dict[str, np.ndarray], lines: int, min_count: int, max_vocab: int | None
) -> tuple[np.ndarray, Vocabulary]:
    """The id of each number, and the vocabulary: words by falling count in the training part, ties as they came."""
    words, V = [*known], len(known)
    counted = {part: _counts(numbers, V) for part, numbers in parts.items()}
    counts, everywhere = counted["train"], np.sum([*counted.values()], axis=0)
    own = np.arange(len(SPECIAL), V)
    own = own[counts[own] >= min_count] if min_count > 1 else own[everywhere[own] > 0]
    own = own[np.argsort(-counts[own], kind="stable")][: max_vocab if max_vocab else None]
    ids = np.full(V, UNKNOWN, np.int32)  # also of a word "<pad>" in a text
    ids[own] = len(SPECIAL) + np.arange(len(own), dtype=np.int32)
    kept = np.concatenate([[0, counts.sum() - counts[own].sum()], counts[own]])
    return ids, Vocabulary([*SPECIAL, *(words[n].decode() for n in own.tolist())], kept, kept, lines)


def _counts(numbers: np.ndarray, V: int) -> np.ndarray:
    """How often each number occurs (V,)."""
    counts = np.zeros(V, np.int64)
    for start in range(0, len(numbers), CHUNK):
        counts += np.bincount(numbers[start : start + CHUNK], minlength=V)
    return counts
