"""What AnchorEmbedding is compared with, all with the interface of `Embedding`; and all embeddings by name."""

from antembed.baselines.group_lasso import GroupLassoEmbedding
from antembed.baselines.hashed import FrequencyEmbedding, HashEmbedding, TfidfEmbedding
from antembed.baselines.low_rank import LowRankEmbedding, NonnegativeLowRank
from antembed.baselines.mixed_dimension import MixedDimensionEmbedding
from antembed.baselines.product_quantized import QuantizedEmbedding, quantize
from antembed.baselines.slimming import SlimmingEmbedding, SlimmingTransform, SparseEmbedding, SubgradientSparseEmbedding
from antembed.baselines.sparse_code import SparseCodeEmbedding, sparse_codes
from antembed.baselines.tensor_train import TensorTrainEmbedding
from antembed.baselines.variational import SparseVariationalEmbedding, SparseVDWords, VocabularyDropout
from antembed.layer.anchor import AnchorEmbedding
from antembed.layer.embedding import Embedding
from antembed.layer.full import FullEmbedding
from antembed.layer.mixture import MixtureEmbedding, SoftmaxMixture

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

__all__ = ["EMBEDDINGS", "FrequencyEmbedding", "FullEmbedding", "GroupLassoEmbedding", "HashEmbedding", "LowRankEmbedding",
           "MixedDimensionEmbedding", "MixtureEmbedding", "NonnegativeLowRank", "QuantizedEmbedding", "SlimmingEmbedding",
           "SlimmingTransform", "SoftmaxMixture", "SparseCodeEmbedding", "SparseEmbedding", "SparseVDWords",
           "SparseVariationalEmbedding", "SubgradientSparseEmbedding", "TensorTrainEmbedding", "TfidfEmbedding",
           "VocabularyDropout", "quantize", "sparse_codes"]  # fmt: skip
