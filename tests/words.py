"""A small file with words, as `antembed compress` writes it."""

from functools import cache
from pathlib import Path

import numpy as np

from antembed.compression import compress
from antembed.tables.table import Table

WORDS = ["stock", "bond", "share", "price", "the", "cat", "dog", "käse", *(f"word{n}" for n in range(292))]


@cache
def compressed() -> Table:
    rng = np.random.default_rng(0)
    E = rng.normal(size=(len(WORDS), 16)) @ rng.normal(size=(16, 16)) + rng.normal(size=16)
    return compress(E, vocabulary=WORDS, budget="2x")


def write_words(path: Path) -> Path:
    compressed().save(path)
    return path
