"""Which objects are anchors, the initial T and A, and which objects are related: arrays in, arrays and tensors out."""

from antembed.anchors.cooccurrence import cooccurrences, svd_features
from antembed.anchors.init_weights import init_weights
from antembed.anchors.initializers import INITIALIZERS, Initializer, ObjectStatistics, choose_anchors, scores
from antembed.anchors.pretrained import Pretrained, read_vectors
from antembed.anchors.regularizers import UnrelatedPairs, negative_pairs, orthogonality
from antembed.anchors.relations import cached, free_entries, from_pairs, read_edges, union
from antembed.anchors.wordnet import find_wordnet, read_wordnet

__all__ = [
    "INITIALIZERS",
    "Initializer",
    "ObjectStatistics",
    "Pretrained",
    "UnrelatedPairs",
    "cached",
    "choose_anchors",
    "cooccurrences",
    "find_wordnet",
    "free_entries",
    "from_pairs",
    "init_weights",
    "negative_pairs",
    "orthogonality",
    "read_edges",
    "read_vectors",
    "read_wordnet",
    "scores",
    "svd_features",
    "union",
]
