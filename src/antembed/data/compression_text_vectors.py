"""Vectors in text files, as GloVe and word2vec write them: a word and its numbers a line.

Words may have spaces, so a line with too many numbers could be read as a longer word, and a file that was cut as a shorter one.
What looks like that is an error, with the line.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from antembed.data.data_plain import DataError, decompressed

PIECE = 1 << 16  # lines that are held as text
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
        if len(held) == PIECE:
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
