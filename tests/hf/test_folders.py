"""Folders of models written back small: they load, give the table's vectors, and keep the rest as it was."""

import json
import shutil

import numpy as np
import pytest
import safetensors.torch
import torch
from tests.command import call

pytest.importorskip("transformers")
from tests.hf.models import MODELS, D, V, loaded, logits, made
from transformers import AutoModel
from transformers.quantizers.auto import AUTO_QUANTIZATION_CONFIG_MAPPING

import antembed as ant
import antembed.hf
from antembed.hf.compressed_embedding import CodedEmbedding


def tensors(folder):
    return safetensors.torch.load_file(folder / "model.safetensors")


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Each model, as it was and small."""
    root = tmp_path_factory.mktemp("models")
    for name in MODELS:
        made(name).save_pretrained(root / name)
        (root / name / "README.md").write_text("hello")
        (root / name / "1_Pooling").mkdir()
        (root / name / "1_Pooling" / "config.json").write_text("{}")
        (root / name / "pytorch_model.bin").write_text("the weights again")
        call("compress", root / name, root / f"small-{name}", "--budget", "4x")
    return root


@pytest.mark.parametrize("name", MODELS)
def test_it_loads_and_has_the_vectors_of_the_table(name, folders, tmp_path):
    model, small = made(name), loaded(type(made(name)), folders / f"small-{name}")
    layer = small.get_input_embeddings()
    assert isinstance(layer, CodedEmbedding)
    call("compress", folders / name, tmp_path / "words.ant", "--budget", "4x")
    table, ids = ant.load_table(tmp_path / "words.ant"), torch.randint(0, V, (3, 4))
    assert np.array_equal(layer(ids).numpy(), table[ids.numpy()])
    weight = model.get_input_embeddings().weight
    with torch.no_grad():
        weight.copy_(torch.from_numpy(table[:]))
    torch.testing.assert_close(logits(small), logits(model))
    small.save_pretrained(tmp_path / "again")
    assert torch.equal(logits(loaded(type(model), tmp_path / "again")), logits(small))
    torch.testing.assert_close(logits(small.dequantize()), logits(model))


@pytest.mark.parametrize("name", MODELS)
def test_only_the_embedding_changes(name, folders):
    before, after = tensors(folders / name), tensors(folders / f"small-{name}")
    (coded,) = [key for key in after if key.endswith(".coded")]
    assert 0 < after[coded].numel() <= V * D
    assert after[coded.replace(".coded", ".weight")].shape == (0,)
    others = set(before) - {coded.replace(".coded", ".weight")}
    assert set(after) - {coded, coded.replace(".coded", ".weight")} == others
    assert all(torch.equal(before[key], after[key]) for key in others)
    assert (folders / f"small-{name}" / "README.md").read_text() == "hello"
    assert (folders / f"small-{name}" / "1_Pooling" / "config.json").read_text() == "{}"
    assert not (folders / f"small-{name}" / "pytorch_model.bin").exists()
    sizes = [(folders / each / "model.safetensors").stat().st_size for each in (name, f"small-{name}")]
    assert sizes[1] < sizes[0] - 3 * V * D + 500


def test_without_the_import_it_is_an_error(folders, monkeypatch):
    monkeypatch.delitem(AUTO_QUANTIZATION_CONFIG_MAPPING, "antembed")
    with pytest.raises(RuntimeError, match="ignore_mismatched_sizes"):
        AutoModel.from_pretrained(folders / "small-bert")


def test_types(folders, tmp_path):
    """Half-precision folders, and models loaded in half precision."""
    made("gpt2").to(torch.bfloat16).save_pretrained(tmp_path / "half")
    result = json.loads(call("compress", tmp_path / "half", tmp_path / "small", "--budget", "4x", "--json"))
    assert result["bytes_before"] == 2 * V * D
    model = AutoModel.from_pretrained(tmp_path / "small", dtype=torch.bfloat16)
    assert model(torch.arange(1, 5).unsqueeze(0)).last_hidden_state.dtype == torch.bfloat16
    wide = AutoModel.from_pretrained(folders / "small-gpt2").double()
    assert wide.wte(torch.arange(3)).dtype == torch.float64


def test_shards_and_copies_of_the_embedding(tmp_path):
    model = made("t5")
    model.save_pretrained(tmp_path / "many", max_shard_size="8KB")
    assert len(list((tmp_path / "many").glob("*.safetensors"))) > 1
    call("compress", tmp_path / "many", tmp_path / "small", "--budget", "2x")
    one = tensors_of_shards(tmp_path / "many")
    safetensors.torch.save_file(one | {"lm_head.weight": one["shared.weight"].clone()}, tmp_path / "many" / "model.safetensors")
    for file in (tmp_path / "many").glob("model*-of-*"):
        file.unlink()
    (tmp_path / "many" / "model.safetensors.index.json").unlink()
    call("compress", tmp_path / "many", tmp_path / "one", "--budget", "2x")
    assert "lm_head.weight" not in tensors(tmp_path / "one")
    small, other = loaded(type(model), tmp_path / "small"), loaded(type(model), tmp_path / "one")
    assert torch.equal(logits(small), logits(other))


def tensors_of_shards(folder):
    return {name: tensor for file in folder.glob("*.safetensors") for name, tensor in safetensors.torch.load_file(file).items()}


def test_what_is_refused(folders, tmp_path):
    small = folders / "small-bert"

    def refused(match, *words):
        with pytest.raises(ValueError, match=match):
            call("compress", *words)

    refused(r"quantized already \(antembed\)", small, tmp_path / "x")
    refused("exists; choose another name, or say --overwrite", folders / "bert", small)
    refused("one in the other", folders / "bert", folders / "bert" / "small")
    refused("needs to know the tokens of texts", folders / "bert", tmp_path / "x.ant", "--distil", tmp_path / "texts")
    (tmp_path / "full").mkdir()
    for name in ("thesis.tex", "config.json"):  # many projects have a config.json
        (tmp_path / "full" / name).write_text("{}")
        refused("is no model's folder that antembed wrote", folders / "bert", tmp_path / "full", "--overwrite")
    shutil.copytree(small, tmp_path / "noted")
    (tmp_path / "noted" / ".env").write_text("precious")
    refused(r"has \.env, which is not of the model", folders / "bert", tmp_path / "noted", "--overwrite")
    with pytest.raises(ValueError, match=f"table of {V} rows cannot become one of {V + 1}; first call model.dequantize"):
        AutoModel.from_pretrained(small).resize_token_embeddings(V + 1)
    config = json.loads((small / "config.json").read_text())
    config["quantization_config"]["newer"] = 1
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").write_bytes((small / "model.safetensors").read_bytes())
    with pytest.raises(ValueError, match="has newer, unknown here; upgrade antembed"):
        AutoModel.from_pretrained(tmp_path)


def test_overwrite_replaces_a_model(folders, tmp_path):
    for budget in ("2x", "4x"):
        call("compress", folders / "bert", tmp_path / "small", "--budget", budget, "--overwrite")
    assert json.loads((tmp_path / "small" / "config.json").read_text())["quantization_config"]["coded"].popitem()[1] <= V * D
    assert [file.name for file in tmp_path.iterdir()] == ["small"]
