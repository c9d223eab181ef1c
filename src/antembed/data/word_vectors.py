"""Pretrained vectors for the words of a vocabulary: GloVe and word2vec text (also .gz, .zst), or an array with a list of words.

Text is streamed: only the vectors of the vocabulary are in memory.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from antembed.data.delimited import is_number
from antembed.data.download import default_folder, find_data
from antembed.data.relations import numbered_lines
from antembed.data.text_file import DataError, decompressed

# MERGED Vectors in text files, as GloVe and word2vec write them: a word and its numbers a line.
#
# Words may have spaces, so a line with too many numbers could be read as a longer word, and a file that was cut as a shorter one.
# What looks like that is an error, with the line.

MISSING = ("zero", "mean", "random")
PIECE = 1 << 16


@dataclass(frozen=True)
class Pretrained:
    """vectors (V, width) float32, and which words were found."""

    vectors: np.ndarray
    found: np.ndarray  # (V,) bool

    @property
    def missing(self) -> int:
        return int((~self.found).sum())


def read_vectors(
    path: str | Path, words: Sequence[str], *, word_list: str | Path | None = None, missing: str = "zero", seed: int = 0
) -> Pretrained:
    """Vectors of `words`: from .npy or .safetensors with a list of words (one per line; words.txt beside it by default), else
    from text; the file is here or in ANTEMBED_DATA. Missing words get zeros, the mean of the others, or ("random") a draw
    with their mean and spread."""
    path = find_data(path)
    if missing not in MISSING:
        raise ValueError(f"missing must be one of {', '.join(MISSING)}, got {missing!r}")
    if path.suffix == ".bin":
        raise DataError(f"{path} looks like word2vec's binary format, which is not read; save it as text")
    if not path.is_file():
        raise DataError(f"{path} is no file, neither here nor in {default_folder()}; put the vectors there, or name their path")
    ids: dict[bytes, int] = {}
    for number, word in enumerate(words):
        ids.setdefault(word.encode(), number)
    array = path.suffix in (".npy", ".safetensors")
    found, vectors, width = np.zeros(len(words), bool), np.zeros((0, 0), np.float32), 0
    for number, vector in _from_array(path, word_list, ids) if array else _from_text(path, ids):
        if not width:
            width = len(vector)
            vectors = np.zeros((len(words), width), np.float32)
        if not found[number]:  # of repeated words the first, which is the most frequent one
            vectors[number], found[number] = vector, True
    if not found.any():
        raise DataError(f"{path} has vectors of 0 of the {len(words)} words; check its language and its case")
    if missing != "zero":
        given = vectors[found]
        vectors[~found] = given.mean(0)
        if missing == "random":
            rng = np.random.default_rng(seed)
            vectors[~found] += given.std(0) * rng.standard_normal((int((~found).sum()), width))
    return Pretrained(vectors, found)


def _from_text(path: Path, ids: dict[bytes, int]) -> Iterator[tuple[int, np.ndarray]]:
    """Lines of a word and its numbers; an optional first line of two integers gives the number of vectors and their width."""
    width = expected = 0
    read = 0
    for number, line in numbered_lines(path):
        line = line.rstrip()
        if number == 1:
            line = line.removeprefix(b"\xef\xbb\xbf")
            header = line.split()
            if len(header) == 2 and all(field.isdigit() for field in header):
                expected, width = map(int, header)
                continue
        if not line:
            continue
        width = width or line.count(b" ")
        fields = line.rsplit(b" ", width)
        # Words may contain blanks (in GloVe 840B some do), but not a number after one: that is a number too many.
        if len(fields) != width + 1 or not width or (b" " in fields[0] and is_number(_text(fields[0].rsplit(b" ", 1)[1]))):
            raise DataError(f"{path}, line {number}: {line.count(b' ')} numbers instead of {width}: {_text(line[:60])!r}")
        read += 1
        if fields[0] not in ids:
            continue
        try:
            vector = np.array(fields[1:], np.float32)
        except ValueError:
            vector = np.array([np.nan])
        if not np.isfinite(vector).all():
            raise DataError(f"{path}, line {number}: not all of the {width} are finite numbers: {_text(line[:60])!r}")
        yield ids[fields[0]], vector
    if expected and read != expected:
        raise DataError(f"{path}: its first line says {expected} vectors, there are {read}; download it again")


def _from_array(path: Path, word_list: str | Path | None, ids: dict[bytes, int]) -> Iterator[tuple[int, np.ndarray]]:
    listed = Path(word_list) if word_list is not None else path.with_name("words.txt")
    if not listed.is_file():
        raise DataError(f"{path} contains no words, and there is no list of them at {listed}; give one, a word per line")
    rows, numbers, count = [], [], 0
    for number, line in numbered_lines(listed):
        count = number
        word = line.removesuffix(b"\r")
        if word in ids:
            rows.append(number - 1)
            numbers.append(ids[word])
    pieces = _npy(path, count, np.array(rows, np.int64)) if path.suffix == ".npy" else _safetensors(path, count, rows)
    position = 0
    for piece in pieces:
        if not np.isfinite(piece).all():
            raise DataError(f"{path}: a vector has inf or nan in it; replace these values first")
        for vector in piece:
            yield numbers[position], vector
            position += 1


def _npy(path: Path, count: int, rows: np.ndarray) -> Iterator[np.ndarray]:
    array = np.load(path, mmap_mode="r", allow_pickle=False)
    _check(path, array.shape, count)
    for first in range(0, len(rows), PIECE):
        yield np.asarray(array[rows[first : first + PIECE]], np.float32)


def _safetensors(path: Path, count: int, rows: list[int]) -> Iterator[np.ndarray]:
    from safetensors import safe_open

    with safe_open(str(path), framework="np") as file:
        names = list(file.keys())
        tables = [name for name in names if len(file.get_slice(name).get_shape()) == 2]
        if len(tables) != 1:
            raise DataError(f"{path}: {len(tables)} of its {len(names)} tensors have two dimensions, 1 is needed: {names[:5]}")
        table = file.get_slice(tables[0])
        _check(path, tuple(table.get_shape()), count)
        wanted = np.array(rows, np.int64)
        for first in range(0, count, PIECE):
            here = wanted[(wanted >= first) & (wanted < first + PIECE)] - first
            if len(here):
                yield np.asarray(table[first : min(first + PIECE, count)], np.float32)[here]


def _check(path: Path, shape: tuple[int, ...], count: int) -> None:
    if len(shape) != 2 or shape[0] != count:
        raise DataError(f"{path} is an array of {shape}, its list has {count} words; they must have equal length")


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")


LINES_AT_ONCE = 1 << 16  # lines that are held as text
DECIMAL = re.compile(rb"[-+]?\d*\.\d+([eE][-+]?\d+)?")  # no word ends like this, but a vector begins so


def read_text(path: Path) -> tuple[list[str], np.ndarray, tuple[str, ...]]:
    """Words, their vectors (V, d), and what was left out; word2vec's first line says V and d."""
    words: list[str] = []
    pieces: list[np.ndarray] = []
    held: list[tuple[int, bytes]] = []
    width, promised, blank = 0, 0, 0
    for number, line in enumerate(_lines(path), 1):
        parts = line.rstrip(b"\r ").split(b" ")
        if number == 1 and len(parts) == 2 and all(part.isdigit() for part in parts):
            promised, width = (int(part) for part in parts)
            continue
        if not line.strip():
            blank += 1
            continue
        width = width or len(parts) - 1
        _check_line(path, number, parts, width, bool(promised))
        words.append(b" ".join(parts[:-width]).decode("utf-8", "replace"))
        held.append((number, b" ".join(parts[-width:])))
        if len(held) == LINES_AT_ONCE:
            pieces.append(_numbers(held, width, path))
            held = []
    if not words:
        raise DataError(f"{path} has no vectors")
    if promised and promised != len(words):
        raise DataError(
            f"{path} says in its first line that it has {promised:,} vectors, and has {len(words):,}; download it again, or "
            "mend that line"
        )
    vectors = np.concatenate([*pieces, _numbers(held, width, path)])
    first = {word: row for row, word in reversed(list(enumerate(words)))}
    notes: tuple[str, ...] = (f"{blank:,} blank lines were left out",) if blank else ()
    if len(first) < len(words):
        notes += (
            f"{len(words) - len(first):,} vectors of words that came before were left out: the first of equal words counts",
        )
        order = np.sort(np.fromiter(first.values(), np.int64, len(first)))
        words, vectors = [words[row] for row in order], vectors[order]
    return words, vectors, notes


def _check_line(path: Path, number: int, parts: list[bytes], width: int, promised: bool) -> None:
    if width < 1:
        raise DataError(f"{path}, line {number}: no word and numbers; is it a file of vectors?")
    expected = f"the first line says {width}" if promised else f"the first vector has {width}"
    if len(parts) <= width:
        raise DataError(f"{path}, line {number}: {len(parts) - 1} numbers, {expected}; mend or remove the line")
    if len(parts) > width + 1 and DECIMAL.fullmatch(parts[-width - 1]):
        n = next(n for n, part in enumerate(reversed(parts)) if n >= width and not DECIMAL.fullmatch(part))
        raise DataError(f"{path}, line {number}: {n} numbers, {expected}; mend or remove the line that is wrong")


def _lines(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        left = b""
        for piece in decompressed(path, file):
            *lines, left = (left + piece).split(b"\n")
            yield from lines
        if left:
            yield left


def _numbers(lines: list[tuple[int, bytes]], width: int, path: Path) -> np.ndarray:
    try:
        flat = np.array(b" ".join(line for _, line in lines).split(), np.float32)
        return flat.reshape(len(lines), width)
    except ValueError:
        number, wrong = next((number, part) for number, line in lines for part in line.split(b" ") if not _is_number(part))
        raise DataError(
            f"{path}, line {number}: {wrong.decode('utf-8', 'replace')!r} is no number; mend or remove the line"
        ) from None


def _is_number(part: bytes) -> bool:
    try:
        float(part)
    except ValueError:
        return False
    return True
