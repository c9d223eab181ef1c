"""Clever look-up against the plain one: compiled mixes of every encoding, all cores, kept vectors."""

import numpy as np
import pytest

import antembed as ant
from antembed.tables import encodings
from antembed.tables.container import DamagedError
from antembed.tables.encodings import ENCODERS, CsrRows
from antembed.tables.number_formats import Nonzeros
from antembed.tables.rows import LINE, UncheckedRows, empty_rows, take_rows
from antembed.tables.save import read_table, serialize
from antembed.tables.sparse_product_kernel import STREAMED_FROM, streams


def factors(V=3000, K=37, d=24, seed=0):
    rng = np.random.default_rng(seed)
    T = (rng.exponential(1, (V, K)) * (rng.random((V, K)) < 0.1)).astype(np.float32)
    return T, rng.normal(size=(K, d)).astype(np.float32)


@pytest.mark.parametrize("encoding", ["plain", "bitmap", "csr", "packed"])
@pytest.mark.parametrize("values", ["fp32", "fp16", "int8"])
@pytest.mark.parametrize(("shared", "d"), [(False, 24), (True, 24), (False, 77)])  # 77: registers of each size, and a rest
def test_compiled_mixes_are_rows_times_anchors(encoding, values, shared, d, monkeypatch):
    T, A = factors(d=d)
    rng = np.random.default_rng(1)
    index = rng.integers(0, len(T), 5000) if shared else None
    table = read_table(serialize(T, A, row_index=index, values=values, encoding=encoding))
    ids = rng.integers(0, len(table), 2000)
    wanted = table.rows(ids) @ table.anchors
    for least in (0, np.inf):  # compiled, and NumPy
        monkeypatch.setattr(encodings, "COMPILED_FROM", least)
        np.testing.assert_allclose(table[ids], wanted, atol=2e-6 * np.abs(wanted).max())
        np.testing.assert_allclose(table[ids[:5]], wanted[:5], atol=2e-6 * np.abs(wanted).max())


@pytest.mark.parametrize("encoding", ["bitmap", "csr"])
@pytest.mark.parametrize("d", [136, 77])  # 77: a row does not begin where a register may be streamed to
def test_large_results_are_streamed(encoding, d):
    T, A = factors(d=d)
    ids = np.random.default_rng(1).integers(0, len(T), STREAMED_FROM // d + 1)
    found = read_table(serialize(T, A, encoding=encoding))[ids]
    assert streams(found) == (d == 136)
    assert not streams(found[:-1])
    np.testing.assert_allclose(found, (T @ A)[ids], atol=2e-6 * np.abs(found).max())


def test_results_begin_with_a_cache_line():
    kept = [empty_rows(n, 5) for n in range(1, 40)]
    assert [rows.shape for rows in kept] == [(n, 5) for n in range(1, 40)]
    assert all(rows.ctypes.data % LINE == 0 and rows.flags.c_contiguous and rows.flags.writeable for rows in kept)


def test_the_compiled_route_is_taken(monkeypatch):
    T, A = factors()
    table = read_table(serialize(T, A, encoding="csr"))
    monkeypatch.setattr(CsrRows, "__call__", None)
    many = np.zeros(1 + encodings.COMPILED_FROM // A.size, np.int64)
    np.testing.assert_allclose(table[many][-1], T[0] @ A, atol=1e-5)
    with pytest.raises(TypeError):  # few: rows times anchors
        table[many[:-1]]


@pytest.mark.parametrize("least", [0, np.inf])  # compiled, and NumPy
def test_a_column_that_is_none_is_damage(least, monkeypatch):
    monkeypatch.setattr(encodings, "COMPILED_FROM", least)
    T, A = factors()
    arrays = ENCODERS["csr"](Nonzeros.of(T))
    arrays["columns"][5] = 200
    rows = UncheckedRows(CsrRows(arrays["counts"], arrays["columns"], arrays["values"], len(A)))
    with pytest.raises(DamagedError, match=r"anchor that is none|a row is damaged"):
        rows.vectors(np.arange(10), A)


@pytest.mark.parametrize("method", ["transform", "sparse"])
def test_all_cores_decode_what_one_does(method, monkeypatch):
    rng = np.random.default_rng(0)
    E = (rng.normal(size=(3000, 24)) @ rng.normal(size=(24, 24))).astype(np.float32)
    table = ant.compress(E, budget="10x", method=method)
    ids = rng.integers(0, 3000, 8000)
    found = {}
    for cpus in (1, 2, 3):
        monkeypatch.setattr("antembed.native.threads.usable_cpus", lambda cpus=cpus: cpus)
        found[cpus] = table[ids]
    np.testing.assert_array_equal(found[1], found[2])
    np.testing.assert_array_equal(found[1], found[3])


@pytest.mark.parametrize("method", ["transform", "sparse"])
def test_rows_that_come_again_are_decoded_once_and_streamed(method):
    E = np.random.default_rng(0).normal(size=(400, 64)).astype(np.float32)
    table = ant.compress(E, budget="12x", method=method)
    few = np.random.default_rng(1).permutation(400)
    ids = np.concatenate([few, few[:100], np.full(STREAMED_FROM // 64, 7)])
    found = table[ids]
    assert streams(found)
    np.testing.assert_allclose(found, table.rows(np.arange(400))[ids] @ table.anchors, atol=2e-6 * 64 * np.abs(E).max())


@pytest.mark.parametrize("method", ["transform", "sparse"])
def test_rows_are_the_same_however_they_were_reached(method):
    """A look-up remembers where rows begin; the next ones start there."""
    rng = np.random.default_rng(0)
    E = (rng.normal(size=(1000, 24)) @ rng.normal(size=(24, 24)) * rng.exponential(1, (1000, 1))).astype(np.float32)
    contents = ant.compress(E, budget="10x", method=method).to_bytes()
    table = read_table(contents)
    wanted = table.rows(np.arange(1000))
    per_block = table.rows.per_block
    assert 1 < per_block < 1000
    known = np.arange(1000) % per_block != 0  # the others begin with their blocks
    np.testing.assert_array_equal(table.rows.entries > 0, known)
    again = read_table(contents)
    for ids in ([999], [per_block - 1, 999], [per_block, 0, per_block - 1], rng.permutation(1000), [1, 1, 998]):
        np.testing.assert_array_equal(again.rows(np.array(ids)), wanted[ids])
    np.testing.assert_array_equal(again.rows.entries, table.rows.entries)


@pytest.mark.parametrize(("size", "width"), [(10, 19), (5000, 19), (1 + STREAMED_FROM // 72, 72)])
def test_rows_are_copied_to_their_places(size, width, monkeypatch):
    monkeypatch.setattr("antembed.tables.rows.COPIED_FROM", 1000)
    rng = np.random.default_rng(0)
    rows, where = rng.random((300, width)).astype(np.float32), rng.integers(0, 300, size)
    np.testing.assert_array_equal(take_rows(rows, where), rows[where])


@pytest.mark.parametrize("rows", [1, 7, 500, 10_000])
def test_kept_vectors_are_the_same(rows):
    T, A = factors(V=800)
    table, plain = (read_table(serialize(T, A, encoding="csr")) for _ in range(2))
    table.keep(rows)
    rng = np.random.default_rng(0)
    for size in (1, 3, 400, 400, 2000):
        ids = np.minimum(rng.zipf(1.3, size) - 1, 799)
        np.testing.assert_allclose(table[ids], plain[ids], atol=1e-5)
    cache = table._cache
    assert cache.hits + cache.misses == 1 + 3 + 400 + 400 + 2000
    if rows >= 800:
        before = cache.misses
        np.testing.assert_array_equal(table[ids], table[ids])
        assert cache.misses == before
    table[ids][:] = 0  # a caller's own array
    np.testing.assert_allclose(table[ids], plain[ids], atol=1e-5)
    table.keep(0)
    assert table._cache is None
    with pytest.raises(ValueError, match="-1 vectors cannot be kept"):
        table.keep(-1)
