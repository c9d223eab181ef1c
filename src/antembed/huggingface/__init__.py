"""Hugging Face: import this, and `AutoModel.from_pretrained` reads models with compressed or anchored embeddings.

import antembed.huggingface
model = AutoModel.from_pretrained("small-model")  # written by `antembed compress model small-model`
"""

from antembed.embedding.huggingface import AntembedConfig, AntembedQuantizer

__all__ = ["AntembedConfig", "AntembedQuantizer"]
