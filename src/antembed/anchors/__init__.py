"""Which objects are anchors, what T and A start from, and which objects are related: arrays in, arrays and tensors out."""

from antembed.anchors.choices import CHOICES, Known, choose, scores
from antembed.anchors.cooccurrence import cooccurrences, svd_features
from antembed.anchors.initial import start
from antembed.anchors.penalties import UnrelatedPairs, negative_pairs, orthogonality
from antembed.anchors.pretrained import Pretrained, read_vectors
from antembed.anchors.relations import cached, free_entries, from_pairs, read_edges, union
from antembed.anchors.wordnet import find_wordnet, read_wordnet

__all__ = [
    "CHOICES",
    "Known",
    "Pretrained",
    "UnrelatedPairs",
    "cached",
    "choose",
    "cooccurrences",
    "find_wordnet",
    "free_entries",
    "from_pairs",
    "negative_pairs",
    "orthogonality",
    "read_edges",
    "read_vectors",
    "read_wordnet",
    "scores",
    "start",
    "svd_features",
    "union",
]
