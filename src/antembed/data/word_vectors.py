"""Pretrained vectors for the words of a vocabulary: GloVe and word2vec text (also .gz, .zst), or an array with a list of words.

Text is streamed: only the vectors of the vocabulary are in memory.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from antembed.data.data_plain import DataError
from antembed.data.delimited import is_number
from antembed.data.download import default_folder, find_data
from antembed.data.relations import numbered_lines

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
