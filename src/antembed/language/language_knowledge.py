"""What is known of a corpus' words before a model is trained: features, and which are related to which."""

from pathlib import Path

import numpy as np

from antembed.classify.word_anchors import features_of, relation
from antembed.data.relations import free_entries, union
from antembed.files import default_cache
from antembed.language.config import LanguageConfig
from antembed.language.corpus import END
from antembed.language.dataset import LanguageSplits
from antembed.layer.anchors.initializers import ObjectStatistics, choose_anchors

DOCUMENT = 1000  # words, where a corpus has no lines


def gather(config: LanguageConfig, splits: LanguageSplits, cache: Path | None = None) -> None:
    """Put what the config asks for into the splits; co-occurrences are those of the training part."""
    own, words = config.anchors, splits.vocabulary
    if words is None or not (own.relations or own.anchor_init == "kmeans"):
        return
    tokens, cache = splits.train.words, cache or default_cache()
    end = words.words.index(END) if END in words.words else -1
    ends = np.flatnonzero(np.asarray(tokens) == end) + 1 if end >= 0 else np.arange(DOCUMENT, len(tokens), DOCUMENT)
    starts = np.unique(np.concatenate([[0], ends, [len(tokens)]])).astype(np.int64)
    text = (np.asarray(tokens), starts)
    if own.anchor_init == "kmeans":
        splits.features = features_of(text, len(words), config.machine.seed, cache)
    related = [relation(name, own.wordnet, words.words, text, cache) for name in own.relations]
    splits.relations = union(*related) if related else None


def anchor_words(config: LanguageConfig, splits: LanguageSplits, K: int) -> np.ndarray | None:
    """The words that are anchors (K,); None: anchors are no words."""
    name, words = config.anchors.anchor_init, splits.vocabulary
    if name == "none" or words is None or config.tables.embedding != "anchor":
        return None
    statistics = ObjectStatistics(counts=words.counts, features=splits.features)
    return choose_anchors(name, statistics, K, config.machine.seed)


def free_pairs(splits: LanguageSplits, anchors: np.ndarray | None) -> tuple[np.ndarray, np.ndarray] | None:
    """Entries of T that cost nothing: words related to an anchor, or one themselves."""
    return None if splits.relations is None or anchors is None else free_entries(splits.relations, anchors)
