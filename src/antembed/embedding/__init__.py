"""ids → vectors: AnchorEmbedding (T·A), bags, mixtures; the baselines are in baselines/."""

from antembed.embedding.anchor import AnchorEmbedding
from antembed.embedding.bag import AnchorEmbeddingBag
from antembed.embedding.base import Embedding, keep_largest, param_groups
from antembed.embedding.baselines import (
    FrequencyEmbedding,
    FullEmbedding,
    GroupLassoEmbedding,
    HashEmbedding,
    LowRankEmbedding,
    MixedDimensionEmbedding,
    NonnegativeLowRank,
    SlimmingEmbedding,
    SlimmingTransform,
    SparseCodeEmbedding,
    SparseEmbedding,
    SparseVariationalEmbedding,
    SparseVDWords,
    SubgradientSparseEmbedding,
    TensorTrainEmbedding,
    TfidfEmbedding,
    VocabularyDropout,
    sparse_codes,
)
from antembed.embedding.controller import SparsityController
from antembed.embedding.mixture import MixtureEmbedding, SoftmaxMixture
from antembed.embedding.quantized import QuantizedEmbedding, quantize
from antembed.embedding.replace import replace_embeddings
from antembed.embedding.tied import TiedHead
from antembed.embedding.usage import Usage

# name → class; the contract tests and the command line run over all of them.
EMBEDDINGS: dict[str, type[Embedding]] = {
    "anchor": AnchorEmbedding,
    "frequency": FrequencyEmbedding,
    "full": FullEmbedding,
    "group-lasso": GroupLassoEmbedding,
    "hashed": HashEmbedding,
    "low-rank": LowRankEmbedding,
    "low-rank-nonnegative": NonnegativeLowRank,
    "mixed": MixedDimensionEmbedding,
    "mixture": MixtureEmbedding,
    "slimming": SlimmingEmbedding,
    "slimming-transform": SlimmingTransform,
    "softmax-mixture": SoftmaxMixture,
    "sparse": SparseEmbedding,
    "sparse-code": SparseCodeEmbedding,
    "sparse-subgradient": SubgradientSparseEmbedding,
    "sparse-vd": SparseVariationalEmbedding,
    "sparse-vd-words": SparseVDWords,
    "tensor-train": TensorTrainEmbedding,
    "tf-idf": TfidfEmbedding,
    "vvd": VocabularyDropout,
}

__all__ = [
    "EMBEDDINGS",
    "AnchorEmbedding",
    "AnchorEmbeddingBag",
    "Embedding",
    "FrequencyEmbedding",
    "FullEmbedding",
    "GroupLassoEmbedding",
    "HashEmbedding",
    "LowRankEmbedding",
    "MixedDimensionEmbedding",
    "MixtureEmbedding",
    "NonnegativeLowRank",
    "QuantizedEmbedding",
    "SlimmingEmbedding",
    "SlimmingTransform",
    "SoftmaxMixture",
    "SparseCodeEmbedding",
    "SparseEmbedding",
    "SparseVDWords",
    "SparseVariationalEmbedding",
    "SparsityController",
    "SubgradientSparseEmbedding",
    "TensorTrainEmbedding",
    "TfidfEmbedding",
    "TiedHead",
    "Usage",
    "VocabularyDropout",
    "keep_largest",
    "param_groups",
    "quantize",
    "replace_embeddings",
    "sparse_codes",
]
