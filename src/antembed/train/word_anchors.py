"""Anchors that are words: which words, which others are related to them, and where T and A start.

Shared by the tasks on text (classify/, language/).
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from scipy import sparse

from antembed.data.relations import Tokens, features_of, free_entries, relation_of, union
from antembed.data.vocabulary import Vocabulary
from antembed.files import JSON, default_cache
from antembed.layer.anchor import AnchorEmbedding
from antembed.layer.anchors.init_weights import init_weights
from antembed.layer.anchors.initializers import ObjectStatistics, choose_anchors
from antembed.layer.embedding import Embedding
from antembed.layer.optim.prox import FreeEntries
from antembed.train.task import Splits

SMALL_WEIGHT = 0.1  # of words that are no anchors, beside 1 of those that are


@dataclass
class WordSplits(Splits):
    """Data made of words, and what is known of these."""

    vocabulary: Vocabulary | None = None
    features: np.ndarray | None = None  # (V, width) of the words
    relations: sparse.csr_array | None = None  # (V, V): words that are related
    scores: np.ndarray | None = None  # (V,) of the words, from a model that was trained once

    def save(self, folder: Path) -> None:
        """vocabulary.parquet: which row is which word."""
        if self.vocabulary is not None:
            self.vocabulary.write(folder / "vocabulary.parquet")

    def gather(self, text: Tokens, relations: tuple[str, ...], wordnet: str, seed: int, features: bool) -> None:
        """Find relations, and features if they are wanted; co-occurrences are those of the text."""
        assert self.vocabulary is not None
        words, cache = self.vocabulary.words, default_cache()
        if features:
            self.features = features_of(text, len(words), seed, cache)
        if relations:
            self.relations = union(*(relation_of(name, wordnet, words, text, cache) for name in relations))

    def anchor_words(self, initializer: str, K: int, seed: int) -> np.ndarray | None:
        """The words that are anchors (K,); None: anchors are no words."""
        words = self.vocabulary
        if initializer == "none" or words is None:
            return None
        counted = ObjectStatistics(words.counts, words.document_counts, words.documents, self.features, self.scores)
        return choose_anchors(initializer, counted, K, seed)

    def free_pairs(self, anchors: np.ndarray | None) -> tuple[np.ndarray, np.ndarray] | None:
        """Entries of T that cost nothing: words related to an anchor, or one themselves."""
        return None if self.relations is None or anchors is None else free_entries(self.relations, anchors)

    def free_entries(self, table: Embedding, anchors: np.ndarray | None) -> dict[str, FreeEntries]:
        """The same for Task.free_entries."""
        free = self.free_pairs(anchors)
        if free is None:
            return {}
        ((rows, _),) = table.pairs
        words, columns = map(torch.from_numpy, free)
        return {"words": FreeEntries(words, columns, (rows.num_embeddings, rows.embedding_dim))}

    def anchor_facts(self, anchors: np.ndarray | None) -> JSON:
        """What a run keeps of its words and anchors."""
        assert self.vocabulary is not None
        words, free = self.vocabulary.words, self.free_pairs(anchors)
        named = None if anchors is None else [words[word] for word in anchors]
        found = {"words": len(words), "anchor_words": named, "free_entries": 0 if free is None else len(free[0])}
        return found | {"examples": self.count, "sha256": self.digest}


@torch.no_grad()
def init_anchors_(table: AnchorEmbedding, splits: WordSplits, anchors: np.ndarray | None, seed: int) -> None:
    """Anchors that are words start at those words; others with both signs, since parallel anchors stay parallel."""
    V, d = table.num_embeddings, table.embedding_dim
    if anchors is None:
        table.anchors.normal_(std=d**-0.5)
        return
    about: JSON = {"features": splits.features, "related": splits.free_pairs(anchors), "small": SMALL_WEIGHT, "seed": seed}
    T, A = init_weights(V, d, anchors, rows=table.rows.own(torch.arange(V)).numpy(), **about)
    table.rows.reset_to(T)
    table.anchors.copy_(A)
