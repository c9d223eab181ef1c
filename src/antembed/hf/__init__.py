"""Hugging Face: import this, and `AutoModel.from_pretrained` reads models with compressed or anchored embeddings.

import antembed.hf
model = AutoModel.from_pretrained("small-model")  # written by `antembed compress model small-model`
"""

from typing import Any

from antembed.hf.transformers_models import AntembedConfig, AntembedQuantizer

__all__ = ["AnchoredStaticEmbedding", "AntembedConfig", "AntembedQuantizer"]


def __getattr__(name: str) -> Any:
    if name == "AnchoredStaticEmbedding":  # on first use: sentence-transformers is no dependency
        from antembed.hf.static_embedding import AnchoredStaticEmbedding

        return AnchoredStaticEmbedding
    raise AttributeError(f"module 'antembed.hf' has no attribute {name!r}")
