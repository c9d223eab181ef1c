"""Synthetic labelled text of any size: Zipf-distributed words, each of which is more frequent in one class."""

import io
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import polars as pl

from antembed.data.synthetic import zipf
from antembed.files import write_atomically

PIECE = 1 << 15  # documents at a time
LETTERS = "abcdefghijklmnopqrstuvwxyz"
TITLE = 4  # words


def names(V: int) -> list[str]:
    """V words, the most frequent first: a, b, …, z, aa, ba, …"""
    found: list[str] = []
    last = [""]
    while len(found) < V:
        last = [head + letter for letter in LETTERS for head in last]
        found += last
    return found[:V]


def topics(
    n: int, V: int, *, classes: int = 4, length: int = 50, purity: float = 0.3, exponent: float = 1.0, seed: int = 0
) -> Iterator[pl.DataFrame]:
    """n documents of `length` words, piece by piece: class (from 1), title, text.

    Word w belongs to class w mod classes. Words are drawn by Zipf's law; with probability `purity` a word is replaced by its
    neighbour in rank that belongs to the document's class. Each of the V words occurs at least once, if there is room.
    """
    if not (0 <= purity <= 1 and 2 <= classes <= V and length > TITLE):
        raise ValueError(
            f"0 ≤ purity ≤ 1, 2 ≤ classes ≤ V and length > {TITLE} are required, "
            f"got purity {purity}, {classes} classes, V = {V}, length {length}"
        )
    rng = np.random.default_rng(seed)
    words, below = pl.Series("word", names(V)), np.cumsum(zipf(V, exponent))
    apart = n * length // V  # distance between guaranteed words; 0: no room for them
    for first in range(0, n, PIECE):
        size = min(PIECE, n - first)
        about = rng.integers(0, classes, size)
        ids = np.minimum(np.searchsorted(below, rng.random((size, length))), V - 1)
        home = ids - ids % classes + about[:, None]
        ids = np.where((rng.random(ids.shape) < purity) & (home < V), home, ids)
        if apart:
            positions = np.arange(first * length, (first + size) * length)
            guaranteed = (positions % apart == 0) & (positions // apart < V)
            ids.reshape(-1)[guaranteed] = positions[guaranteed] // apart
        parts = [
            words.gather(part.reshape(-1)).reshape((size, part.shape[1])).arr.join(" ")
            for part in (ids[:, :TITLE], ids[:, TITLE:])
        ]
        yield pl.DataFrame({"class": about + 1, "title": parts[0], "text": parts[1]})


def write_topics(path: str | Path, n: int, V: int, **how: float) -> None:
    """The same as a CSV file in the layout of AG-News."""
    write_atomically(path, map(_csv, topics(n, V, **how)))  # type: ignore[arg-type]


def _csv(frame: pl.DataFrame) -> bytes:
    out = io.BytesIO()
    frame.write_csv(out, include_header=False, quote_style="always")
    return out.getvalue()
