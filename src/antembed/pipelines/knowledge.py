"""What is known of words before a model is trained: which are anchors, their features, and which are related to which."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from scipy import sparse

from antembed.anchors import (
    INITIALIZERS,
    ObjectStatistics,
    cached,
    cooccurrences,
    find_wordnet,
    free_entries,
    read_edges,
    read_vectors,
    read_wordnet,
    svd_features,
    union,
)
from antembed.data.cache import default_cache
from antembed.data.documents import Documents
from antembed.embedding import EMBEDDINGS

if TYPE_CHECKING:
    from antembed.pipelines.text import TextSettings

WIDTH = 64  # of features made from co-occurrences


@dataclass(frozen=True)
class Knowledge:
    """All of it may be missing."""

    anchors: np.ndarray | None = None  # (K,) words
    features: np.ndarray | None = None  # (V, width)
    relations: sparse.csr_array | None = None  # (V, V)
    without_vector: int = 0  # words that the pretrained vectors have not

    @property
    def free(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Entries of T that cost nothing: words related to an anchor, or one themselves."""
        if self.relations is None or self.anchors is None:
            return None
        return free_entries(self.relations, self.anchors)


def features_wanted(choice: str, embedding: str) -> bool:
    """Whether features are made from co-occurrences, if no vectors are given."""
    by_choice = choice != "none" and "features" in INITIALIZERS[choice].requires
    return by_choice or "features" in EMBEDDINGS[embedding].requires


def gather(
    settings: "TextSettings", documents: Documents, trained_scores: Callable[[str], np.ndarray], cache: Path | None = None
) -> Knowledge:
    """What the settings ask for. `documents` are those to learn from; `trained_scores`: the
    name of an embedding to train → a score for each word."""
    cache, words = cache or default_cache(), documents.vocabulary
    text = (documents.tokens, documents.starts)
    V, features, missing = len(words), None, 0
    if settings.vectors:
        found = read_vectors(settings.vectors, words.words)
        features, missing = found.vectors, found.missing
    elif settings.wants_features:
        counts = cached(lambda: cooccurrences(*text, V, min_count=1, min_pmi=-np.inf), cache, "all co-occurrences", V, *text)
        features = svd_features(counts, min(WIDTH, V - 1), settings.seed).astype(np.float32)
    related: list[sparse.csr_array] = []
    for name in settings.relations:
        if name == "wordnet":
            folder = find_wordnet(settings.wordnet or None)
            related.append(cached(partial(read_wordnet, words.words, folder), cache, name, words.words, folder))
        elif name == "cooccurrence":
            related.append(cached(lambda: cooccurrences(*text, V), cache, name, V, *text))
        else:
            related.append(read_edges(name, words.words))
    anchors = None
    if settings.choice != "none":
        initializer = INITIALIZERS[settings.choice]
        statistics = ObjectStatistics(
            counts=words.counts,
            document_counts=words.document_counts,
            documents=words.documents,
            features=features,
            scores=trained_scores(initializer.trains) if initializer.trains else None,
        )
        anchors = initializer(statistics, settings.first, settings.seed)
    return Knowledge(anchors, features, union(*related) if related else None, missing)
