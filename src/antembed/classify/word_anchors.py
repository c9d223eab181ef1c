"""What is known of words before a model is trained: their features, and which are related to which."""

from functools import partial
from pathlib import Path

import numpy as np
from scipy import sparse

from antembed.classify.config import TextConfig
from antembed.classify.dataset import TextSplits
from antembed.data.cooccurrence import cooccurrences, svd_features
from antembed.data.relations import cached, free_entries, read_edges, union
from antembed.data.word_vectors import read_vectors
from antembed.data.wordnet import find_wordnet, read_wordnet
from antembed.files import default_cache
from antembed.layer.anchors.initializers import ObjectStatistics, choose_anchors

Tokens = tuple[np.ndarray, np.ndarray]  # ids of words, and where each document begins
WIDTH = 64  # of features made from co-occurrences


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
    related = [relation(name, own.wordnet, train_docs.vocabulary.words, text, cache) for name in own.relations]
    splits.relations = union(*related) if related else None


def features_of(text: Tokens, V: int, seed: int, cache: Path) -> np.ndarray:
    """Vectors of the words, from which words they occur with: (V, width)."""
    counts = cached(lambda: cooccurrences(*text, V, min_count=1, min_pmi=-np.inf), cache, "all co-occurrences", V, *text)
    return svd_features(counts, min(WIDTH, V - 1), seed).astype(np.float32)


def relation(name: str, wordnet: str, words: list[str], text: Tokens, cache: Path) -> sparse.csr_array:
    """Which words are related: by WordNet, by co-occurrence, or by a file of pairs."""
    if name == "wordnet":
        folder = find_wordnet(wordnet or None)
        return cached(partial(read_wordnet, words, folder), cache, name, words, folder)
    if name == "cooccurrence":
        return cached(lambda: cooccurrences(*text, len(words)), cache, name, len(words), *text)
    return read_edges(name, words)


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
