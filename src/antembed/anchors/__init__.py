"""Which objects are anchors, what T and A start from, and which objects are related: arrays in, arrays and tensors out."""

from antembed.anchors.choose import CHOICES, Known, choose, scores
from antembed.anchors.cooccurrence import cooccurrence, svd_features
from antembed.anchors.penalties import UnrelatedPairs, negative_pairs, orthogonality
from antembed.anchors.pretrained import Pretrained, read_vectors
from antembed.anchors.relations import cached, free_entries, from_pairs, read_edges, union
from antembed.anchors.start import start
from antembed.anchors.wordnet import find_wordnet, wordnet

__all__ = [
    "CHOICES",
    "Known",
    "Pretrained",
    "UnrelatedPairs",
    "cached",
    "choose",
    "cooccurrence",
    "find_wordnet",
    "free_entries",
    "from_pairs",
    "negative_pairs",
    "orthogonality",
    "read_edges",
    "read_vectors",
    "scores",
    "start",
    "svd_features",
    "union",
    "wordnet",
]
