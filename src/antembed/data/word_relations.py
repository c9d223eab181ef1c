"""Which words are related, and features of words, from a corpus, WordNet or a file of pairs."""

from functools import partial
from pathlib import Path

import numpy as np
from scipy import sparse

from antembed.data.cooccurrence import cooccurrences, svd_features
from antembed.data.relations import cached, read_edges
from antembed.data.wordnet import find_wordnet, read_wordnet

Tokens = tuple[np.ndarray, np.ndarray]  # ids of words, and where each document begins


WIDTH = 64  # of features made from co-occurrences


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
