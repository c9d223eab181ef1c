"""How long documents are before they are cut.

Only documents that fill the limit can be longer. Their words are counted in a sample of them, so that reading stays as fast.
"""

import numpy as np
import polars as pl

from antembed.classify.tokenizer import Numberer
from antembed.data.vocabulary import SPECIAL

SAMPLE = 512  # documents of a piece whose words are all counted
SHARE = 0.95


class Lengths:
    """Count the words of documents that were cut at `limit` words; None: none were."""

    def __init__(self, limit: int | None):
        self.limit = limit
        self._whole: list[np.ndarray] = []  # lengths of sampled documents
        self._weights: list[np.ndarray] = []  # of how many each is an example

    def add(self, texts: pl.Series, sizes: np.ndarray) -> None:
        """A piece of texts and the words that were used of each."""
        if self.limit is None:
            return
        full = np.flatnonzero(sizes == self.limit)
        if not len(full):
            return
        some = full[:: -(-len(full) // SAMPLE)]
        with Numberer(list(SPECIAL), threads=1) as numberer:  # a fixed vocabulary, since only the number of words counts
            ((_, whole),) = numberer(texts.gather(some), None)
        self._whole.append(whole)
        self._weights.append(np.full(len(some), len(full) / len(some)))

    def finish(self, sizes: np.ndarray) -> tuple[int, int]:
        """How many documents are longer than the limit, and the length that 95 % do not exceed. `sizes`: of all, cut."""
        if not self._whole:
            return 0, int(np.quantile(sizes, SHARE, method="inverted_cdf"))
        whole, weights = np.concatenate(self._whole), np.concatenate(self._weights)
        assert self.limit is not None
        cut = round(float(weights[whole > self.limit].sum()))
        short = np.bincount(sizes[sizes < self.limit], minlength=1)  # (longest + 1,): documents of each length
        lengths = np.concatenate([np.arange(len(short)), whole])
        order = np.argsort(lengths, kind="stable")
        below = np.cumsum(np.concatenate([short, weights])[order])
        return cut, int(lengths[order][np.searchsorted(below, SHARE * len(sizes) - 1e-6)])
