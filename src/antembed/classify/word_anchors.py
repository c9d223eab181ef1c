"""What is known of words before a model is trained: their features, and which are related to which."""

from pathlib import Path

import numpy as np

from antembed.classify.config import TextConfig
from antembed.classify.dataset import TextSplits
from antembed.data.relations import features_of, free_entries, relation_of, union
from antembed.data.word_vectors import read_vectors
from antembed.files import default_cache
from antembed.layer.anchors.initializers import ObjectStatistics, choose_anchors


def gather(config: TextConfig, splits: TextSplits, cache: Path | None = None) -> None:
    """Put what the config asks for into the splits; co-occurrences are those of the training documents."""
    own, cache = config.anchors, cache or default_cache()
    documents = splits.train.documents
    assert documents is not None
    train_docs = documents.take(splits.train.rows)
    text, V = (train_docs.tokens, train_docs.starts), len(train_docs.vocabulary)
    if own.vectors:
        found = read_vectors(own.vectors, train_docs.vocabulary.words)
        splits.features, splits.without_vector = found.vectors, found.missing
    elif config.wants_features:
        splits.features = features_of(text, V, config.machine.seed, cache)
    related = [relation_of(name, own.wordnet, train_docs.vocabulary.words, text, cache) for name in own.relations]
    splits.relations = union(*related) if related else None


def anchor_words(config: TextConfig, splits: TextSplits, K: int) -> np.ndarray | None:
    """The words that are anchors (K,); None: anchors are no words."""
    name, words = config.anchors.anchor_init, splits.vocabulary
    if name == "none" or words is None:
        return None
    statistics = ObjectStatistics(
        counts=words.counts,
        document_counts=words.document_counts,
        documents=words.documents,
        features=splits.features,
        scores=splits.scores,
    )
    return choose_anchors(name, statistics, K, config.machine.seed)


def free_pairs(splits: TextSplits, anchors: np.ndarray | None) -> tuple[np.ndarray, np.ndarray] | None:
    """Entries of T that cost nothing: words related to an anchor, or one themselves."""
    return None if splits.relations is None or anchors is None else free_entries(splits.relations, anchors)
