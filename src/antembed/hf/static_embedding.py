"""Replaced layers in models of sentence-transformers, whose modules load plain tables by name."""

from types import MethodType
from typing import Any, NoReturn, Self

from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from tokenizers import Tokenizer
from torch import nn

from antembed.files import JSON
from antembed.layer.anchor import AnchoredTable
from antembed.layer.bag import AnchorEmbeddingBag


class AnchoredStaticEmbedding(StaticEmbedding):
    """A StaticEmbedding whose table is an AnchorEmbeddingBag. `modules.json` names this class, which sentence-transformers
    imports with `SentenceTransformer(folder, trust_remote_code=True)`."""

    __module__ = "antembed.hf"  # the name in saved models

    @classmethod
    def load(cls, model_name_or_path: str, subfolder: str = "", **others: Any) -> Self:
        options = ("token", "cache_folder", "revision", "local_files_only")
        hub: JSON = {"subfolder": subfolder, **{name: others[name] for name in options if name in others}}
        tokenizer = Tokenizer.from_file(cls.load_file_path(model_name_or_path, filename="tokenizer.json", **hub))
        weights = cls.load_torch_weights(model_name_or_path=model_name_or_path, **hub)
        (V, K), d = weights["embedding.rows.weight"].shape, weights["embedding.anchors"].shape[1]
        module = cls(tokenizer, embedding_dim=d)
        module.embedding = AnchorEmbeddingBag(V, d, num_anchors=K)
        module.num_embeddings = V
        module.load_state_dict(weights)
        return module


def attach(model: nn.Module) -> None:
    """Make every module of sentence-transformers in here save its anchored layer so that it loads, or refuse to."""
    for part in model.modules():
        ours = any(isinstance(child, AnchoredTable) for child in part.children())
        if ours and type(part) is StaticEmbedding:
            part.__class__ = AnchoredStaticEmbedding
        elif ours and type(part).__module__.startswith("sentence_transformers."):
            part.__dict__["save"] = MethodType(_refuse, part)


def _refuse(module: nn.Module, *_: object, **__: object) -> NoReturn:
    raise ValueError(
        f"a {type(module).__name__} of sentence-transformers loads plain tables only, its table is anchored; save the layer "
        "with antembed.export, or put an nn.Embedding with layer.to_dense() in its place"
    )
