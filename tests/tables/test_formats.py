"""Files for other programs hold the table: read back by what reads them, against table[:]."""

import numpy as np
import polars as pl
import pytest
import safetensors.numpy
from tests.command import call, refusal
from tests.words import WORDS, compressed, write_words

from antembed.compression.sources import read_source
from antembed.files import write_atomically
from antembed.tables.export_formats import FORMATS, Named, write
from antembed.tables.row_labels import write_labels
from antembed.tables.save import read_table, serialize


@pytest.fixture(autouse=True)
def _several_pieces(monkeypatch):
    monkeypatch.setattr("antembed.tables.neighbours.CHUNK", 70)


@pytest.fixture
def file(tmp_path):
    return write_words(tmp_path / "words.ant")


def biased(words=None):
    rng = np.random.default_rng(0)
    T = (rng.random((90, 12)) * (rng.random((90, 12)) < 0.2)).astype(np.float32)
    return Named(read_table(serialize(T, rng.standard_normal((12, 6)), bias=np.arange(90.0), offset=0.5)), words)


@pytest.mark.parametrize(("to", "name"), [("glove", "v.txt"), ("word2vec", "v.txt"), ("word2vec", "v.bin")])
def test_text_and_binary_come_back_the_same(to, name, file, tmp_path):
    call("export", file, tmp_path / name, "--to", to)
    found = read_source(tmp_path / name)
    assert found.words == WORDS
    np.testing.assert_allclose(found.vectors, compressed()[:], rtol=1e-6, atol=1e-5)
    assert (tmp_path / name).read_bytes().startswith(b"300 16\n") == (to == "word2vec")


def test_arrays_and_their_words(file, tmp_path):
    call("export", file, tmp_path / "v.npy")
    np.testing.assert_allclose(np.load(tmp_path / "v.npy", mmap_mode="r"), compressed()[:], atol=1e-5)
    assert (tmp_path / "v.words.txt").read_text().splitlines() == WORDS
    call("export", file, tmp_path / "v.safetensors")
    np.testing.assert_allclose(
        safetensors.numpy.load_file(tmp_path / "v.safetensors")["embeddings"], compressed()[:], atol=1e-5
    )
    table = biased()
    sizes, remarks = write(table, tmp_path / "b.safetensors")
    assert (list(sizes), remarks) == ([tmp_path / "b.safetensors"], [])
    found = safetensors.numpy.load_file(tmp_path / "b.safetensors")
    np.testing.assert_array_equal(found["bias"], np.arange(90) + 0.5)
    assert write(table, tmp_path / "b.npy")[1] == [
        "the biases are left out, npy has no place for them; parquet, safetensors, onnx have"
    ]


def test_parquet(file, tmp_path):
    call("export", file, tmp_path / "v.parquet")
    found = pl.read_parquet(tmp_path / "v.parquet")
    assert found["word"].to_list() == WORDS
    np.testing.assert_allclose(found["vector"].to_numpy(), compressed()[:], atol=1e-5)
    write(biased(), tmp_path / "b.parquet")
    found = pl.read_parquet(tmp_path / "b.parquet")
    assert found.columns == ["id", "vector", "bias"]
    assert found["id"].to_list() == list(range(90))
    np.testing.assert_array_equal(found["bias"].to_numpy(), np.arange(90) + 0.5)
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_the_projector_has_a_line_a_word_in_both_files(file, tmp_path):
    call("export", file, tmp_path / "v.tsv", "--to", "projector")
    np.testing.assert_allclose(np.loadtxt(tmp_path / "v.tsv", delimiter="\t"), compressed()[:], rtol=1e-6, atol=1e-5)
    assert (tmp_path / "v.metadata.tsv").read_text().splitlines() == WORDS


def test_rows_of_a_run_have_their_labels(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    labels = {side: pl.Series([f"{side} {n}" for n in range(90)]) for side in ("users", "items")}
    write_labels(run, labels)
    for side in labels:
        write_atomically(run / f"{side}.ant", serialize(np.eye(90, dtype=np.float32), None))
    call("export", run, tmp_path / "users.parquet", "--table", "users")
    found = pl.read_parquet(tmp_path / "users.parquet")
    assert found["word"].to_list() == labels["users"].to_list()
    np.testing.assert_array_equal(found["vector"].to_numpy(), np.eye(90))
    with pytest.raises(ValueError, match=r"has 2 tables; say which with --table \(items, users\)"):
        call("export", run, tmp_path / "other.parquet")
    with pytest.raises(ValueError, match="table 'films' is none of: items, users"):
        call("export", run, tmp_path / "other.parquet", "--table", "films")
    assert "--with-seen goes with small files" in refusal("export", run, tmp_path / "u.npy", "--with-seen")
    write_labels(run, {"items": pl.Series(["one"])})
    with pytest.raises(ValueError, match=r"items\.ant has 90 rows, but there are 1 labels; export it anew"):
        call("export", run, tmp_path / "items.npy", "--table", "items")


@pytest.mark.parametrize("to", ["word2vec", "projector"])
def test_words_that_a_format_cannot_hold_are_refused(to, tmp_path):
    table = biased([*(f"w{n}" for n in range(80)), "two words\t", *(f"v{n}" for n in range(9))])
    with pytest.raises(ValueError, match=r"row 80 is 'two words\\t', which .* cannot hold; use parquet"):
        write(table, tmp_path / "v.txt", to)


def test_bad_calls(file, tmp_path):
    for name, more, complaint in (
        ("v.txt", (), "v.txt does not say which format; say --to glove|word2vec"),
        ("v.npy", ("--to", "onnx"), "v.npy is the name of a npy file, asked for was onnx"),
        ("v.npy", ("--to", "csv"), "unknown format 'csv'; there are: glove, word2vec"),
        ("v.npy", ("--values", "int8"), "values int8 go with onnx; npy has fp32 numbers"),
        ("v.npy", ("--table", "words"), "--table words goes with a folder"),
        ("v.ant", (), "is a table already; copy it"),
    ):
        with pytest.raises(ValueError, match=complaint.replace("|", r"\|")):
            call("export", file, tmp_path / name, *more)
    assert "--encoding goes with small files" in refusal("export", file, tmp_path / "v.npy", "--encoding", "csr")


def test_every_format_is_in_the_help():
    text = call("export", "--help")
    assert [to for to in FORMATS if to not in text] == []
