"""The small file: four encodings, one answer; and what happens to bad files."""

import json
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st

from antembed.files import append_json, read_json_lines, write_atomically
from antembed.tables.container import TableError
from antembed.tables.encodings import ENCODERS, encode, encoded_sizes
from antembed.tables.number_formats import VALUES, Nonzeros, quantize
from antembed.tables.save import load_table, serialize
from antembed.tables.table import Table


def factors(V=40, K=11, d=5, density=0.3, seed=0):
    rng = np.random.default_rng(seed)
    T = rng.random((V, K)).astype(np.float32) * (rng.random((V, K)) < density)
    return T, rng.standard_normal((K, d)).astype(np.float32)


def rounding(T, A, eps=1e-6):
    """What sums of T·A in another order may differ by: `eps` of their terms, however small the sums are."""
    return eps * float((np.abs(T) @ np.abs(A)).max(initial=1e-30))


def opened(data: bytes, tmp_path) -> Table:
    write_atomically(tmp_path / "t.ant", data)
    return load_table(tmp_path / "t.ant")


@pytest.mark.parametrize("encoding", ENCODERS)
@pytest.mark.parametrize(("values", "tolerance"), [("fp32", 1e-6), ("fp16", 4e-3), ("int8", 2e-2)])
@pytest.mark.parametrize("K", [1, 8, 9, 64, 300])
def test_every_encoding_gives_the_vectors(encoding, values, tolerance, K, tmp_path):
    T, A = factors(K=K)
    table = opened(serialize(T, A, values=values, encoding=encoding), tmp_path)
    E = T @ A
    atol = tolerance * max(1, np.abs(E).max()) + rounding(T, A)
    np.testing.assert_allclose(table[:], E, atol=atol)
    np.testing.assert_allclose(table[7], E[7], atol=atol)
    plain = opened(serialize(T, A, values=values, encoding="plain"), tmp_path)
    np.testing.assert_allclose(table[:], plain[:], rtol=0, atol=rounding(T, A))
    assert table.nnz == plain.nnz == np.count_nonzero(T)
    assert table.encoding == encoding


@given(
    V=st.integers(1, 30),
    K=st.integers(1, 20),
    density=st.floats(0, 1),
    seed=st.integers(0, 99),
    encoding=st.sampled_from(list(ENCODERS)),
)
@settings(max_examples=60, deadline=None)
def test_look_up_of_any_ids_in_any_table(V, K, density, seed, encoding, tmp_path_factory):
    T, A = factors(V, K, 3, density, seed)
    table = opened(serialize(T, A, encoding=encoding), tmp_path_factory.mktemp("t"))
    ids = np.random.default_rng(seed).integers(0, V, (4, 3))
    np.testing.assert_allclose(table[ids], (T @ A)[ids], rtol=0, atol=rounding(T, A))


def test_ids_of_every_form(tmp_path):
    T, A = factors()
    table = opened(serialize(T, A), tmp_path)
    E = table[:]
    assert table[3].shape == (5,)
    assert table[[1, 2]].shape == (2, 5)
    assert table[np.zeros((2, 0), np.int64)].shape == (2, 0, 5)
    assert table[[]].shape == (0, 5)
    np.testing.assert_allclose(table[5:9], E[5:9], rtol=0, atol=rounding(T, A))
    np.testing.assert_allclose(table[np.uint8(3)], E[3], rtol=0, atol=rounding(T, A))
    assert len(table) == 40
    assert table.shape == (40, 5)


def test_bad_ids(tmp_path):
    table = opened(serialize(*factors()), tmp_path)
    with pytest.raises(IndexError, match=r"id 40 is outside a table of 40 rows \(0 to 39\)"):
        table[[1, 40]]
    with pytest.raises(IndexError, match="id -1 is outside"):
        table[-1]
    with pytest.raises(TypeError, match="integers, got float64"):
        table[[1.0]]


def test_auto_takes_the_smallest():
    for density, K in ((0.01, 300), (0.3, 16), (1.0, 8)):
        T, A = factors(500, K, 5, density)
        used = Nonzeros.of(T[:, T.any(0)])
        told = encoded_sizes(used, 4)
        assert len(serialize(T, A)) == min(len(serialize(T, A, encoding=name)) for name in told)
        assert told == {name: sum(a.nbytes for a in encode(used, name)[1].values()) for name in told}


def test_each_encoding_has_its_day():
    best = {
        encode(Nonzeros.of(factors(500, K, 5, density)[0]), "auto")[0] for density, K in ((0.005, 300), (0.3, 16), (1.0, 8))
    }
    assert best == set(ENCODERS) - {"packed"}  # which must be asked for


def test_a_plain_table_without_anchors(tmp_path):
    E = np.random.default_rng(0).standard_normal((9, 4)).astype(np.float32)
    table = opened(serialize(E, None), tmp_path)
    np.testing.assert_array_equal(table[:], E)
    assert table.parameters == 36


def test_unused_anchors_are_dropped(tmp_path):
    T, A = factors()
    T[:, 4] = 0
    table = opened(serialize(T, A), tmp_path)
    assert len(table.anchors) == 10
    np.testing.assert_allclose(table[:], T @ A, rtol=0, atol=rounding(T, A))


def test_a_table_of_zeros(tmp_path):
    table = opened(serialize(np.zeros((6, 3), np.float32), np.ones((3, 2), np.float32)), tmp_path)
    np.testing.assert_array_equal(table[:], np.zeros((6, 2)))


def test_biases_travel_along(tmp_path):
    T, A = factors()
    table = opened(serialize(T, A, bias=np.arange(40.0)), tmp_path)
    np.testing.assert_array_equal(table.bias_of([[3, 5]]), [[3, 5]])
    shared = opened(serialize(T, A, bias=np.array([2.5])), tmp_path)
    np.testing.assert_array_equal(shared.bias_of([1, 2]), [2.5, 2.5])
    none = opened(serialize(T, A), tmp_path)
    np.testing.assert_array_equal(none.bias_of([1, 2]), [0, 0])


def test_the_offset_is_added_to_every_bias(tmp_path):
    T, A = factors()
    own, one, none = (opened(serialize(T, A, bias=b, offset=3.5), tmp_path) for b in (np.arange(40.0), np.ones(1), None))
    np.testing.assert_array_equal(own.bias_of([[3, 0]]), [[6.5, 3.5]])
    np.testing.assert_array_equal(one.bias_of([1, 2]), [4.5, 4.5])
    np.testing.assert_array_equal(none.bias_of([1, 2]), [3.5, 3.5])
    assert own.bias_of([]).shape == (0,)
    assert own.parameters == none.parameters + 39  # a bias of 0 is none
    assert none.parameters == opened(serialize(T, A), tmp_path).parameters + 1
    with pytest.raises(ValueError, match="offset is nan; training has diverged"):
        serialize(T, A, offset=float("nan"))


@pytest.mark.parametrize(("values", "tolerance"), [("fp32", 0), ("fp16", 1e-3), ("int8", 1 / 127)])
def test_sparse_biases_take_a_bit_and_their_non_zeros(values, tolerance, tmp_path):
    T, A = factors(V=300)
    dense = np.random.default_rng(0).uniform(0.1, 1, 300).astype(np.float32)
    sizes = {}
    for zeros in (0, 99, 100, 250, 300):
        bias = np.where(np.arange(300) < zeros, 0, dense)
        data = serialize(T, A, bias=bias, values=values)
        table = opened(data, tmp_path)
        assert ("bias_bits" in safetensors.numpy.load(data)) == (zeros >= 100)
        np.testing.assert_allclose(table.bias_of(np.arange(300)), bias, rtol=0, atol=tolerance)
        np.testing.assert_array_equal(table.bias_of(np.arange(300)) == 0, bias == 0)
        assert table.parameters == table.nnz + A.size + 300 - zeros
        sizes[zeros] = len(data)
    assert sizes[300] < sizes[250] < sizes[100]
    with pytest.raises(ValueError, match=r"bias has the shape \(299,\) for 300 objects; give one number for each, or one"):
        serialize(T, A, bias=dense[1:])


@pytest.mark.parametrize("encoding", ENCODERS)
@pytest.mark.parametrize("values", VALUES)
def test_shared_rows(encoding, values, tmp_path):
    T, A = factors(V=12)
    row_index = np.random.default_rng(0).integers(0, 12, 700)
    own = opened(serialize(T, A, values=values, encoding=encoding), tmp_path)
    shared = opened(serialize(T, A, row_index=row_index, bias=np.arange(700.0), values=values, encoding=encoding), tmp_path)
    assert shared.shape == (700, 5)
    np.testing.assert_allclose(shared[:], own[:][row_index], rtol=0, atol=rounding(T, A))
    np.testing.assert_allclose(shared.bias_of([699]), [699], rtol=1e-3)
    assert shared.parameters == own.parameters + 699  # row_index are bytes, no parameters
    assert safetensors.numpy.load(serialize(T, A, row_index=row_index))["places"].dtype == np.uint8
    with pytest.raises(ValueError, match="row_index names row 12 of a table of 12 rows; valid are 0 to 11"):
        serialize(T, A, row_index=row_index + 1)


def test_int8_errs_by_half_a_scale_and_loses_no_non_zero():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((400, 6)) * np.array([1, 1e-3, 1e4, 1e-42, 0, 1]) * (rng.random((400, 6)) < 0.5)
    x[:50, 5] *= 1e-6
    x = x.astype(np.float32)
    codes, scales = quantize(x)
    np.testing.assert_array_equal(codes == 0, x == 0)
    error = np.abs(x - codes * scales.astype(np.float64))
    forced = (np.abs(codes) == 1) & (np.abs(x) < scales / 2)
    assert forced[:50, 5].any()
    assert (error <= np.where(forced, scales, scales / 2 * (1 + 1e-5))).all()
    assert (np.sign(codes) == np.sign(x)).all()


def test_int8_takes_about_a_quarter_of_the_bytes():
    E = np.random.default_rng(0).standard_normal((2000, 16)).astype(np.float32)
    bias = E[:, 0] + 9
    assert len(serialize(E, None, bias=bias, values="int8")) < 0.27 * len(serialize(E, None, bias=bias))


@pytest.mark.parametrize("values", VALUES)
def test_packed_is_smaller_where_columns_differ_in_use(values):
    rng = np.random.default_rng(0)
    T = rng.integers(1, 9, (3000, 48)) * (rng.random((3000, 48)) < rng.permutation(np.linspace(0, 0.5, 48) ** 2))
    T, A = T.astype(np.float32), rng.standard_normal((48, 4)).astype(np.float32)
    sizes = {name: len(serialize(T, A, values=values, encoding=name)) for name in ENCODERS}
    assert min(sizes, key=lambda name: sizes[name]) == "packed"
    packed = safetensors.numpy.load(serialize(T, A, values=values, encoding="packed"))
    assert ("coded_values" in packed) == values.startswith("int")


def test_a_file_of_version_1_opens(tmp_path):
    """As it was written before there were offsets, shared rows and int8."""
    about = {"version": 1, "encoding": "plain", "values": "fp32", "objects": 3, "columns": 2, "dimensions": 2}
    E = np.arange(6, dtype=np.float32).reshape(3, 2)
    arrays = {"weights": E, "bias": np.arange(3, dtype=np.float32)}
    table = opened(safetensors.numpy.save(arrays, {"antembed-table": json.dumps(about)}), tmp_path)
    np.testing.assert_array_equal(table[:], E)
    np.testing.assert_array_equal(table.bias_of([0, 1, 2]), [0, 1, 2])


def test_fewer_levels_are_smaller_when_packed(tmp_path):
    rng = np.random.default_rng(0)
    T = (rng.random((2000, 12)) * (rng.random((2000, 12)) < 0.3)).astype(np.float32)
    bias = rng.standard_normal(2000).astype(np.float32)
    sizes, errors = [], []
    for values in ("int8", "int6", "int5", "int4"):
        data = serialize(T, np.eye(12, dtype=np.float32), values=values, encoding="packed", bias=bias)
        table = opened(data, tmp_path)
        assert table.nnz == np.count_nonzero(T)
        sizes.append(len(data))
        errors.append(float(np.abs(table[:] - T).max()))
        assert np.abs(table.bias_of(np.arange(2000)) - bias).max() <= 1.01 * np.abs(bias).max() / 63  # ±1 for the smallest
    assert sizes == sorted(sizes, reverse=True)
    assert errors == sorted(errors)
    assert errors[1] < 1.01 / 31


def test_values_beyond_half_precision():
    T, A = factors()
    with pytest.raises(ValueError, match=r"A has a value of .*beyond fp16; take values='fp32'"):
        serialize(T, A * 1e6, values="fp16")
    with pytest.raises(ValueError, match=r"A has a value of .*beyond fp16; take values='fp32'"):
        serialize(T, A * 1e6, values="int8")
    T[0, 0] = np.nan
    with pytest.raises(ValueError, match="T has a value of nan; training has diverged"):
        serialize(T, A)


def test_the_same_table_gives_the_same_bytes():
    assert len({serialize(*factors(), bias=np.arange(40.0)) for _ in range(20)}) == 1


def test_unknown_names():
    with pytest.raises(ValueError, match="unknown values 'int3'; there are: fp32, fp16, int8"):
        serialize(*factors(), values="int3")
    with pytest.raises(ValueError, match="unknown encoding 'zip'; there are: auto, plain, bitmap, csr, packed"):
        serialize(*factors(), encoding="zip")


class TestBadFiles:
    def test_truncated(self, tmp_path):
        data = serialize(*factors())
        for length in (0, 4, 40, len(data) // 2, len(data) - 1):
            (tmp_path / "t.ant").write_bytes(data[:length])
            with pytest.raises(TableError, match=rf"t.ant is damaged: .* a file of {length} bytes; copy it again"):
                load_table(tmp_path / "t.ant")

    def test_compressed_bytes_that_are_none(self, tmp_path):
        data = safetensors.numpy.load(serialize(*factors(), encoding="packed"))
        about = {"version": 2, "encoding": "packed", "values": "fp32", "objects": 40, "columns": 11, "dimensions": 5}
        data["coded_bits"] = data["coded_bits"][::-1].copy()
        (tmp_path / "t.ant").write_bytes(safetensors.numpy.save(data, {"antembed-table": json.dumps(about)}))
        with pytest.raises(TableError, match=r"t.ant is damaged: compressed bytes"):
            load_table(tmp_path / "t.ant")

    def test_foreign(self, tmp_path):
        (tmp_path / "t.ant").write_bytes(safetensors.numpy.save({"x": np.zeros(3)}))
        with pytest.raises(TableError, match="no antembed table: its header says nothing, expected 'antembed-table'"):
            load_table(tmp_path / "t.ant")

    def test_newer(self, tmp_path):
        about = {"antembed-table": json.dumps({"version": 99})}
        (tmp_path / "t.ant").write_bytes(safetensors.numpy.save({"x": np.zeros(3)}, about))
        with pytest.raises(TableError, match="version 99, this antembed reads up to 6; upgrade antembed"):
            load_table(tmp_path / "t.ant")

    def test_incomplete(self, tmp_path):
        about = {"antembed-table": json.dumps({"version": 1, "encoding": "csr", "values": "fp32"})}
        (tmp_path / "t.ant").write_bytes(safetensors.numpy.save({"x": np.zeros(3)}, about))
        with pytest.raises(TableError, match="lacks 'objects'"):
            load_table(tmp_path / "t.ant")

    def test_a_folder(self, tmp_path):
        with pytest.raises(TableError, match=r"is a folder; give one of its files"):
            load_table(tmp_path)

    def test_absent(self, tmp_path):
        with pytest.raises(FileNotFoundError):
            load_table(tmp_path / "none.ant")


def test_looking_up_never_imports_torch(tmp_path):
    write_atomically(tmp_path / "t.ant", serialize(*factors()))
    script = f"""
        import sys, antembed
        assert antembed.load_table({str(tmp_path / "t.ant")!r})[[1, 2]].shape == (2, 5)
        assert "torch" not in sys.modules and "numba" not in sys.modules
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=True)


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "file"
    write_atomically(path, b"old")
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_json_lines_survive_a_crash(tmp_path):
    path = tmp_path / "log"
    append_json(path, {"n": 1})
    for torn, kept in (('{"n": 2', []), ('{"n": 2}', [{"n": 2}])):  # half a line, and a whole one without its end
        path.write_text('{"n": 1}\n' + torn)
        assert read_json_lines(path) == [{"n": 1}, *kept]
        append_json(path, {"n": 3})
        assert read_json_lines(path) == [{"n": 1}, *kept, {"n": 3}]
    path.write_text('{"n": 1}\nrubbish\n{"n": 2}\n')
    with pytest.raises(ValueError, match="line 2 is no JSON object: b'rubbish'"):
        read_json_lines(path)
