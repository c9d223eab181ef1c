"""How good lists of items are; tables/serving_ranking.py makes them."""

from collections.abc import Iterator

import numpy as np


def hits(lists: np.ndarray, wanted: Iterator[np.ndarray]) -> Iterator[tuple[np.ndarray, int]]:
    """For each list: which of its places are wanted, and how many are wanted in all."""
    for items, those in zip(lists, wanted, strict=True):
        yield np.isin(items, those), len(those)


def recall_at(lists: np.ndarray, wanted: Iterator[np.ndarray]) -> float:
    """Mean over lists of: wanted items in the list ÷ as many as could be there. Lists without any wanted are left out."""
    shares = [found.sum() / min(n, len(found)) for found, n in hits(lists, wanted) if n]
    return float(np.mean(shares)) if shares else float("nan")


def ndcg_at(lists: np.ndarray, wanted: Iterator[np.ndarray]) -> float:
    """Mean over lists of: Σ over wanted items of 1/log2(place + 1) ÷ the best such sum. Lists without any are left out."""
    gains = []
    for found, n in hits(lists, wanted):
        if n:
            discount = 1 / np.log2(np.arange(2, len(found) + 2))
            gains.append((found * discount).sum() / discount[: min(n, len(found))].sum())
    return float(np.mean(gains)) if gains else float("nan")
