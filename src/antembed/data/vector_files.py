"""Vectors in files: GloVe and word2vec text (also .gz, .zst), word2vec's binary format, .npy, .npz, safetensors.

In text, words may have spaces, so a line with too many numbers could be read as a longer word, and a line that was cut as a
shorter one: what looks like that is an error, with the line.
"""

import re
from collections.abc import Container
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from antembed.data.download import default_folder, find_data
from antembed.data.safetensors_map import read_safetensors
from antembed.data.text_file import DataError, numbered_lines

LINES_AT_ONCE = 1 << 12  # lines that are held as text
DECIMAL = re.compile(rb"[-+]?\d*\.\d+([eE][-+]?\d+)?")  # no word ends like this, but a vector begins so
WORD_FILES = ("words.txt", "vocab.txt", "vocabulary.txt")  # beside an array: a word a line
# Names of the table of words among the tensors of a model; the last three are those of model2vec and WordLlama.
STATIC = ("embeddings", "embedding.weight", "embeddings.weight")
TENSORS = ("embeddings.word_embeddings.weight", "embed_tokens.weight", "wte.weight", "shared.weight",
           "word_embeddings.weight", *STATIC)  # fmt: skip


@dataclass(frozen=True)
class Source:
    """Vectors, their words if they have any, and whether the rows are in the order of falling frequency."""

    vectors: np.ndarray  # (V, d), perhaps mapped
    words: list[str] | None = None
    by_frequency: bool = False
    notes: tuple[str, ...] = ()  # what the reader left out


@dataclass(frozen=True)
class Pretrained:
    """vectors (V, width) float32, zeros for words without one, and which words were found."""

    vectors: np.ndarray
    found: np.ndarray  # (V,) bool

    @property
    def missing(self) -> int:
        return int((~self.found).sum())


def read_vectors(path: str | Path, words: list[str]) -> Pretrained:
    """Vectors of these words, of a file here or in ANTEMBED_DATA; only theirs are in memory."""
    path = find_data(path)
    if not path.is_file():
        raise DataError(f"{path} is no file, neither here nor in {default_folder()}; put the vectors there, or name their path")
    wanted = {word: number for number, word in enumerate(words)}
    source = read_vector_file(path, only=wanted)
    if source.words is None:
        raise DataError(f"{path} contains no words, and there is no {' or '.join(WORD_FILES)} beside it; write a word per line")
    rising = reversed(list(enumerate(source.words)))
    first = {word: row for row, word in rising if word in wanted}  # the most frequent of equals
    if not first:
        raise DataError(f"{path} has vectors of 0 of the {len(words)} words; check its language and its case")
    ids, rows = np.array([wanted[word] for word in first]), np.array(list(first.values()))
    vectors, found = np.zeros((len(words), source.vectors.shape[1]), np.float32), np.zeros(len(words), bool)
    vectors[ids], found[ids] = source.vectors[rows], True
    if not np.isfinite(vectors).all():
        raise DataError(f"{path}: a vector has inf or nan in it; replace these values first")
    return Pretrained(vectors, found)


def read_vector_file(
    path: Path, *, tensor: str = "", words: str | Path | None = None, only: Container[str] | None = None
) -> Source:
    """The vectors in a file. `tensor`: the name of the table, where there are several; `words`: a file with a word per line
    (default: one beside an array); `only`: words that are enough, if they are read one by one."""
    if tensor and path.suffix not in (".safetensors", ".npz"):
        raise DataError(f"{path} has one table; leave out --tensor {tensor}")
    if path.suffix == ".ant":
        raise DataError(f"{path} is compressed already; to compress it anew, first: antembed export {path} vectors.npy")
    if path.stat().st_size == 0:
        raise DataError(f"{path} is empty (0 bytes); give a file of vectors")
    if path.suffix == ".npy":
        found = Source(check_table(np.load(path, mmap_mode="r", allow_pickle=False), path))
    elif path.suffix == ".npz":
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files if file[name].ndim == 2}
        found = Source(check_table(arrays[choose_table(path, list(arrays), tensor)], path))
    elif path.suffix == ".safetensors":
        tables = {each.name: each for each in read_safetensors(path)[0] if len(each.shape) == 2}
        name = choose_table(path, list(tables), tensor or find_embedding(list(tables)))
        found = Source(check_table(tables[name].array(path), path))
    elif path.suffix == ".bin":
        found = _read_binary(path)
    else:
        found = _read_text(path, only)
    if words is None and found.words is None:
        words = next((path.parent / name for name in WORD_FILES if (path.parent / name).is_file()), None)
    return found if words is None else with_words(found, Path(words))


def with_words(source: Source, file: Path) -> Source:
    """The words in a file, a line each."""
    words = [line.removesuffix(b"\r").decode("utf-8", "replace") for _, line in numbered_lines(file)]
    if len(words) != len(source.vectors):
        raise DataError(f"{file} has {len(words):,} words for {len(source.vectors):,} vectors; give a line for each")
    return replace(source, words=words, by_frequency=True)


def check_table(array: np.ndarray, path: Path) -> np.ndarray:
    if array.ndim != 2 or array.dtype.kind != "f":
        given = f"{path} holds an array of shape {array.shape} and type {array.dtype}"
        raise DataError(f"{given}; a table is (objects, width), floats")
    return array


def find_embedding(names: list[str]) -> str:
    """The table of words among the tensors of a model."""
    for ending in TENSORS:
        fitting = [name for name in names if name == ending or name.endswith(f".{ending}")]
        if len(fitting) == 1:
            return fitting[0]
    return ""


def choose_table(path: Path, tables: list[str], tensor: str) -> str:
    if tensor and tensor not in tables:
        raise DataError(f"{path} has no table {tensor!r}; it has: {', '.join(tables[:8]) or 'none'}")
    if not tensor and len(tables) != 1:
        raise DataError(f"{path} has {len(tables)} tables; say which with --tensor: {', '.join(tables[:8]) or 'none'}")
    return tensor or tables[0]


def _read_binary(path: Path) -> Source:
    """Mikolov's binary format: "V d\\n", then word, space, d floats."""
    data = path.read_bytes()
    head, _, _ = data.partition(b"\n")
    try:
        V, d = (int(part) for part in head.split())
    except ValueError as error:
        raise DataError(f"{path} is no word2vec file: it does not begin with how many vectors there are") from error
    words, vectors, at = [], np.empty((V, d), np.float32), len(head) + 1
    for row in range(V):
        end = data.find(b" ", at)
        if end < 0 or end + 1 + 4 * d > len(data):
            raise DataError(f"{path} ends after {row:,} of {V:,} vectors; download it again")
        words.append(data[at:end].lstrip(b"\n").decode("utf-8", "replace"))
        vectors[row] = np.frombuffer(data, np.float32, d, end + 1)
        at = end + 1 + 4 * d
    return Source(vectors, words, True)


def _read_text(path: Path, only: Container[str] | None) -> Source:
    """A word and its numbers a line; word2vec's first line says how many vectors there are, and their width."""
    words: dict[str, None] = {}
    chunks: list[np.ndarray] = []
    held: list[tuple[int, bytes]] = []
    width = promised = blank = read = repeated = 0
    for number, line in numbered_lines(path):
        line = line.rstrip(b"\r ")
        if number == 1 and len(head := line.split(b" ")) == 2 and all(part.isdigit() for part in head):
            promised, width = map(int, head)
            continue
        if not line.strip():
            blank += 1
            continue
        width = width or line.count(b" ")
        raw, numbers = _split(path, number, line, width, bool(promised))
        word, read = raw.decode("utf-8", "replace"), read + 1
        if only is not None and word not in only:
            continue
        if word in words:
            repeated += 1
            continue
        words[word] = None
        held.append((number, numbers))
        if len(held) == LINES_AT_ONCE:
            chunks.append(_numbers(held, width, path))
            held = []
    if not read:
        raise DataError(f"{path} has no vectors")
    if promised and promised != read:
        says = f"{path} says in its first line that it has {promised:,} vectors, and has {read:,}"
        raise DataError(f"{says}; download it again, or mend that line")
    left_out = f"{repeated:,} vectors of words that came before were left out: the first of equal words counts"
    notes = (*([f"{blank:,} blank lines were left out"] if blank else []), *([left_out] if repeated else []))
    return Source(np.concatenate([*chunks, _numbers(held, width, path)]), list(words), True, notes)


def _split(path: Path, number: int, line: bytes, width: int, promised: bool) -> tuple[bytes, bytes]:
    """The word and the numbers of a line."""
    if width < 1:
        raise DataError(f"{path}, line {number}: no word and numbers; is it a file of vectors?")
    count = line.count(b" ")
    if count == width:
        word, _, numbers = line.partition(b" ")
        return word, numbers
    parts = line.split(b" ")
    if count > width and DECIMAL.fullmatch(parts[-width - 1]):  # it begins earlier than it should
        count = next((n for n, part in enumerate(reversed(parts)) if n >= width and not DECIMAL.fullmatch(part)), count)
    elif count > width:
        return b" ".join(parts[:-width]), b" ".join(parts[-width:])
    expected = f"the first line says {width}" if promised else f"the first vector has {width}"
    raise DataError(f"{path}, line {number}: {count} numbers, {expected}; mend or remove the line")


def _numbers(lines: list[tuple[int, bytes]], width: int, path: Path) -> np.ndarray:
    try:
        return np.array(b" ".join(line for _, line in lines).split(), np.float32).reshape(len(lines), width)
    except ValueError:
        for number, line in lines:
            for part in line.split(b" "):
                try:
                    float(part)
                except ValueError:
                    wrong = part.decode("utf-8", "replace")
                    raise DataError(f"{path}, line {number}: {wrong!r} is no number; mend or remove the line") from None
        raise
