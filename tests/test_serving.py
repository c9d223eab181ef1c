"""The small file: three encodings, one answer; and what happens to bad files."""

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
from antembed.serving import TableError, open_table
from antembed.serving.encodings import ENCODERS, encode, encoded_sizes
from antembed.serving.table import Table, serialise


def factors(V=40, K=11, d=5, density=0.3, seed=0):
    rng = np.random.default_rng(seed)
    T = rng.random((V, K)).astype(np.float32) * (rng.random((V, K)) < density)
    return T, rng.standard_normal((K, d)).astype(np.float32)


def opened(data: bytes, tmp_path) -> Table:
    write_atomically(tmp_path / "t.ant", data)
    return open_table(tmp_path / "t.ant")


@pytest.mark.parametrize("encoding", ENCODERS)
@pytest.mark.parametrize(("values", "tolerance"), [("fp32", 1e-6), ("fp16", 4e-3)])
@pytest.mark.parametrize("K", [1, 8, 9, 64, 300])
def test_every_encoding_gives_the_vectors(encoding, values, tolerance, K, tmp_path):
    T, A = factors(K=K)
    table = opened(serialise(T, A, values=values, encoding=encoding), tmp_path)
    E = T @ A
    np.testing.assert_allclose(table[:], E, atol=tolerance * max(1, np.abs(E).max()))
    np.testing.assert_allclose(table[7], E[7], atol=tolerance * max(1, np.abs(E).max()))
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
    table = opened(serialise(T, A, encoding=encoding), tmp_path_factory.mktemp("t"))
    ids = np.random.default_rng(seed).integers(0, V, (4, 3))
    np.testing.assert_allclose(table[ids], (T @ A)[ids], atol=1e-5)


def test_ids_of_every_form(tmp_path):
    T, A = factors()
    table = opened(serialise(T, A), tmp_path)
    E = table[:]
    assert table[3].shape == (5,)
    assert table[[1, 2]].shape == (2, 5)
    assert table[np.zeros((2, 0), np.int64)].shape == (2, 0, 5)
    assert table[[]].shape == (0, 5)
    np.testing.assert_allclose(table[5:9], E[5:9], atol=1e-6)
    np.testing.assert_allclose(table[np.uint8(3)], E[3], atol=1e-6)
    assert len(table) == 40
    assert table.shape == (40, 5)


def test_bad_ids(tmp_path):
    table = opened(serialise(*factors()), tmp_path)
    with pytest.raises(IndexError, match=r"id 40 is outside a table of 40 rows \(0 to 39\)"):
        table[[1, 40]]
    with pytest.raises(IndexError, match="id -1 is outside"):
        table[-1]
    with pytest.raises(TypeError, match="integers, got float64"):
        table[[1.0]]


def test_auto_takes_the_smallest():
    for density, K in ((0.01, 300), (0.3, 16), (1.0, 8)):
        T, A = factors(500, K, 5, density)
        sizes = {name: len(serialise(T, A, encoding=name)) for name in ENCODERS}
        assert len(serialise(T, A)) == min(sizes.values())
        told = encoded_sizes(T[:, T.any(0)], 4)
        assert told == {name: sum(a.nbytes for a in encode(T[:, T.any(0)], name)[1].values()) for name in ENCODERS}


def test_each_encoding_has_its_day():
    best = {encode(factors(500, K, 5, density)[0], "auto")[0] for density, K in ((0.005, 300), (0.3, 16), (1.0, 8))}
    assert best == set(ENCODERS)


def test_a_plain_table_without_anchors(tmp_path):
    E = np.random.default_rng(0).standard_normal((9, 4)).astype(np.float32)
    table = opened(serialise(E, None), tmp_path)
    np.testing.assert_array_equal(table[:], E)
    assert table.parameters == 36


def test_unused_anchors_are_dropped(tmp_path):
    T, A = factors()
    T[:, 4] = 0
    table = opened(serialise(T, A), tmp_path)
    assert len(table.anchors) == 10
    np.testing.assert_allclose(table[:], T @ A, atol=1e-6)


def test_a_table_of_zeros(tmp_path):
    table = opened(serialise(np.zeros((6, 3), np.float32), np.ones((3, 2), np.float32)), tmp_path)
    np.testing.assert_array_equal(table[:], np.zeros((6, 2)))


def test_biases_travel_along(tmp_path):
    T, A = factors()
    table = opened(serialise(T, A, bias=np.arange(40.0)), tmp_path)
    np.testing.assert_array_equal(table.bias_of([[3, 5]]), [[3, 5]])
    shared = opened(serialise(T, A, bias=np.array([2.5])), tmp_path)
    np.testing.assert_array_equal(shared.bias_of([1, 2]), [2.5, 2.5])
    none = opened(serialise(T, A), tmp_path)
    np.testing.assert_array_equal(none.bias_of([1, 2]), [0, 0])


def test_values_beyond_half_precision():
    T, A = factors()
    with pytest.raises(ValueError, match=r"A has a value of .*beyond fp16; export with values='fp32'"):
        serialise(T, A * 1e6, values="fp16")
    T[0, 0] = np.nan
    with pytest.raises(ValueError, match="T has a value of nan; the training has diverged"):
        serialise(T, A)


def test_the_same_table_gives_the_same_bytes():
    assert len({serialise(*factors(), bias=np.arange(40.0)) for _ in range(20)}) == 1


def test_unknown_names():
    with pytest.raises(ValueError, match="unknown values 'int3'; there are: fp32, fp16"):
        serialise(*factors(), values="int3")
    with pytest.raises(ValueError, match="unknown encoding 'zip'; there are: auto, plain, bitmap, csr"):
        serialise(*factors(), encoding="zip")


class TestBadFiles:
    def test_truncated(self, tmp_path):
        data = serialise(*factors())
        for length in (0, 4, 40, len(data) // 2, len(data) - 1):
            (tmp_path / "t.ant").write_bytes(data[:length])
            with pytest.raises(TableError, match=rf"t.ant is no whole safetensors file .*{length} bytes found"):
                open_table(tmp_path / "t.ant")

    def test_foreign(self, tmp_path):
        (tmp_path / "t.ant").write_bytes(safetensors.numpy.save({"x": np.zeros(3)}))
        with pytest.raises(TableError, match="no antembed table: its header says nothing, expected 'antembed-table'"):
            open_table(tmp_path / "t.ant")

    def test_newer(self, tmp_path):
        about = {"antembed-table": json.dumps({"version": 99})}
        (tmp_path / "t.ant").write_bytes(safetensors.numpy.save({"x": np.zeros(3)}, about))
        with pytest.raises(TableError, match="version 99, this antembed reads up to 1; upgrade antembed"):
            open_table(tmp_path / "t.ant")

    def test_incomplete(self, tmp_path):
        about = {"antembed-table": json.dumps({"version": 1, "encoding": "csr", "values": "fp32"})}
        (tmp_path / "t.ant").write_bytes(safetensors.numpy.save({"x": np.zeros(3)}, about))
        with pytest.raises(TableError, match="lacks 'objects'"):
            open_table(tmp_path / "t.ant")

    def test_a_folder(self, tmp_path):
        with pytest.raises(TableError, match=r"is a folder; name one of its files"):
            open_table(tmp_path)

    def test_absent(self, tmp_path):
        with pytest.raises(FileNotFoundError):
            open_table(tmp_path / "none.ant")


def test_looking_up_never_imports_torch(tmp_path):
    write_atomically(tmp_path / "t.ant", serialise(*factors()))
    script = f"""
        import sys, antembed
        assert antembed.open_table({str(tmp_path / "t.ant")!r})[[1, 2]].shape == (2, 5)
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
