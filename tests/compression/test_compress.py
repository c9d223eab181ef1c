"""Tables that exist, made small: the budget is met, the error is what it should be, files come back the same."""

import json
import struct

import numpy as np
import pytest
import safetensors.numpy
import safetensors.torch
import torch
from tests.command import call
from tests.odd_tables import attempt
from typer.testing import CliRunner

import antembed as ant
from antembed.cli.app import app
from antembed.compression import as_array
from antembed.compression.goal import Goal
from antembed.compression.principal_axes import fit
from antembed.compression.quality import compare, nearest
from antembed.compression.sources import read_source
from antembed.compression.sparse_anchors_kernel import choose_rows
from antembed.data.text_file import DataError
from antembed.tables.entropy_rows import CodedRows


def vectors(V=1500, d=24, seed=0, spread=1.0):
    """Correlated, with a mean, and rows of different length."""
    rng = np.random.default_rng(seed)
    mix = rng.normal(size=(d, d)) * 0.8 ** np.arange(d)
    E = rng.normal(size=(V, d)) @ mix.T + rng.normal(size=d)
    return (E * np.exp(spread * rng.normal(size=(V, 1)) * 0.3)).astype(np.float32)


WORDS = [f"word{n}" for n in range(1500)]


@pytest.mark.parametrize("budget", ["4x", "8x", "16x"])
@pytest.mark.parametrize("named", [True, False])
def test_a_budget_is_met_and_used(budget, named):
    E = vectors()
    table = ant.compress(E, budget=budget, vocabulary=WORDS if named else None)
    target = E.nbytes / int(budget[:-1])
    assert 0.8 * target < table.size - table.sizes()["words"] <= target
    assert len(table) == 1500
    assert table.shape == (1500, 24)


@pytest.mark.slow
def test_more_bytes_mean_less_error():
    E = vectors()
    errors = [compare(E, ant.compress(E, budget=budget)[:])["relative_error"] for budget in ("16x", "8x", "4x")]
    assert errors[0] > 2 * errors[1] > 4 * errors[2]
    assert errors[2] < 0.01


def test_it_loses_less_than_whole_numbers_of_the_same_size():
    """Eight bits a number are 4x; a grid for each column is what people take first."""
    E = vectors()
    scale = np.abs(E).max(0) / 7
    plain = compare(E, np.clip(np.rint(E / scale), -8, 7) * scale)["relative_error"]  # 4 bits: 8x
    assert compare(E, ant.compress(E, budget="8x")[:])["relative_error"] < 0.6 * plain


@pytest.mark.parametrize("apart", [True, False])
def test_the_compiled_decoder_is_the_plain_one(apart, monkeypatch):
    coded = fit(vectors(), Goal(size=9000), split_norms=apart, weighting=0.25)
    rows = CodedRows(coded.arrays, dict(coded.about))
    ids = np.array([3, 3, 1499, 0, 700, 3, 701])
    some, everything = rows(ids), rows(np.arange(1500))
    np.testing.assert_array_equal(everything[ids], some)
    monkeypatch.setattr("antembed.tables.entropy_rows.kernels", lambda name: None)
    np.testing.assert_array_equal(some, rows(ids))
    np.testing.assert_array_equal(everything, rows(np.arange(1500)))


def test_large_numbers_are_escaped():
    E = vectors(spread=0.0)
    E[5] *= 500
    table = ant.compress(E, budget="2x", split_norms=False)
    np.testing.assert_allclose(table[5], E[5], rtol=0.05, atol=np.abs(E[5]).max() * 1e-2)


def test_a_mapped_table_in_parts_is_the_array(tmp_path, monkeypatch):
    """Half precision from a file, some rows at a time and on other numbers of cores, gives the bytes of the array at once."""
    E = vectors().astype(np.float16)
    wanted = ant.compress(E.astype(np.float32), budget="8x", method="transform")
    np.save(tmp_path / "half.npy", E)
    monkeypatch.setattr("antembed.compression.goal.PART", 100)
    monkeypatch.setattr("antembed.compression.goal.usable_cpus", lambda: 3)
    found = ant.compress(np.load(tmp_path / "half.npy", mmap_mode="r"), budget="8x", method="transform")
    assert found.to_bytes() == wanted.to_bytes()


def test_a_row_that_is_large_where_no_other_is_keeps_its_axis(monkeypatch):
    """The step is searched on a sample, in which the only row of a direction hardly ever is."""
    monkeypatch.setattr("antembed.compression.principal_axes.SEARCHES", ((1, 8),))
    E = np.zeros((40_000, 12), np.float32)
    E[:, :4] = np.random.default_rng(0).standard_normal((40_000, 4))
    E[31_313, 11] = 40
    table = ant.compress(E, budget="24x", method="transform", split_norms=False)
    assert abs(table[31_313][11] - 40) < 3


def test_parts_of_a_table_are_compared_as_all_of_it(monkeypatch):
    E, F = vectors(), vectors() + 0.3 * vectors(seed=1)
    queries = np.arange(0, 1500, 7)
    monkeypatch.setattr(
        "antembed.compression.quality.chunks", lambda shape, numbers=0: [slice(a, a + 300) for a in range(0, 1500, 300)]
    )
    found = compare(E, F)
    assert found["relative_error"] == pytest.approx(((E - F) ** 2).sum() / ((E - E.mean(0)) ** 2).sum(), rel=1e-5)
    unit = E / np.linalg.norm(E, axis=1, keepdims=True)
    scores = unit[queries] @ unit.T
    scores[np.arange(len(queries)), queries] = -1
    np.testing.assert_array_equal(np.sort(nearest(E, queries, 10)), np.sort(np.argsort(-scores)[:, :10]))


def test_files_come_back_the_same(tmp_path):
    E = vectors()
    table = ant.compress(E, budget="8x", vocabulary=WORDS)
    table.save(tmp_path / "a.ant")
    again = ant.load_table(tmp_path / "a.ant")
    assert again.size == (tmp_path / "a.ant").stat().st_size == table.size
    np.testing.assert_array_equal(again[:], table[:])
    np.testing.assert_array_equal(again[["word7", "word3"]], table[[7, 3]])
    assert again["word9"].shape == (24,)
    assert "word9" in again
    assert "word" not in again
    near = again.most_similar("word0", 5)
    F = again[:] / np.linalg.norm(again[:], axis=1, keepdims=True)
    wanted = np.argsort(-(F @ F[0]))[1:6]
    assert [name for name, _ in near] == [f"word{n}" for n in wanted]
    with pytest.raises(KeyError, match="none of the 1500 words"):
        again["nothing"]
    with pytest.raises(ValueError, match="copy that"):
        again.save(tmp_path / "b.ant")
    assert again.words.all() == WORDS
    assert ant.compress(E, budget="8x", vocabulary=WORDS)._contents == table._contents  # the same bytes each time


def test_damaged_files_are_errors(tmp_path):
    ant.compress(vectors(), budget="8x", vocabulary=WORDS).save(tmp_path / "a.ant")
    whole = bytearray((tmp_path / "a.ant").read_bytes())
    rng = np.random.default_rng(0)
    for _ in range(60):
        mutated = bytearray(whole)
        mutated[int(rng.integers(len(whole)))] ^= 1 << int(rng.integers(8))
        (tmp_path / "b.ant").write_bytes(mutated)
        with pytest.raises(ant.TableError):
            ant.load_table(tmp_path / "b.ant")


def test_frequent_words_are_kept_better():
    E = vectors(V=4000)
    plain, weighted = (ant.compress(E, budget="24x", by_frequency=frequent)[:] for frequent in (False, True))
    first = slice(0, 400)
    errors = [float(((E[first] - F[first]) ** 2).sum()) for F in (plain, weighted)]
    assert errors[1] < 0.85 * errors[0]


def test_norms_are_stored_apart_where_that_helps():
    E = vectors(spread=6.0)
    E[E == 0] = 1e-3
    best = [compare(E, ant.compress(E, budget="8x", split_norms=apart)[:])["cosine"] for apart in (True, False)]
    assert best[0] > best[1]


@pytest.mark.parametrize("budget", ["1.9x", "2.2x"])
def test_large_files_of_small_steps(budget):
    """Numbers of very many steps take many symbols each."""
    E = np.random.default_rng(0).normal(size=(3000, 8)) * 10.0 ** np.arange(3, -5, -1)
    table = ant.compress(E, budget=budget, method="transform")
    assert np.abs(table[:] - E).max() < 1e-3 * np.abs(E).max()


@pytest.mark.parametrize("budget", ["1x", "0.5x", "1MB"])
def test_a_budget_that_makes_nothing_smaller_is_refused(budget):
    with pytest.raises(ValueError, match=r"no less than the vectors take as they are, 9,600 in fp32; .* such as 16x"):
        ant.compress(np.ones((300, 8), np.float32), budget=budget)


def test_what_is_not_a_table_is_refused():
    with pytest.raises(ValueError, match=r"got shape \(3,\)"):
        ant.compress(np.zeros(3))
    with pytest.raises(ValueError, match="row 2 has a number that is not finite"):
        ant.compress(np.array([[1.0], [2.0], [np.nan]]))
    with pytest.raises(ValueError, match="2 words for 1500 vectors"):
        ant.compress(vectors(), vocabulary=["a", "b"])
    with pytest.raises(ValueError, match="counts parameters"):
        ant.compress(vectors(), budget="4000")
    with pytest.raises(ValueError, match="too few for 1,500 vectors"):
        ant.compress(vectors(), budget="2500B")
    with pytest.raises(ValueError, match="occur twice"):
        ant.compress(vectors(V=2), vocabulary=["a", "a"])
    with pytest.raises(
        TypeError, match=r"word 0 is of type int, 0; words are strings: give \[str\(word\) for word in vocabulary\]"
    ):
        ant.compress(vectors(V=2), vocabulary=[0, 1])
    with pytest.raises(ValueError, match=r"importance has shape \(1,\).*; give 2 of them"):
        ant.compress(vectors(V=2), tolerance="1%", importance=[1.0])


def test_layers_and_tensors_are_tables():
    layer = torch.nn.Embedding(50, 8)
    np.testing.assert_array_equal(as_array(layer), layer.weight.detach().numpy())
    np.testing.assert_array_equal(as_array(layer.weight.half()), layer.weight.half().float().detach().numpy())


class TestSources:
    def test_text_with_and_without_a_head(self, tmp_path):
        (tmp_path / "glove.txt").write_text("the 1 2\n. . -1 0.5\nnew york 3 4\nthe 9 9\n")
        found = read_source(tmp_path / "glove.txt")
        assert found.words == ["the", ". .", "new york"]  # words may have spaces; the first of equal ones counts
        np.testing.assert_array_equal(found.vectors, [[1, 2], [-1, 0.5], [3, 4]])
        (tmp_path / "w2v.txt").write_text("2 3\na 1 2 3\nb 4 5 6\n")
        assert read_source(tmp_path / "w2v.txt").vectors.shape == (2, 3)
        (tmp_path / "bad.txt").write_text("a 1 2 3\nb 4 5\n")
        with pytest.raises(DataError, match="line 2: 2 numbers, the first vector has 3"):
            read_source(tmp_path / "bad.txt")

    @pytest.mark.parametrize(
        ("text", "complaint"),
        [
            ("the 0.1\ncat 0.1 -0.2 0.3\n", "line 2: 3 numbers, the first vector has 1"),  # the first line was cut
            ("the 0.1 0.2\ncat 0.1 -0.2 0.3\n", "line 2: 3 numbers, the first vector has 2"),
            ("2 3\nthe .1 2 3 4.5\n", "line 2: 4 numbers, the first line says 3"),
            ("9 2\nthe 1 2\ncat 3 4\n", "says in its first line that it has 9 vectors, and has 2"),
            ("the 1 2\n\ncat 3 x\n", "line 3: 'x' is no number"),
            ("the 1 2\ncat 3  4\n", "line 2: '' is no number"),
        ],
    )
    def test_what_text_files_have_wrong_is_an_error_with_the_line(self, tmp_path, text, complaint):
        (tmp_path / "v.txt").write_text(text)
        with pytest.raises(DataError, match=complaint):
            read_source(tmp_path / "v.txt")

    def test_what_is_left_out_is_said(self, tmp_path):
        (tmp_path / "v.txt").write_text("the 1 2\n\ncat 3 4\nthe 9 9\n")
        found = read_source(tmp_path / "v.txt")
        assert found.words == ["the", "cat"]
        assert [note[:7] for note in found.notes] == ["1 blank", "1 vecto"]

    def test_word2vec_binary(self, tmp_path):
        rows = b"".join(f"w{n} ".encode() + struct.pack("<3f", n, 1, 2) + b"\n" for n in range(4))
        (tmp_path / "v.bin").write_bytes(b"4 3\n" + rows)
        found = read_source(tmp_path / "v.bin")
        assert found.words == ["w0", "w1", "w2", "w3"]
        np.testing.assert_array_equal(found.vectors[:, 0], range(4))
        (tmp_path / "v.bin").write_bytes(b"5 3\n" + rows)
        with pytest.raises(DataError, match="ends after 4 of 5 vectors"):
            read_source(tmp_path / "v.bin")

    def test_arrays(self, tmp_path):
        E = vectors(V=10)
        np.save(tmp_path / "v.npy", E)
        (tmp_path / "words.txt").write_text("\n".join(WORDS[:10]))
        assert read_source(tmp_path / "v.npy").words == WORDS[:10]
        safetensors.numpy.save_file({"a": E, "b.wte.weight": E[:5], "c": E[0]}, tmp_path / "m.safetensors")
        assert len(read_source(tmp_path / "m.safetensors", tensor="a").vectors) == 10
        with pytest.raises(DataError, match=r"has no table 'x'; it has: a, b\.wte\.weight"):
            read_source(tmp_path / "m.safetensors", tensor="x")

    def test_bfloat16(self, tmp_path):
        E = torch.randn(4, 2).to(torch.bfloat16)
        safetensors.torch.save_file({"a": torch.zeros(3), "embeddings": E}, tmp_path / "m.safetensors")
        np.testing.assert_array_equal(read_source(tmp_path / "m.safetensors").vectors, E.float().numpy())

    def test_a_model_of_hugging_face(self, tmp_path):
        E = vectors(V=6)
        others = {"encoder.weight": E, "embeddings.word_embeddings.weight": E + 1}
        safetensors.numpy.save_file(others, tmp_path / "model.safetensors")
        (tmp_path / "tokenizer.json").write_text(json.dumps({"model": {"vocab": {f"t{n}": n for n in range(6)}}}))
        found = read_source(tmp_path)
        np.testing.assert_array_equal(found.vectors, E + 1)
        assert found.words == [f"t{n}" for n in range(6)]


@pytest.mark.parametrize("number", [0, 1, 3, 59, 62, 68, 76, 151])
def test_odd_tables(tmp_path, number):
    """Large means, zeros, lengths over many orders, of any size; `make fuzz` tries 400."""
    assert attempt(np.random.default_rng([4, number]), tmp_path)[1] == "kept"


@pytest.mark.parametrize("method", ["transform", "sparse"])
def test_vectors_of_another_size_are_coded_alike(method):
    E = vectors()
    usual = ant.compress(E, budget="8x", method=method)
    for unit in (2.0**-40, 2.0**40):
        other = ant.compress(E * np.float32(unit), budget="8x", method=method)
        found, wanted = compare(E, other[:] / np.float32(unit)), compare(E, usual[:])
        assert found["relative_error"] == pytest.approx(wanted["relative_error"], rel=0.02)
    with pytest.raises(ValueError, match=r"largest number is 1\.5e\+30, at most 1e\+18"):
        ant.compress(E / np.abs(E).max() * np.float32(1.5e30), budget="8x")


def test_on_the_command_line(tmp_path):
    np.save(tmp_path / "v.npy", vectors())
    (tmp_path / "words.txt").write_text("\n".join(WORDS))
    found = json.loads(call("compress", tmp_path / "v.npy", tmp_path / "v.ant", "--budget", "8x", "--json"))
    assert found["bytes"] == (tmp_path / "v.ant").stat().st_size
    assert found["times_smaller"] >= 8
    assert found["relative_error"] < 0.1
    assert "word3: " in call("neighbours", tmp_path / "v.ant", "word3", "-k", "2")
    assert "coded" in call("inspect", tmp_path / "v.ant")
    with pytest.raises(ValueError, match="exists; choose another name, or say --overwrite"):
        call("compress", tmp_path / "v.npy", tmp_path / "v.ant")
    about = json.loads(call("inspect", tmp_path / "v.ant", "--json"))
    assert about["times_smaller"] == pytest.approx(found["times_smaller"], abs=0.006)
    assert about["bytes_of_words"] == found["parts"]["words"] > 0
    with pytest.raises(ValueError, match="'nothing': none of the 1,500 words"):
        call("neighbours", tmp_path / "v.ant", "nothing")
    some = [json.loads(line) for line in call("neighbours", tmp_path / "v.ant", "word3", "nothing", "--json").splitlines()]
    assert [len(row["neighbours"]) for row in some] == [10, 0]
    with pytest.raises(ValueError, match=r"name it .*other\.ant"):
        call("compress", tmp_path / "v.npy", tmp_path / "other.npy")
    call("export", tmp_path / "v.ant", tmp_path / "again.txt", "--to", "glove")
    with pytest.raises(ValueError, match=r"again\.txt exists"):
        call("export", tmp_path / "v.ant", tmp_path / "again.txt", "--to", "glove")
    call("export", tmp_path / "v.ant", tmp_path / "again.txt", "--to", "glove", "--overwrite")


def test_progress_says_what_is_compiled_and_tried(monkeypatch):
    monkeypatch.setattr("antembed.compression.choose_method.is_compiled", lambda kernel: kernel is not choose_rows)
    said = []
    ant.compress(vectors(), budget="12x", split_norms=False, progress=lambda *state: said.append(state))
    names = list(dict.fromkeys(what for what, _, _ in said))
    assert names[:6] == [
        "trying transform on 1,500 rows, 1 of 2: principal axes",
        "trying transform on 1,500 rows, 1 of 2: searching the step on 1,500 rows",
        "trying transform on 1,500 rows, 1 of 2: coding",
        "compiling sparse (once, about 6 s)",
        "trying sparse on 1,500 rows, 2 of 2: fitting anchors to 1,500 rows",
        "transform: principal axes",
    ]
    assert names[-1] in ("transform: coding", "sparse: coding")
    assert all(0 <= done <= total for what, done, total in said if "coding" not in what)


def test_a_source_that_is_not_there_is_said_before_the_name_of_the_file(tmp_path):
    with pytest.raises(DataError, match="none does not exist; give vectors"):
        call("compress", tmp_path / "none", tmp_path / "out")


def test_progress_on_the_command_line(tmp_path):
    np.save(tmp_path / "v.npy", vectors())
    words = ["compress", str(tmp_path / "v.npy"), str(tmp_path / "v.ant"), "--overwrite", "--budget", "8x"]
    lines = CliRunner().invoke(app, words).stderr.splitlines()
    assert [line for line in lines if ": trying transform with lengths apart on 1,500 rows, 2 of 2: coding" in line]
    assert len(lines) == len(set(lines)) <= 12
    assert CliRunner().invoke(app, ["--quiet", *words]).stderr == ""
