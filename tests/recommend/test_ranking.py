"""Lists of items against the plain way of making them, and plain metrics of them."""

from collections.abc import Iterator

import numpy as np
import pytest

from antembed.tables import neighbours as lists_of

rng = np.random.default_rng(0)


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


def test_top_in_pieces_is_top_of_all(monkeypatch):
    queries, vectors, bias = (rng.standard_normal(shape).astype(np.float32) for shape in ((9, 4), (100, 4), (100,)))
    hidden = rng.integers(0, 9, 60), rng.integers(0, 100, 60)
    scores = queries @ vectors.T + bias
    scores[hidden] = -np.inf
    wanted = np.argsort(-scores, axis=1)[:, :12]
    for size in (7, 12, 64, 1000):
        monkeypatch.setattr(lists_of, "ITEMS_AT_ONCE", size)
        items, found = lists_of.best_items(queries, vectors, bias, 12, hidden)
        np.testing.assert_array_equal(items, wanted)
        np.testing.assert_allclose(found, np.take_along_axis(scores, wanted, axis=1), rtol=1e-5)


def test_ranking_metrics_by_hand():
    lists = np.array([[1, 2, 3], [4, 5, 6], [7, 8, 9]])
    wanted = [np.array([1, 3, 50]), np.array([6]), np.array([])]
    assert recall_at(lists, iter(wanted)) == pytest.approx((2 / 3 + 1) / 2)
    first = (1 + 1 / 2) / (1 + 1 / np.log2(3) + 1 / 2)
    assert ndcg_at(lists, iter(wanted)) == pytest.approx((first + 1 / 2) / 2)
    assert np.isnan(ndcg_at(lists[:1], iter([np.array([])])))
