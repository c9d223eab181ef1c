"""StaticModel encodes as model2vec does: a tiny folder, compressed, against a plain computation and model2vec itself."""

import json

import numpy as np
import pytest
import safetensors.numpy
from tests.command import call

import antembed as ant
from antembed.data.text_file import DataError
from antembed.tables.container import TableError
from antembed.tables.save import load_table
from antembed.tables.static_model import StaticModel

pytest.importorskip("tokenizers", reason="tokenizers is not installed: pip install '.[text]'")
WORDS = ["[UNK]", "a", "cat", "dog", "sat", "on", "mat", "##s", *(f"w{n}" for n in range(292))]
SENTENCES = ["A cat sat on a mat", "dogs", "", "nothing known", "w1 w2 w3 unknown w4", "cat " * 600]


def write_model(folder, *, shared=False, width=16, **config):
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

    tokenizer = Tokenizer(models.WordPiece({word: n for n, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    rng = np.random.default_rng(0)
    arrays = {"embeddings": rng.normal(size=(len(WORDS), width)).astype(np.float32)}
    if shared:
        arrays |= {"embeddings": arrays["embeddings"][:200], "mapping": rng.integers(0, 200, len(WORDS))}
        arrays |= {"weights": rng.random(len(WORDS)).astype(np.float16).astype(np.float64)}
    safetensors.numpy.save_file(arrays, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"model_type": "model2vec"} | config))
    return folder


def plain(model, tokens, shared=None):
    """The mean of the tokens' vectors."""
    if not tokens:
        return np.zeros(16)
    E = model.embedding
    if shared is None:
        return E[tokens].mean(0)
    return (E[shared["mapping"][tokens]] * shared["weights"][tokens][:, None]).mean(0)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("normalize", [False, True])
def test_sentences_are_means_of_their_tokens(normalize, shared, tmp_path):
    folder = write_model(tmp_path / "m", normalize=normalize, shared=shared)
    call("compress", folder, tmp_path / "m.ant", "--budget", "2x")
    model = StaticModel.from_pretrained(tmp_path / "m.ant")
    arrays = safetensors.numpy.load_file(folder / "model.safetensors") if shared else None
    ids = [[1, 2, 4, 5, 1, 6], [3, 7], [], [], [9, 10, 11, 12], [2] * 512]
    assert model.tokenize(SENTENCES) == ids
    wanted = np.stack([plain(model, tokens, arrays) for tokens in ids])
    if normalize:
        wanted = wanted / (np.linalg.norm(wanted, axis=1, keepdims=True) + 1e-32)
    np.testing.assert_allclose(model.encode(SENTENCES, batch_size=2), wanted, atol=1e-4)
    np.testing.assert_allclose(model.encode(SENTENCES[0]), wanted[0], atol=1e-4)
    assert model.encode([]).shape == (0, 16)
    lengths = np.linalg.norm(model.encode(SENTENCES[:2], normalize=True), axis=1)
    np.testing.assert_allclose(lengths, 1, rtol=1e-5)
    np.testing.assert_allclose(model.encode_as_sequence("dogs").mean(0), plain(model, [3, 7], arrays), atol=1e-4)


@pytest.mark.parametrize("shared", [False, True])
def test_a_program_written_for_model2vec_gives_the_same(shared, tmp_path):
    model2vec = pytest.importorskip("model2vec")
    folder = write_model(tmp_path / "m", normalize=True, shared=shared)
    call("compress", folder, tmp_path / "m.ant", "--budget", "2x")
    ours = StaticModel.from_pretrained(tmp_path / "m.ant")
    arrays = safetensors.numpy.load_file(folder / "model.safetensors")
    safetensors.numpy.save_file(arrays | {"embeddings": ours.embedding}, folder / "model.safetensors")  # what compressing left
    theirs = model2vec.StaticModel.from_pretrained(folder)
    for options in ({}, {"normalize": False}, {"max_length": 3}, {"max_length": None}):
        np.testing.assert_allclose(ours.encode(SENTENCES, **options), theirs.encode(SENTENCES, **options), atol=1e-5)
    assert (ours.dim, ours.normalize, ours.tokens) == (theirs.dim, theirs.normalize, list(theirs.tokens))


def test_the_vocabulary_is_not_stored_twice(tmp_path):
    folder = write_model(tmp_path / "m")
    call("compress", folder, tmp_path / "m.ant", "--budget", "2x")
    table = load_table(tmp_path / "m.ant")
    assert table["cat"].shape == (16,)
    assert table.sizes()["words"] < 0.5 * (folder / "tokenizer.json").stat().st_size
    assert len(table.tokens["tokenizer"]) < 400


def test_a_tokenizer_of_its_own(tmp_path):
    file = write_model(tmp_path / "m") / "tokenizer.json"
    E = np.random.default_rng(0).normal(size=(len(WORDS), 16))
    ant.compress(E, budget="2x", tokenizer=file).save(tmp_path / "m.ant")
    assert StaticModel.from_pretrained(tmp_path / "m.ant", normalize=True).encode("cat").shape == (16,)
    with pytest.raises(DataError, match="has a token 299, the table 100 rows; give the tokenizer it was made with"):
        ant.compress(E[:100], budget="2x", tokenizer=file)
    with pytest.raises(DataError, match=r"none\.json does not exist; give a tokenizer\.json"):
        ant.compress(E, budget="2x", tokenizer=tmp_path / "none.json")


def test_what_is_no_model_is_refused(tmp_path):
    with pytest.raises(TableError, match="is a folder; make it small first: antembed compress"):
        StaticModel.from_pretrained(tmp_path)
    ant.compress(np.random.default_rng(0).normal(size=(300, 16)), budget="2x").save(tmp_path / "t.ant")
    with pytest.raises(TableError, match=r"has no tokenizer; compress the model's folder, or vectors with --tokenizer"):
        StaticModel.from_pretrained(tmp_path / "t.ant")


def test_a_damaged_tokenizer_is_an_error(tmp_path, monkeypatch):
    folder = write_model(tmp_path / "m")
    call("compress", folder, tmp_path / "m.ant", "--budget", "2x")
    table = load_table(tmp_path / "m.ant")
    whole = table.tokens["tokenizer"]
    monkeypatch.setattr("antembed.tables.static_model.load_table", lambda path: table)
    for damaged in (whole[:-9], whole[::-1], whole[:0]):
        table.tokens["tokenizer"] = damaged
        with pytest.raises(TableError, match=r"the tokenizer .*; copy it again or export it anew"):
            StaticModel.from_pretrained(tmp_path / "m.ant")


def test_a_folder_of_sentence_transformers(tmp_path):
    """The model is in a folder of its own, and modules.json says whether vectors are normalized."""
    plain = write_model(tmp_path / "plain")
    (tmp_path / "st").mkdir()
    plain.rename(tmp_path / "st" / "0_StaticEmbedding")
    modules = [{"path": "0_StaticEmbedding"}, {"path": "1_Normalize", "type": "sentence_transformers.models.Normalize"}]
    (tmp_path / "st" / "modules.json").write_text(json.dumps(modules))
    call("compress", tmp_path / "st", tmp_path / "m.ant", "--budget", "2x")
    model = StaticModel.from_pretrained(tmp_path / "m.ant")
    np.testing.assert_allclose(np.linalg.norm(model.encode(SENTENCES[0])), 1.0, atol=1e-5)
