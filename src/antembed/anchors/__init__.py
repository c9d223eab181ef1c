"""Which objects are anchors, and which objects are related: arrays in, arrays out, without torch.

`init_weights.py` (the initial T and A) and `regularizers.py` (penalties) need torch, and are imported by their own names.
"""

from antembed.anchors.cooccurrence import cooccurrences, svd_features
from antembed.anchors.initializers import INITIALIZERS, Initializer, ObjectStatistics, choose_anchors, scores
from antembed.anchors.pretrained import Pretrained, read_vectors
from antembed.anchors.relations import cached, free_entries, from_pairs, read_edges, union
from antembed.anchors.wordnet import find_wordnet, read_wordnet

__all__ = [
    "INITIALIZERS",
    "Initializer",
    "ObjectStatistics",
    "Pretrained",
    "cached",
    "choose_anchors",
    "cooccurrences",
    "find_wordnet",
    "free_entries",
    "from_pairs",
    "read_edges",
    "read_vectors",
    "read_wordnet",
    "scores",
    "svd_features",
    "union",
]
