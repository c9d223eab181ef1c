"""ONNX models give what the table gives, in onnxruntime."""

import numpy as np
import pytest
import torch
from tests.command import call
from tests.words import compressed, write_words
from typer.testing import CliRunner

import antembed as ant
from antembed.baselines import EMBEDDINGS
from antembed.cli.app import app
from antembed.tables import onnx as onnx_model
from antembed.tables.encodings import ENCODERS
from antembed.tables.export_formats import Named, write
from antembed.tables.save import read_table, serialize

onnx = pytest.importorskip("onnx", reason="onnx is not installed: pip install '.[onnx]'")
runtime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
RNG = np.random.default_rng(0)
A = RNG.standard_normal((40, 24)).astype(np.float32)
SHAPES = [(1, 1), (1, 7), (3, 5)]


def sparse(V=300, most=4, K=40):
    """At most `most` non-zeros a row; the first row has none."""
    T = np.zeros((V, K), np.float32)
    for row in range(1, V):
        columns = RNG.choice(K, RNG.integers(1, most + 1), replace=False)
        T[row, columns] = RNG.standard_normal(len(columns))
    return T


@pytest.fixture(autouse=True)
def _several_pieces(monkeypatch):
    monkeypatch.setattr("antembed.tables.neighbours.CHUNK", 70)


def check(table, file, tolerance):
    """Parity at ids of every shape; → the names of the constants."""
    session = runtime.InferenceSession(file, providers=["CPUExecutionProvider"])
    for shape in SHAPES:
        ids = RNG.integers(0, len(table), shape)
        vectors, *bias = session.run(None, {"ids": ids})
        assert vectors.dtype == np.float32
        np.testing.assert_allclose(vectors, table[ids], rtol=0, atol=tolerance)
        if bias:
            np.testing.assert_allclose(bias[0], table.bias_of(ids), rtol=0, atol=1e-6)
    return {constant.name for constant in onnx.load(file).graph.initializer}


@pytest.mark.parametrize("encoding", ENCODERS)
@pytest.mark.parametrize("values", ["fp32", "fp16", "int8"])
def test_sparse_tables_are_gathered_multiplied_and_summed(encoding, values, tmp_path):
    """The numbers are the file's own: no error is added, also of int8."""
    table = read_table(serialize(sparse(), A, values=values, encoding=encoding, bias=np.arange(300.0)))
    sizes, _ = write(Named(table), tmp_path / "t.onnx")
    assert {"columns", "weights", "anchors", "biases"} <= check(table, tmp_path / "t.onnx", 1e-5)
    width = {"fp32": 4, "fp16": 2, "int8": 1}[values]
    assert sizes[tmp_path / "t.onnx"] < 300 * (4 * (1 + width) + 4) + 4 * A.size + 1500


@pytest.mark.parametrize(
    ("T", "anchors", "form"),
    [
        (RNG.random((300, 10)), RNG.standard_normal((10, 24)), {"weights", "factor"}),  # T[ids]·A
        (RNG.random((300, 40)), A, {"weights"}),  # E[ids]
        (RNG.random((300, 24)), None, {"weights"}),
        (np.zeros((300, 3)), A[:3], {"weights", "factor"}),  # no non-zero, no anchor
    ],
    ids=["anchored", "dense", "no anchors", "zeros"],
)
def test_the_smallest_form_is_taken(T, anchors, form, tmp_path):
    table = read_table(serialize(T.astype(np.float32), anchors))
    write(Named(table), tmp_path / "t.onnx")
    assert check(table, tmp_path / "t.onnx", 2e-5) == form
    write(Named(table, values="int8"), tmp_path / "i.onnx")
    check(table, tmp_path / "i.onnx", 0.3 if anchors is not None else 0.005)


@pytest.mark.parametrize("name", EMBEDDINGS)
def test_every_embedding_equals_torch(name, tmp_path):
    layer = EMBEDDINGS[name](50, 6, num_anchors=4).eval()
    with torch.no_grad():
        for table in layer.tables:
            table.weight[torch.rand_like(table.weight) < 0.6] = 0
    write(Named(ant.export(layer, tmp_path / "t.ant")), tmp_path / "t.onnx")
    session = runtime.InferenceSession(tmp_path / "t.onnx", providers=["CPUExecutionProvider"])
    E = layer.to_dense().detach().numpy()
    found = session.run(None, {"ids": np.arange(50)[None]})[0]
    np.testing.assert_allclose(found[0], E, rtol=0, atol=1e-6 * max(1, np.abs(E).max()))


def test_shared_rows(tmp_path):
    table = read_table(serialize(sparse(), A, row_index=RNG.integers(0, 300, 2000), offset=1.5))
    write(Named(table), tmp_path / "t.onnx")
    assert "row_index" in check(table, tmp_path / "t.onnx", 1e-5)


def test_entropy_coded_files_are_decoded_and_the_size_is_said(tmp_path):
    file = write_words(tmp_path / "words.ant")
    call("export", file, tmp_path / "w.onnx")
    table = compressed()
    scale = float(np.abs(table[:]).max())
    check(table, tmp_path / "w.onnx", 3e-3 * scale)  # fp16
    call("export", file, tmp_path / "i.onnx", "--values", "int8")
    check(table, tmp_path / "i.onnx", scale / 40)
    call("export", file, tmp_path / "f.onnx", "--values", "fp32")
    check(table, tmp_path / "f.onnx", 1e-5 * scale)
    sizes = [(tmp_path / name).stat().st_size for name in ("i.onnx", "w.onnx", "f.onnx")]
    assert sizes == sorted(sizes)
    assert (tmp_path / "w.words.txt").is_file()
    said = CliRunner().invoke(app, ["export", str(file), str(tmp_path / "again.onnx")]).stderr
    said = " ".join(said.split())
    assert f"{sizes[1]:,} bytes" in said
    assert f"{file.stat().st_size:,} bytes as an .ant file" in said


def test_what_onnx_cannot_hold(tmp_path, monkeypatch):
    table = read_table(serialize(sparse(), A))
    with pytest.raises(ValueError, match="fp32, fp16 or int8 numbers, not int4"):
        write(Named(table, values="int4"), tmp_path / "t.onnx")
    monkeypatch.setattr(onnx_model, "LARGEST", 1000)
    with pytest.raises(ValueError, match=r"bytes are more than an ONNX file can hold \(1,000\); use --values int8, or npy"):
        write(Named(table), tmp_path / "t.onnx")


@pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated:FutureWarning")  # torch's own
def test_a_whole_model_is_exported_by_torch(tmp_path):
    pytest.importorskip("onnxscript", reason="onnxscript is not installed: pip install '.[onnx]'")
    torch.manual_seed(0)
    model = torch.nn.Sequential(ant.AnchorEmbedding(50, 6, num_anchors=4), torch.nn.Flatten(), torch.nn.Linear(18, 2)).eval()
    ids = torch.randint(0, 50, (4, 3))
    torch.onnx.export(model, (ids,), tmp_path / "m.onnx", input_names=["ids"], dynamo=True, verbose=False)
    session = runtime.InferenceSession(tmp_path / "m.onnx", providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(session.run(None, {"ids": ids.numpy()})[0], model(ids).detach().numpy(), rtol=1e-4, atol=1e-5)
