"""Compress a static model for given texts: frequent tokens are kept better, and sentences stay as similar as they were."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np

from antembed.compression import compress
from antembed.compression.goal import TooFewBytesError
from antembed.compression.quality import Progress, quiet
from antembed.data.text_file import DataError
from antembed.files import JSON
from antembed.tables.static_model import StaticModel, Tokens
from antembed.tables.table import Table
from antembed.tables.word_evaluation import spearman

HELD_OUT, FEWEST = 500, 100  # texts
EXPONENT = 0.25  # a row counts (how often it occurs)^½ in the squared error
UNSEEN = 0.2  # times that a row counts which does not occur


@dataclass
class Distilled:
    """The table that was kept, and the Spearman correlation of the held-out texts' similarities with the original's."""

    table: Table
    spearman: dict[str, float] = field(default_factory=dict)

    def consider(self, name: str, table: Table, spearman: float) -> None:
        """Take this table if it is better than what there is."""
        if spearman > max(self.spearman.values()):
            self.table = table
        self.spearman[name] = spearman
        self.spearman["after"] = max(self.spearman.values())


def check_texts(texts: list[str]) -> None:
    """Raise if they are too few."""
    if len(texts) < FEWEST:
        raise DataError(f"{len(texts)} texts are too few to tune a model on; give {FEWEST} or more, one a line")


def split(ids: list[list[int]], seed: int) -> tuple[list[list[int]], list[list[int]]]:
    """Texts to learn from, and others to compare by."""
    order = np.random.default_rng(seed).permutation(len(ids))
    held_out = min(HELD_OUT, len(ids) // 4)
    return [ids[n] for n in order[held_out:]], [ids[n] for n in order[:held_out]]


def importance(ids: Sequence[Sequence[int] | np.ndarray], rows: int) -> np.ndarray:
    """(rows,): how much each counts, by how often it occurs."""
    counts = np.bincount(np.concatenate(ids).astype(np.int64), minlength=rows) + UNSEEN
    weights: np.ndarray = (counts / counts.mean()) ** EXPONENT
    return weights


def rank_correlation(found: np.ndarray, wanted: np.ndarray) -> float:
    """Of the cosines of all pairs of sentences, by their vectors (n, d) of length 1."""
    pairs = np.triu_indices(len(found), 1)
    return spearman((found @ found.T)[pairs], (wanted @ wanted.T)[pairs])


def compress_for_texts(E: np.ndarray, tokens: Tokens, texts: list[str], *, progress: Progress = quiet, how: JSON) -> Distilled:
    """A static model's table, its rows weighed by the texts if sentences that were held out are better for it.

    `how`: other arguments of `compress`."""
    check_texts(texts)
    plain = compress(E, **how, progress=progress)
    ids = [text for text in StaticModel(plain, tokens).tokenize(texts, max_length=None) if text]
    if len(ids) < FEWEST:
        known = f"the tokenizer knows words of {len(ids)} of the {len(texts)} texts"
        raise DataError(f"{known}; give texts in the model's language")
    learned, held_out = split(ids, how.get("seed", 0))
    wanted = _sentences(E, tokens, held_out)
    before = rank_correlation(_sentences(plain[:], tokens, held_out), wanted)
    found = Distilled(plain, {"before": before, "after": before})
    rows = learned if tokens.rows is None else [tokens.rows[text] for text in learned]
    method = {"method": "transform", "by_frequency": False, "importance": importance(rows, len(E))}
    with suppress(TooFewBytesError):  # so small only sparse codes are
        weighted = compress(E, **how | method, progress=progress)
        found.consider("rows by frequency", weighted, rank_correlation(_sentences(weighted[:], tokens, held_out), wanted))
    return found


def _sentences(E: np.ndarray, tokens: Tokens, ids: list[list[int]]) -> np.ndarray:
    """Their means, of length 1."""
    rows = E if tokens.rows is None else E[tokens.rows]
    if tokens.weights is not None:
        rows = rows * tokens.weights[:, None].astype(np.float32)
    means = np.stack([rows[text].mean(0) for text in ids])
    return means / np.maximum(np.linalg.norm(means, axis=1, keepdims=True), 1e-12)
