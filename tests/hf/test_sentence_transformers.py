"""Models of sentence-transformers whose tables were replaced: saved and loaded, or refused."""

import pytest
import torch

pytest.importorskip("sentence_transformers", reason="sentence-transformers is not installed: pip install sentence-transformers")
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import StaticEmbedding, WordEmbeddings
from sentence_transformers.sentence_transformer.modules.tokenizer import WhitespaceTokenizer
from tokenizers import Tokenizer, models, pre_tokenizers

import antembed as ant

WORDS = [f"w{n}" for n in range(60)]


def static_model():
    torch.manual_seed(0)
    tokenizer = Tokenizer(models.WordLevel({word: n for n, word in enumerate(WORDS)}, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return SentenceTransformer(modules=[StaticEmbedding(tokenizer, embedding_dim=8)], device="cpu")


def test_a_replaced_static_embedding_is_saved_and_loaded(tmp_path):
    model = static_model()
    ant.replace_embeddings(model, num_anchors=5)
    wanted = model.encode(["w3 w9", "w7"])
    model.save(str(tmp_path))
    with pytest.raises(ValueError, match=r"(?s)antembed\.hf\.AnchoredStaticEmbedding.*trust_remote_code=True"):
        SentenceTransformer(str(tmp_path), device="cpu")
    again = SentenceTransformer(str(tmp_path), device="cpu", trust_remote_code=True)
    assert isinstance(again[0].embedding, ant.AnchorEmbeddingBag)
    assert (again.encode(["w3 w9", "w7"]) == wanted).all()
    again.save(str(tmp_path / "again"))
    assert (SentenceTransformer(str(tmp_path / "again"), device="cpu", trust_remote_code=True).encode("w7") == wanted[1]).all()


def test_modules_that_load_plain_tables_refuse_to_save(tmp_path):
    words = WordEmbeddings(WhitespaceTokenizer(WORDS), torch.randn(60, 8))
    model = SentenceTransformer(modules=[words], device="cpu")
    ant.replace_embeddings(model, num_anchors=5)
    with pytest.raises(ValueError, match=r"a WordEmbeddings .* loads plain tables only.*layer\.to_dense\(\)"):
        model.save(str(tmp_path))
