"""ids → vectors: one file an embedding, one line here."""

from collections.abc import Callable
from typing import Any

from antembed.embedding.anchor import AnchorEmbedding
from antembed.embedding.bag import AnchorEmbeddingBag
from antembed.embedding.base import Embedding, keep_largest, param_groups
from antembed.embedding.baselines.full import FullEmbedding
from antembed.embedding.baselines.group_lasso import GroupLassoEmbedding
from antembed.embedding.baselines.hashed import HashEmbedding
from antembed.embedding.baselines.low_rank import LowRankEmbedding
from antembed.embedding.baselines.mixed_dimension import MixedDimensionEmbedding
from antembed.embedding.baselines.slimming import SlimmingTransform
from antembed.embedding.baselines.sparse import SparseEmbedding
from antembed.embedding.baselines.sparse_code import SparseCodeEmbedding, sparse_codes
from antembed.embedding.baselines.sparse_vd import SparseVariationalEmbedding
from antembed.embedding.baselines.vvd import VocabularyDropout
from antembed.embedding.mixture import MixtureEmbedding
from antembed.embedding.quantized import QuantizedEmbedding, quantize
from antembed.embedding.usage import Usage


def _mixture(kind: str) -> Callable[..., Embedding]:
    def build(V: int, d: int, padding_idx: int | None = None, *, num_anchors: int, **settings: Any) -> Embedding:
        sets = (num_anchors - num_anchors // 2, num_anchors // 2) if num_anchors > 1 else (num_anchors,)
        return MixtureEmbedding(V, d, padding_idx, num_anchors=sets, kind=kind, **settings)

    return build


def _nonnegative_low_rank(V: int, d: int, padding_idx: int | None = None, **settings: Any) -> Embedding:
    return LowRankEmbedding(V, d, padding_idx, nonnegative=True, **settings)


def _without_anchors(table: Callable[..., Embedding], **fixed: Any) -> Callable[..., Embedding]:
    def build(V: int, d: int, padding_idx: int | None = None, *, num_anchors: int = 0, **settings: Any) -> Embedding:
        return table(V, d, padding_idx, **fixed, **settings)

    return build


def _selected(V: int, d: int, padding_idx: int | None = None, *, num_anchors: int, **settings: Any) -> Embedding:
    """A row each for the `num_anchors` objects of the largest `counts` (or any other score); the rest share one."""
    return HashEmbedding(V, d, padding_idx, own=num_anchors, buckets=1, **settings)


def _hashed(V: int, d: int, padding_idx: int | None = None, *, num_anchors: int, **settings: Any) -> Embedding:
    """`num_anchors` rows in all, half of them for the most frequent objects."""
    own = num_anchors // 2
    return HashEmbedding(V, d, padding_idx, own=own, buckets=num_anchors - own, **settings)


# name → builder(V, d, padding_idx, num_anchors=…, sparse=…, device=…, dtype=…); the contract tests run over all of them.
EMBEDDINGS: dict[str, Callable[..., Embedding]] = {
    "anchor": AnchorEmbedding,
    "frequency": _selected,
    "full": _without_anchors(FullEmbedding),
    "group-lasso": _without_anchors(GroupLassoEmbedding),
    "hashed": _hashed,
    "low-rank": LowRankEmbedding,
    "low-rank-nonnegative": _nonnegative_low_rank,
    "mixed": _without_anchors(MixedDimensionEmbedding),
    "mixture": _mixture("linear"),
    "slimming": _without_anchors(SparseEmbedding, prox="subgradient"),  # then `keep`; sparse-subgradient is left to `prune`
    "slimming-transform": SlimmingTransform,
    "softmax-mixture": _mixture("softmax"),
    "sparse": _without_anchors(SparseEmbedding, prox="two-sided"),
    "sparse-code": SparseCodeEmbedding,
    "sparse-subgradient": _without_anchors(SparseEmbedding, prox="subgradient"),
    "sparse-vd": _without_anchors(SparseVariationalEmbedding),
    "sparse-vd-words": _without_anchors(SparseVariationalEmbedding, words=True),
    "tf-idf": _selected,
    "vvd": _without_anchors(VocabularyDropout),
}

__all__ = [
    "EMBEDDINGS",
    "AnchorEmbedding",
    "AnchorEmbeddingBag",
    "Embedding",
    "FullEmbedding",
    "GroupLassoEmbedding",
    "HashEmbedding",
    "LowRankEmbedding",
    "MixedDimensionEmbedding",
    "MixtureEmbedding",
    "QuantizedEmbedding",
    "SlimmingTransform",
    "SparseCodeEmbedding",
    "SparseEmbedding",
    "SparseVariationalEmbedding",
    "Usage",
    "VocabularyDropout",
    "keep_largest",
    "param_groups",
    "quantize",
    "sparse_codes",
]
