"""Tuning on texts: sentence similarities come nearer to the original's, at the same size."""

import gzip
import json
import shutil

import numpy as np
import pytest
import torch
from tests.command import call

pytest.importorskip("transformers")
from tests.hf.models import D, V
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing
from transformers import AutoModel, BertConfig, BertModel

import antembed.hf  # noqa: F401
from antembed.data.text_file import DataError
from antembed.hf.distil import pooling_of


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model with a tokenizer, and texts in which few words are frequent."""
    root = tmp_path_factory.mktemp("tuned")
    torch.manual_seed(0)
    small = {"hidden_size": D, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": D}
    model = BertModel(BertConfig(vocab_size=V, max_position_embeddings=32, **small))
    with torch.no_grad():
        model.embeddings.word_embeddings.weight.normal_()
    model.save_pretrained(root / "model")
    tokenizer = Tokenizer(
        WordLevel({"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "[MASK]": 4} | {f"w{n}": n for n in range(5, V)}, "[UNK]")
    )
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.post_processor = TemplateProcessing(single="[CLS] $A", special_tokens=[("[CLS]", 2)])
    tokenizer.save(str(root / "model" / "tokenizer.json"))
    rng = np.random.default_rng(0)
    texts = [" ".join(f"w{n}" for n in np.minimum(rng.zipf(1.3, 8) + 4, V - 1)) for _ in range(160)]
    with gzip.open(root / "texts.gz", "wt") as file:
        file.write("\n".join(texts))
    return root


def test_similarities_come_nearer_to_the_original(folder, tmp_path):
    words = ("compress", folder / "model", tmp_path / "small", "--budget", "4x", "--distil", folder / "texts.gz", "--json")
    found = json.loads(call(*words))
    spearman = found["spearman"]
    assert spearman["after"] == max(spearman.values()) > spearman["before"]
    assert found["bytes"] <= V * D
    call(*words[:2], tmp_path / "again", *words[3:])
    assert (tmp_path / "again" / "model.safetensors").read_bytes() == (tmp_path / "small" / "model.safetensors").read_bytes()
    AutoModel.from_pretrained(tmp_path / "small")


def test_too_few_texts(folder, tmp_path):
    (tmp_path / "few.txt").write_text("one\ntwo\n\n")
    with pytest.raises(DataError, match="2 texts are too few to tune a model on; give 100 or more"):
        call("compress", folder / "model", tmp_path / "small", "--budget", "4x", "--distil", tmp_path / "few.txt")


def test_pooling(tmp_path):
    assert pooling_of(tmp_path) == "mean"
    (tmp_path / "1_Pooling").mkdir()
    file = tmp_path / "1_Pooling" / "config.json"
    file.write_text(json.dumps({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}))
    assert pooling_of(tmp_path) == "cls"
    file.write_text(json.dumps({"pooling_mode_max_tokens": True}))
    with pytest.raises(DataError, match="says max; --distil knows mean and cls"):
        pooling_of(tmp_path)


def test_sentence_transformers(folder, tmp_path):
    """Where it is installed, it reads the small folder: modules.json and 1_Pooling are there."""
    sentence_transformers = pytest.importorskip("sentence_transformers")
    shutil.copytree(folder / "model", tmp_path / "whole")
    kinds = {"": "Transformer", "1_Pooling": "Pooling"}
    modules = [
        {"idx": n, "name": str(n), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for n, (path, kind) in enumerate(kinds.items())
    ]
    (tmp_path / "whole" / "modules.json").write_text(json.dumps(modules))
    (tmp_path / "whole" / "1_Pooling").mkdir()
    pooling = {"word_embedding_dimension": D, "pooling_mode_mean_tokens": True}
    (tmp_path / "whole" / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    call("compress", tmp_path / "whole", tmp_path / "small", "--budget", "4x")
    whole, small = (sentence_transformers.SentenceTransformer(str(tmp_path / name)) for name in ("whole", "small"))
    vectors = [model.encode(["w9 w30 w5", "w7 w100"], normalize_embeddings=True) for model in (whole, small)]
    assert ((vectors[0] * vectors[1]).sum(1) > 0.95).all()
    assert not np.array_equal(*vectors)
