"""Bags, scores and neighbours are those of the dense table, however the file is encoded."""

import numpy as np
import pytest
from tests.words import WORDS, write_words

import antembed as ant
from antembed.tables import neighbours as products
from antembed.tables.encodings import ENCODERS
from antembed.tables.save import load_table, read_table, serialize

RNG = np.random.default_rng(0)
T = (RNG.random((90, 20)) * (RNG.random((90, 20)) < 0.2)).astype(np.float32)
A = RNG.standard_normal((20, 6)).astype(np.float32)
ATOL = 1e-5  # of sums of some twenty terms of size one


@pytest.fixture(params=[*ENCODERS, "coded", "no anchors", "shared rows"])
def table(request, tmp_path, monkeypatch):
    monkeypatch.setattr(products, "CHUNK", 32)  # several chunks
    if request.param == "coded":
        return load_table(write_words(tmp_path / "words.ant"))
    if request.param == "no anchors":
        return read_table(serialize(T, None, bias=np.arange(90.0)))
    if request.param == "shared rows":
        return read_table(serialize(T, A, row_index=RNG.integers(0, 90, 200)))
    return read_table(serialize(T, A, encoding=request.param, bias=np.arange(90.0), offset=2.0))


@pytest.mark.parametrize("mode", ["mean", "sum"])
def test_bags_are_sums_of_dense_rows(table, mode):
    E, ids = table[:], RNG.integers(0, 90, 100)
    starts = np.array([0, 0, 3, 40, 40, 90, 100])  # empty first, in the middle and last; longer than a piece
    weights = RNG.standard_normal(100).astype(np.float32) if mode == "sum" else None
    found = table.bag(ids, starts, mode, weights)
    for n, (a, b) in enumerate(zip(starts, [*starts[1:], 100], strict=True)):
        rows = E[ids[a:b]] * (1 if weights is None else weights[a:b, None])
        wanted = np.zeros(E.shape[1]) if a == b else getattr(rows, mode)(0)
        np.testing.assert_allclose(found[n], wanted, rtol=1e-4, atol=ATOL * (1 if mode == "mean" else b - a + 1))
    square = ids.reshape(20, 5)
    np.testing.assert_allclose(table.bag(square), E[square].mean(1), rtol=1e-4, atol=ATOL)


def test_bags_of_words(tmp_path):
    table = load_table(write_words(tmp_path / "words.ant"))
    found = table.bag(["cat", "dog", "stock"], [0, 2])
    np.testing.assert_allclose(found[0], (table["cat"] + table["dog"]) / 2, rtol=1e-4, atol=ATOL)
    np.testing.assert_allclose(found[1], table["stock"], rtol=1e-4, atol=ATOL)
    assert table.bag([], [0]).tolist() == [[0.0] * 16]


@pytest.mark.parametrize(
    ("ids", "offsets", "more", "complaint"),
    [
        ([1, 2], None, {}, "no offsets; give ids"),
        ([[1, 2]], [0], {}, r"shape \(1, 2\); with offsets they are one row"),
        ([1, 2], [1], {}, "begin with 0, rise, and end at 2"),
        ([1, 2], [0, 3], {}, "end at 2 at most"),
        ([1, 2], [0], {"mode": "max"}, "unknown mode 'max'; there are: mean, sum"),
        ([1, 2], [0], {"weights": [1, 2]}, "weights go with mode='sum'"),
        ([1, 2], [0], {"weights": [1], "mode": "sum"}, r"weights have the shape \(1,\), the ids \(2,\)"),
    ],
)
def test_bad_bags(ids, offsets, more, complaint):
    with pytest.raises(ValueError, match=complaint):
        read_table(serialize(T, A)).bag(ids, offsets, **more)


@pytest.mark.parametrize("queries", [1, 40])  # in anchor space, and not where K > d
def test_scores_are_dense_products(table, queries):
    E = table[:]
    hidden = RNG.standard_normal((queries, E.shape[1])).astype(np.float32)
    wanted = hidden @ E.T
    np.testing.assert_allclose(table.scores(hidden), wanted, rtol=1e-4, atol=10 * ATOL)
    np.testing.assert_allclose(table.scores(hidden[0]), wanted[0], rtol=1e-4, atol=10 * ATOL)
    with_bias = wanted + table.bias_of(np.arange(len(E)))
    np.testing.assert_allclose(table.scores(hidden, bias=True), with_bias, rtol=1e-4, atol=10 * ATOL)
    ids, best = table.scores(hidden, k=7)
    assert ids.shape == best.shape == (queries, 7)
    np.testing.assert_allclose(best, -np.sort(-wanted, axis=1)[:, :7], rtol=1e-4, atol=10 * ATOL)
    np.testing.assert_allclose(best, np.take_along_axis(wanted, ids, 1), rtol=1e-4, atol=10 * ATOL)
    assert table.scores(hidden.reshape(1, queries, -1), k=500)[0].shape == (1, queries, len(E))


def test_bad_scores():
    table = read_table(serialize(T, A))
    with pytest.raises(ValueError, match=r"hidden has the shape \(5,\), vectors here have 6 numbers"):
        table.scores(np.zeros(5))
    with pytest.raises(ValueError, match="k is 0; ask for 1 or more"):
        table.scores(np.zeros(6), k=0)


def test_neighbours_are_those_of_the_dense_table(table):
    E = table[:]
    cosine = E @ E[7] / np.maximum(np.linalg.norm(E, axis=1) * np.linalg.norm(E[7]), 1e-12)
    cosine[7] = -np.inf
    for query in (7, WORDS[7]) if table.words is not None else (7,):
        found = table.most_similar(query, k=5)
        np.testing.assert_allclose([score for _, score in found], -np.sort(-cosine)[:5], rtol=1e-4, atol=ATOL)
        assert query not in {name for name, _ in found}
    assert table.most_similar(E[7], k=1)[0][1] == pytest.approx(1, abs=1e-4)
    assert len(table.most_similar(7, k=10_000)) == len(E) - 1
    with pytest.raises(ValueError, match="a query has the shape"):
        table.most_similar(np.zeros(3))


def test_sparse_codes_are_multiplied_as_vectors():
    """Rows of few weights of many anchors: never in full, with the same results."""
    E = np.random.default_rng(0).standard_normal((600, 8)).astype(np.float32)
    table = ant.compress(E, budget="3x", method="sparse")
    dense = table[:]
    np.testing.assert_allclose(table.bag([3, 1, 4, 1], [0, 3]), [dense[[3, 1, 4]].mean(0), dense[1]], atol=1e-5)
    np.testing.assert_allclose(table.scores(E[:3]), E[:3] @ dense.T, atol=1e-4)
    np.testing.assert_allclose(table.lengths, np.linalg.norm(dense, axis=1), rtol=1e-5)
