"""Lists of items against the plain way of making them."""

import numpy as np
import pytest

from antembed.recommend import ranking
from antembed.tables import neighbours as lists_of

rng = np.random.default_rng(0)


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
    assert ranking.recall_at(lists, iter(wanted)) == pytest.approx((2 / 3 + 1) / 2)
    first = (1 + 1 / 2) / (1 + 1 / np.log2(3) + 1 / 2)
    assert ranking.ndcg_at(lists, iter(wanted)) == pytest.approx((first + 1 / 2) / 2)
    assert np.isnan(ranking.ndcg_at(lists[:1], iter([np.array([])])))
