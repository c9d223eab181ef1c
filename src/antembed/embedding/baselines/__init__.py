"""What AnchorEmbedding is compared with: one file a method, all with the interface of `Embedding`."""

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

__all__ = [
    "FullEmbedding",
    "GroupLassoEmbedding",
    "HashEmbedding",
    "LowRankEmbedding",
    "MixedDimensionEmbedding",
    "SlimmingTransform",
    "SparseCodeEmbedding",
    "SparseEmbedding",
    "SparseVariationalEmbedding",
    "VocabularyDropout",
    "sparse_codes",
]
