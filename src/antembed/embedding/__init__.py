"""ids → vectors: one file an embedding, one line here."""

from collections.abc import Callable
from typing import Any

from antembed.embedding.anchor import AnchorEmbedding
from antembed.embedding.bag import AnchorEmbeddingBag
from antembed.embedding.base import Embedding, keep_largest, param_groups
from antembed.embedding.full import FullEmbedding
from antembed.embedding.hashed import HashEmbedding
from antembed.embedding.lowrank import LowRankEmbedding
from antembed.embedding.mixed import MixedDimensionEmbedding
from antembed.embedding.mixture import MixtureEmbedding
from antembed.embedding.slimming import SlimmingTransform
from antembed.embedding.sparse import SparseEmbedding
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


def _mixed(V: int, d: int, padding_idx: int | None = None, *, num_anchors: int = 0, **settings: Any) -> Embedding:
    return MixedDimensionEmbedding(V, d, padding_idx, **settings)


def _hashed(V: int, d: int, padding_idx: int | None = None, *, num_anchors: int, **settings: Any) -> Embedding:
    """`num_anchors` rows in all, half of them for the most frequent objects."""
    own = num_anchors // 2
    return HashEmbedding(V, d, padding_idx, own=own, buckets=num_anchors - own, **settings)


def _sparse(prox: str) -> Callable[..., Embedding]:
    def build(V: int, d: int, padding_idx: int | None = None, *, num_anchors: int = 0, **settings: Any) -> Embedding:
        return SparseEmbedding(V, d, padding_idx, prox=prox, **settings)

    return build


# name → builder(V, d, padding_idx, num_anchors=…, sparse=…, device=…, dtype=…); the contract tests run over all of them.
EMBEDDINGS: dict[str, Callable[..., Embedding]] = {
    "anchor": AnchorEmbedding,
    "full": _full,
    "hashed": _hashed,
    "low-rank": LowRankEmbedding,
    "low-rank-nonnegative": _nonnegative_low_rank,
    "mixed": _mixed,
    "mixture": _mixture("linear"),
    "slimming": _sparse("subgradient"),  # then `keep`, where sparse-subgradient is left to `prune`
    "slimming-transform": SlimmingTransform,
    "softmax-mixture": _mixture("softmax"),
    "sparse": _sparse("two-sided"),
    "sparse-subgradient": _sparse("subgradient"),
}

__all__ = [
    "EMBEDDINGS",
    "AnchorEmbedding",
    "AnchorEmbeddingBag",
    "Embedding",
    "FullEmbedding",
    "HashEmbedding",
    "LowRankEmbedding",
    "MixedDimensionEmbedding",
    "MixtureEmbedding",
    "SlimmingTransform",
    "SparseEmbedding",
    "Usage",
    "keep_largest",
    "param_groups",
]
