"""What AnchorEmbedding is compared with: one file a method, all with the interface of `Embedding`."""

from antembed.embedding.baselines.full import FullEmbedding
from antembed.embedding.baselines.group_lasso import GroupLassoEmbedding
from antembed.embedding.baselines.hashed import FrequencyEmbedding, HashEmbedding, TfidfEmbedding
from antembed.embedding.baselines.low_rank import LowRankEmbedding, NonnegativeLowRank
from antembed.embedding.baselines.mixed_dimension import MixedDimensionEmbedding
from antembed.embedding.baselines.slimming import SlimmingEmbedding, SlimmingTransform
from antembed.embedding.baselines.sparse import SparseEmbedding, SubgradientSparseEmbedding
from antembed.embedding.baselines.sparse_code import SparseCodeEmbedding, sparse_codes
from antembed.embedding.baselines.sparse_vd import SparseVariationalEmbedding, SparseVDWords
from antembed.embedding.baselines.tensor_train import TensorTrainEmbedding
from antembed.embedding.baselines.vvd import VocabularyDropout

__all__ = [
    "FrequencyEmbedding",
    "FullEmbedding",
    "GroupLassoEmbedding",
    "HashEmbedding",
    "LowRankEmbedding",
    "MixedDimensionEmbedding",
    "NonnegativeLowRank",
    "SlimmingEmbedding",
    "SlimmingTransform",
    "SparseCodeEmbedding",
    "SparseEmbedding",
    "SparseVDWords",
    "SparseVariationalEmbedding",
    "SubgradientSparseEmbedding",
    "TensorTrainEmbedding",
    "TfidfEmbedding",
    "VocabularyDropout",
    "sparse_codes",
]
