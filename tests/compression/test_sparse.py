"""Sparse codes of many anchors: two decoders agree, goals are met, and on rows made of few anchors they lose less."""

import json

import numpy as np
import pytest
from tests.command import call

import antembed as ant
from antembed.compression import sparse_anchors as sparse
from antembed.compression.goal import Goal, opened, relative_error, weighted
from antembed.compression.quality import compare
from antembed.tables.container import DamagedError
from antembed.tables.sparse_entropy_rows import SparseCodedRows, reached

GOAL = Goal(size=12_000)


def planted(V=1200, d=48, K=100, seed=0, noise=0.02):
    """Rows made of three of K anchors, and a mean."""
    rng = np.random.default_rng(seed)
    A = rng.normal(size=(K, d))
    T = np.zeros((V, K))
    for row in T:
        row[rng.choice(K, 3, replace=False)] = rng.uniform(1, 2, 3)
    return (T @ A + 1 + noise * rng.normal(size=(V, d))).astype(np.float32)


@pytest.fixture(scope="module")
def E():
    return planted()


@pytest.mark.parametrize("apart", [True, False])
def test_the_compiled_decoder_is_the_plain_one(E, apart, monkeypatch):
    coded = sparse.fit(E, GOAL, split_norms=apart, weighting=0.25, num_anchors=100)
    rows = SparseCodedRows(coded.arrays, dict(coded.about))
    onto = np.random.default_rng(0).normal(size=(len(rows.group) + 1, 21)).astype(np.float32)
    for ids in (np.array([0, 3, 700, 700, 1199]), np.arange(1200)[::-1]):
        with monkeypatch.context() as without:
            without.setattr("antembed.tables.sparse_entropy_rows.kernels", lambda name: None)
            wanted, plain = rows(ids), rows.vectors(ids, onto)
        np.testing.assert_array_equal(rows(ids), wanted)
        terms = (np.abs(wanted) @ np.abs(onto)).max()
        np.testing.assert_allclose(rows.vectors(ids, onto), wanted @ onto, rtol=0, atol=2e-6 * terms)
        np.testing.assert_allclose(plain, wanted @ onto, rtol=0, atol=2e-6 * terms)


def test_rows_times_anchors_are_the_vectors(E):
    coded = sparse.fit(E, GOAL, num_anchors=100, split_norms=True)
    table = ant.Table(coded.arrays, dict(coded.about), coded.size)
    ids = np.array([[5, 5], [1199, 0]])
    np.testing.assert_allclose((table.rows(ids.reshape(-1)) @ table.anchors).reshape(2, 2, -1), table[ids], atol=1e-4)
    assert (table.rows(np.arange(1200)) >= 0).all()


def test_what_is_coded_is_what_was_chosen(E):
    """The file's weights are those of the descent, in the same places."""
    rows = weighted(E, 0.0, None, 0.25)
    A = sparse.rounded(rows[:64])
    known = sparse.Trained(A, sparse.first_model(64, 60.0), 0.5, 0.0, 48)
    codes = sparse.chosen_by(known, 0.5)(rows[:])
    coded = sparse.encode(rows, codes, sparse.learned(codes, 64), A)
    wanted = np.zeros((1200, 64), np.float32)
    wanted[np.repeat(np.arange(1200), codes.count), codes.index[codes.used]] = codes.value[codes.used] * np.float32(0.5)
    found = SparseCodedRows(coded.arrays, dict(coded.about))(np.arange(1200))
    np.testing.assert_array_equal(found[:, :-1], wanted[:, wanted.any(0)])
    bits = 8 * len(coded.arrays["payload"])
    assert bits < 1.05 * sparse.estimated_bits(codes, sparse.learned(codes, 64)) + 32 * len(coded.arrays["offsets"])


def test_the_descent_never_rises_above_zero_weights(E):
    rows = weighted(E, 0.0, None, 0.25)
    X, A = rows[:], sparse.rounded(rows[:64])
    codes, fitted, _ = sparse.coded_and_refitted(rows, sparse.Trained(A, sparse.first_model(64, 60.0), 0.5, 0.0, 48), 0.5)
    left = ((X - sparse.combined(codes, A)) ** 2).sum(1)
    assert (left <= (X**2).sum(1) * 1.001).all()
    assert ((X - sparse.combined(codes, fitted)) ** 2).sum() < left.sum()


def test_any_number_of_threads_gives_the_same(E, monkeypatch):
    monkeypatch.setattr("antembed.native.threads.PARALLEL_FROM", 1)
    monkeypatch.setattr(sparse, "STAGES", ((1000, 2), (5000, 1)))
    found = []
    for threads in (1, 3):
        monkeypatch.setattr(sparse, "usable_cpus", lambda threads=threads: threads)
        found.append(sparse.fit(E, GOAL, num_anchors=64))
    for name, array in found[0].arrays.items():
        np.testing.assert_array_equal(array, found[1].arrays[name])


def test_rows_of_few_anchors_are_coded_sparsely(E):
    """Where rows are made of few anchors, `auto` finds sparse codes."""
    errors = {}
    for method in ("transform", "sparse", "auto"):
        table = ant.compress(E, budget="18x", method=method, split_norms=False)
        assert table.size <= E.nbytes / 18
        errors[method] = compare(E, table[:])["relative_error"]
    assert errors["auto"] == errors["sparse"] < 0.8 * errors["transform"]
    assert table.encoding == "sparse"


@pytest.mark.parametrize("method", ["transform", "sparse"])
def test_a_tolerance_is_met_and_used(E, method):
    tolerance = 0.02 if method == "transform" else 0.2
    table = ant.compress(E, tolerance=tolerance, method=method, split_norms=False)
    error = compare(E, table[:])["relative_error"]
    assert 0.85 * tolerance < error <= tolerance
    assert ant.compress(E, tolerance=f"{200 * tolerance}%", method=method, split_norms=False).size < table.size


def test_tolerances_that_are_none(E):
    with pytest.raises(ValueError, match="a budget of 8x and a tolerance of 1% were given; choose one"):
        ant.compress(E, budget="8x", tolerance="1%")
    with pytest.raises(ValueError, match=r"'2' is no tolerance; say 1% or 0\.5%"):
        ant.compress(E, tolerance="2")
    with pytest.raises(ValueError, match="unknown method 'best'; there are: auto, transform, sparse"):
        ant.compress(E, method="best")
    with pytest.raises(ValueError, match="too few for 1,200 vectors"):
        sparse.fit(E, Goal(size=2000))


def test_chances_are_whole_numbers():
    assert reached(4, 1 << 29).tolist() == [0, 32768, 49152, 57344, 61440]


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("widths", lambda a: a * 0),
        ("groups", lambda a: a + 100),
        ("value_frequencies", lambda a: a // 2),
        ("norm_frequencies", lambda a: a // 2),
        ("offsets", lambda a: a[::-1]),
        ("payload", lambda a: a[:-5]),
        ("anchor_scales", lambda a: a[1:]),
    ],
)
def test_damaged_arrays_are_errors(coded_apart, name, change):
    arrays = coded_apart.arrays | {name: change(coded_apart.arrays[name])}
    with pytest.raises(DamagedError):
        ant.Table(arrays, dict(coded_apart.about), 0)


@pytest.fixture(scope="module")
def coded_apart(E):
    return sparse.fit(E, GOAL, num_anchors=64, split_norms=True)


def test_damaged_bytes_never_crash(coded_apart):
    rng = np.random.default_rng(0)
    for _ in range(40):
        payload = coded_apart.arrays["payload"].copy()
        payload[rng.integers(len(payload), size=3)] ^= 1 << 5
        table = ant.Table(coded_apart.arrays | {"payload": payload}, dict(coded_apart.about), 0)
        try:
            assert table[:].shape == (1200, 48)
        except DamagedError:
            continue


def test_weighted_rows_come_back(E):
    coded = sparse.fit(E, GOAL, num_anchors=100, weighting=0.25)
    assert relative_error(E, opened(coded), 0.25) < relative_error(E, opened(coded))


def test_on_the_command_line(tmp_path, E):
    np.save(tmp_path / "v.npy", E)
    found = json.loads(
        call("compress", tmp_path / "v.npy", tmp_path / "v.ant", "--tolerance", "20%", "--method", "sparse", "--json")
    )
    assert found["method"] == "sparse"
    assert 0.15 < found["relative_error"] <= 0.2
    assert ant.load_table(tmp_path / "v.ant")[:].shape == E.shape
