"""Co-occurrence against its plain twin, with and without thresholds, in one pass and in many; features by SVD."""

from itertools import pairwise

import numpy as np
import pytest
from scipy import sparse

from antembed.data.cooccurrence import cooccurrences, positive_pmi, svd_features

V = 30
ALL = {"min_count": 1, "min_pmi": -np.inf}


def cooccurrence_plain(tokens: np.ndarray, starts: np.ndarray, V: int, window: int) -> np.ndarray:
    """All counts (V, V), by a plain loop."""
    counts = np.zeros((V, V), np.int64)
    for first, last in pairwise(starts):
        for i in range(first, last):
            for j in range(first, last):
                u, v = tokens[i], tokens[j]
                if i != j and abs(i - j) <= window and u != v and min(u, v) >= 2:
                    counts[u, v] += 1
    return counts


def documents(seed=0, n=25):
    rng = np.random.default_rng(seed)
    lengths = rng.integers(0, 40, n)  # some are empty
    starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return (V * rng.random(starts[-1]) ** 2).astype(np.int32), starts


@pytest.mark.parametrize("at_once", [1, 50, 1 << 20])
@pytest.mark.parametrize("window", [1, 3, 10, 100])
def test_counts_are_those_of_the_plain_loop(window, at_once, monkeypatch):
    monkeypatch.setattr("antembed.data.cooccurrence.TOKENS", at_once)
    tokens, starts = documents()
    found = cooccurrences(tokens, starts, V, window=window, **ALL)
    np.testing.assert_array_equal(found.toarray(), cooccurrence_plain(tokens, starts, V, window))
    assert found.has_canonical_format


@pytest.mark.parametrize(("min_count", "min_pmi"), [(3, -np.inf), (1, 0.2), (4, 0.1)])
def test_thresholds_are_those_of_the_plain_counts(min_count, min_pmi):
    tokens, starts = documents(1)
    counts = cooccurrence_plain(tokens, starts, V, 4)
    sums = counts.sum(1)
    with np.errstate(divide="ignore", invalid="ignore"):
        pmi = np.log(counts * counts.sum() / np.outer(sums, sums))
    expected = np.where((counts >= min_count) & (pmi >= min_pmi), counts, 0)
    found = cooccurrences(tokens, starts, V, window=4, min_count=min_count, min_pmi=min_pmi).toarray()
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(found, found.T)
    assert 0 < (found > 0).sum() < (counts > 0).sum()


def test_padding_unknown_and_oneself_are_no_company():
    tokens, starts = np.array([0, 1, 2, 2, 3], np.int32), np.array([0, 5])
    assert cooccurrences(tokens, starts, 5, **ALL).toarray().sum() == 4
    assert cooccurrences(tokens, starts, 5, reserved=0, **ALL).toarray()[0].tolist() == [0, 1, 2, 1, 0]
    assert cooccurrences(np.empty(0, np.int32), np.array([0]), 5).nnz == 0


def test_a_memory_map_will_do(tmp_path):
    tokens, starts = documents()
    tokens.tofile(tmp_path / "tokens")
    mapped = np.memmap(tmp_path / "tokens", np.int32, "r")
    assert (cooccurrences(mapped, starts, V) != cooccurrences(tokens, starts, V)).nnz == 0


def test_features_are_the_truncated_svd():
    tokens, starts = documents(3, n=60)
    counts = cooccurrences(tokens, starts, V, **ALL)
    features = svd_features(counts, 6)
    U, S, _ = np.linalg.svd(positive_pmi(counts).toarray())
    np.testing.assert_allclose(np.abs(features), np.abs(U[:, :6] * np.sqrt(S[:6])), atol=1e-4)
    np.testing.assert_array_equal(features, svd_features(counts, 6))
    assert not features[:2].any()  # padding and unknown have no company
    with pytest.raises(ValueError, match=f"{V} objects cannot have {V} features"):
        svd_features(counts, V)


def test_words_of_one_topic_lie_together():
    rng = np.random.default_rng(0)
    topics = np.repeat(rng.integers(0, 2, 300), 20)
    tokens = (2 + 14 * topics + rng.integers(0, 14, len(topics))).astype(np.int32)
    X = svd_features(cooccurrences(tokens, np.arange(0, 6001, 20), V, **ALL), 2)[2:]
    alike = 0.5 * np.linalg.norm(X, axis=1)[:, None] * np.linalg.norm(X, axis=1) < (X @ X.T)
    np.testing.assert_array_equal(alike, np.kron(np.eye(2), np.ones((14, 14))) > 0)


def test_pmi_of_independent_words_is_zero():
    counts = sparse.csr_array(np.outer([1, 2, 3], [1, 2, 3]).astype(float))
    assert positive_pmi(counts).toarray() == pytest.approx(np.zeros((3, 3)), abs=1e-12)
