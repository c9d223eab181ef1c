"""ids → vectors: one file an embedding, one line here."""

from collections.abc import Callable
from typing import Any

from antembed.embedding.anchor import AnchorEmbedding
from antembed.embedding.bag import AnchorEmbeddingBag
from antembed.embedding.base import Embedding, param_groups
from antembed.embedding.full import FullEmbedding
from antembed.embedding.lowrank import LowRankEmbedding
from antembed.embedding.mixture import MixtureEmbedding
from antembed.embedding.usage import Usage


def _mixture(kind: str) -> Callable[..., Embedding]:
    def build(V: int, d: int, padding_idx: int | None = None, *, num_anchors: int, **settings: Any) -> Embedding:
        sets = (num_anchors - num_anchors // 2, num_anchors // 2) if num_anchors > 1 else (num_anchors,)
        return MixtureEmbedding(V, d, padding_idx, num_anchors=sets, kind=kind, **settings)

    return build


def _nonnegative_low_rank(V: int, d: int, padding_idx: int | None = None, **settings: Any) -> Embedding:
    return LowRankEmbedding(V, d, padding_idx, nonnegative=True, **settings)


def _full(V: int, d: int, padding_idx: int | None = None, *, num_anchors: int = 0, **settings: Any) -> Embedding:
    return FullEmbedding(V, d, padding_idx, **settings)


# name → builder(V, d, padding_idx, num_anchors=…, sparse=…, device=…, dtype=…); the contract tests run over all of them.
EMBEDDINGS: dict[str, Callable[..., Embedding]] = {
    "anchor": AnchorEmbedding,
    "full": _full,
    "low-rank": LowRankEmbedding,
    "low-rank-nonnegative": _nonnegative_low_rank,
    "mixture": _mixture("linear"),
    "softmax-mixture": _mixture("softmax"),
}

__all__ = [
    "EMBEDDINGS",
    "AnchorEmbedding",
    "AnchorEmbeddingBag",
    "Embedding",
    "FullEmbedding",
    "LowRankEmbedding",
    "MixtureEmbedding",
    "Usage",
    "param_groups",
]
