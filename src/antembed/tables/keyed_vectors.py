"""Vectors by word with the methods of gensim's KeyedVectors: change the line that loads them, and the rest runs."""

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from antembed.files import write_atomically
from antembed.tables.export_formats import SEPARATORS, binary_rows, first_unwritable, text_rows
from antembed.tables.neighbours import best, chunks
from antembed.tables.save import load_table
from antembed.tables.table import Table
from antembed.tables.word_evaluation import (
    Correlation,
    Section,
    Vocabulary,
    analogies_solved,
    pairs_followed,
    read_pairs,
    unit_vectors,
)
from antembed.tables.word_index import WordIndex

Key = str | int | np.integer
Keys = Key | np.ndarray | Sequence[Key | np.ndarray] | None
Query = Key | np.ndarray | tuple[str | int | np.ndarray, float]  # a word or row, a vector, or one with its weight
File = str | os.PathLike[str]
Found = list[tuple[str, float]] | np.ndarray  # words and their scores; or, with topn=None, the scores of all rows
COMPRESSED = (".gz", ".bz2", ".xz", ".zst")
log = logging.getLogger("antembed")


class WordRows(Mapping[str, int]):
    """word → row, read from the file: no dictionary of all words is made."""

    def __init__(self, words: WordIndex):
        self._words = words

    def __getitem__(self, word: object) -> int:
        row = self._words.find(word) if isinstance(word, str) else None
        if row is None:
            raise KeyError(word)
        return row

    def __iter__(self) -> Iterator[str]:
        return iter(self._words.all())

    def __len__(self) -> int:
        return len(self._words)


class KeyedVectors:
    """kv = KeyedVectors.load("words.ant"); kv["stock"], kv.most_similar(positive=["king", "woman"], negative=["man"])."""

    def __init__(self, table: Table):
        if table.words is None:
            raise ValueError(f"{table!r} has no words; compress vectors with their words, or look rows up by load_table")
        self.table, self._words = table, table.words
        self.key_to_index = WordRows(table.words)
        self.vector_size = table.embedding_dim

    @classmethod
    def load(cls, path: File) -> "KeyedVectors":
        """Vectors of a file that `antembed compress` has written."""
        return cls(load_table(path))

    @cached_property
    def index_to_key(self) -> list[str]:
        """All words, in the order of the rows."""
        return self._words.all()

    @cached_property
    def vectors(self) -> np.ndarray:
        """All vectors (V, d), decoded and kept: as much memory as the table had before it was compressed."""
        return self.table[:]

    def get_normed_vectors(self) -> np.ndarray:
        """All vectors (V, d), of length 1."""
        return unit_vectors(self.vectors)

    def __len__(self) -> int:
        return len(self.table)

    def __contains__(self, key: object) -> bool:
        return key in self.key_to_index or (isinstance(key, int | np.integer) and 0 <= int(key) < len(self))

    has_index_for = __contains__

    def get_index(self, key: Key, default: int | None = None) -> int:
        """The row of a word."""
        row = self._words.find(key) if isinstance(key, str) else int(key) if key in self else None
        row = default if row is None else row
        if row is None:
            raise KeyError(f"Key '{key}' not present")
        return row

    def __getitem__(self, keys: Key | Sequence[Key]) -> np.ndarray:
        """A vector (d,) of a word; those (n, d) of a list."""
        if isinstance(keys, Key):
            return self.get_vector(keys)
        return self.table[np.array([self.get_index(key) for key in keys], np.int64)]

    def get_vector(self, key: Key, norm: bool = False) -> np.ndarray:
        """The vector of a word; `norm`: of length 1."""
        vector = self.table[self.get_index(key)]
        return _unit(vector) if norm else vector

    def get_mean_vector(
        self,
        keys: Sequence[Key | np.ndarray],
        weights: Sequence[float] | np.ndarray | None = None,
        pre_normalize: bool = True,
        post_normalize: bool = False,
        ignore_missing: bool = True,
    ) -> np.ndarray:
        """The weighted mean of the vectors of words, or of vectors."""
        if len(keys) == 0:
            raise ValueError("cannot compute mean with no input")
        factors = np.ones(len(keys)) if weights is None else np.asarray(weights, np.float64)
        if len(factors) != len(keys):
            raise ValueError(f"{len(factors)} weights for {len(keys)} keys; give one for each")
        total, mean = 0.0, np.zeros(self.vector_size)
        for key, factor in zip(keys, factors.tolist(), strict=True):
            if isinstance(key, np.ndarray):
                mean += factor * key
            elif key in self:
                mean += factor * self.get_vector(key, norm=pre_normalize)
            elif ignore_missing:
                continue
            else:
                raise KeyError(f"Key '{key}' not present in vocabulary")
            total += abs(factor)
        mean = (mean / total if total else mean).astype(np.float32)
        return _unit(mean) if post_normalize else mean

    def most_similar(
        self,
        positive: Query | Sequence[Query] | None = None,
        negative: Query | Sequence[Query] | None = None,
        topn: int | None = 10,
        clip_start: int = 0,
        clip_end: int | None = None,
        restrict_vocab: int | None = None,
    ) -> Found:
        """The words nearest by cosine to the mean of `positive` minus `negative`, which are left out themselves; of the rows
        clip_start … clip_end, or the first `restrict_vocab`. topn=None: the cosines of all these rows."""
        if topn is not None and topn < 1:
            return []
        given = [*((item, 1.0) for item in _listed(positive)), *((item, -1.0) for item in _listed(negative))]
        weighted = [item if isinstance(item, tuple) else (item, sign) for item, sign in given]
        keys, factors = [key for key, _ in weighted], np.array([factor for _, factor in weighted])
        mean = self.get_mean_vector(keys, factors, post_normalize=True, ignore_missing=False)
        first, end = (0, restrict_vocab) if restrict_vocab else (clip_start, clip_end or len(self))
        cosines = self.table.cosines(mean)[first:end]
        return cosines if topn is None else self._best(cosines, keys, topn, first)

    def _best(self, scores: np.ndarray, keys: Sequence[Any], topn: int, first: int = 0) -> list[tuple[str, float]]:
        """The words of the largest scores, without those of `keys`; the scores are those of the rows from `first` on."""
        own = {self.get_index(key) for key in keys if not isinstance(key, np.ndarray)}
        positions, found = best(scores[None], topn + len(own))
        near = [(n + first, score) for n, score in zip(positions[0].tolist(), found[0].tolist(), strict=True)]
        return [(self._words.word(n), float(score)) for n, score in near if n not in own][:topn]

    def most_similar_cosmul(
        self, positive: Keys = None, negative: Keys = None, topn: int | None = 10, restrict_vocab: int | None = None
    ) -> Found:
        """The words of the largest Π s(positive)/(Π s(negative) + 10⁻⁶) with s = (1 + cosine)/2 (3CosMul, Levy & Goldberg)."""
        if topn is not None and topn < 1:
            return []
        plus, minus = list(_listed(positive)), list(_listed(negative))
        if not plus:
            raise ValueError("cannot compute similarity with no input")

        def product(keys: list[Any]) -> np.ndarray:
            vectors = (key if isinstance(key, np.ndarray) else self.get_vector(key) for key in keys)
            return np.prod([(1 + self.table.cosines(vector)[:restrict_vocab]) / 2 for vector in vectors], axis=0)

        scores: np.ndarray = product(plus) / (product(minus) + 1e-6)
        return scores if topn is None else self._best(scores, plus + minus, topn)

    def similar_by_key(self, key: Key, topn: int = 10, restrict_vocab: int | None = None) -> Found:
        """The words nearest to a word."""
        return self.most_similar([key], topn=topn, restrict_vocab=restrict_vocab)

    similar_by_word = similar_by_key

    def similar_by_vector(self, vector: np.ndarray, topn: int = 10, restrict_vocab: int | None = None) -> Found:
        """The words nearest to a vector."""
        return self.most_similar([np.asarray(vector)], topn=topn, restrict_vocab=restrict_vocab)

    def similarity(self, w1: Key, w2: Key) -> float:
        """The cosine of two words."""
        return float(self.get_vector(w1, norm=True) @ self.get_vector(w2, norm=True))

    def distance(self, w1: Key, w2: Key) -> float:
        """1 − the cosine of two words."""
        return 1 - self.similarity(w1, w2)

    def n_similarity(self, ws1: Sequence[Key], ws2: Sequence[Key]) -> float:
        """The cosine of the means of two lists of words."""
        if not (len(ws1) and len(ws2)):
            raise ZeroDivisionError("At least one of the passed list is empty.")
        first, second = (self.get_mean_vector(words, pre_normalize=False, post_normalize=True) for words in (ws1, ws2))
        return float(first @ second)

    def rank_by_centrality(self, words: Sequence[Key], use_norm: bool = True) -> list[tuple[float, Key]]:
        """Words by their product with the mean of all these, largest first; unknown words are left out, with a warning."""
        known = [word for word in words if word in self]
        if len(known) != len(words):
            log.warning("no vectors for %s; they are left out", sorted({str(word) for word in words if word not in self}))
        if not known:
            raise ValueError("cannot select a word from an empty list")
        vectors = np.stack([self.get_vector(word, norm=use_norm) for word in known])
        dots = vectors @ self.get_mean_vector(list(vectors), post_normalize=True)
        return sorted(zip(dots.tolist(), known, strict=True), key=lambda pair: (pair[0], str(pair[1])), reverse=True)

    def doesnt_match(self, words: Sequence[Key]) -> Key:
        """The word that fits the others least."""
        return self.rank_by_centrality(words)[-1][1]

    def evaluate_word_analogies(
        self, analogies: File, restrict_vocab: int | None = 300_000, case_insensitive: bool = True, dummy4unknown: bool = False
    ) -> tuple[float, list[Section]]:
        """The share of analogies that come out by b − a + c, and, for each section and in all, which did and which did not.

        A file has lines of four words, in sections that begin with `: name`. Words beyond the first `restrict_vocab` are
        unknown; analogies with an unknown word are left out, or, with `dummy4unknown`, have not come out."""
        words = Vocabulary(self.index_to_key[:restrict_vocab], case_insensitive)
        return analogies_solved(self.table, words, analogies, dummy4unknown)

    def evaluate_word_pairs(
        self,
        pairs: File,
        delimiter: str = "\t",
        encoding: str = "utf8",
        restrict_vocab: int | None = 300_000,
        case_insensitive: bool = True,
        dummy4unknown: bool = False,
    ) -> tuple[Correlation, Correlation, float]:
        """How cosines follow the scores of a file of lines `word word score`: Pearson's and Spearman's correlation, each with
        its p-value, and the percentage of pairs with unknown words, which are left out (`dummy4unknown`: have the cosine 0)."""
        words = Vocabulary(self.index_to_key[:restrict_vocab], case_insensitive)
        return pairs_followed(self.table, words, read_pairs(pairs, delimiter, encoding), str(pairs), dummy4unknown)

    def save_word2vec_format(self, fname: File, *, binary: bool = False, write_header: bool = True, prefix: str = "") -> None:
        """Write a file of word2vec's, text or binary; without the header, as GloVe's. `prefix` comes before each word."""
        if Path(fname).suffix in COMPRESSED:
            raise ValueError(f"{fname} would be compressed, which is not done here; write another name, and compress that")
        rows, words = binary_rows if binary else text_rows, [prefix + word for word in self.index_to_key]
        if (wrong := first_unwritable(words, SEPARATORS)) is not None:
            remedy = "use antembed export --to parquet"
            raise ValueError(f"row {wrong} is {words[wrong]!r}, which word2vec's files cannot hold; {remedy}")
        header = [f"{len(self)} {self.vector_size}\n".encode()] if write_header else []
        lines = (rows(words[ids[0] : ids[-1] + 1], self.table[ids]) for ids in chunks(len(self)))
        write_atomically(Path(fname), chain(header, lines))


def _listed(given: Query | Sequence[Query] | None) -> Sequence[Query]:
    """One word or vector is a list of one."""
    if given is None:
        return []
    if isinstance(given, Key) or (isinstance(given, np.ndarray) and given.ndim == 1):
        return [given]
    return list(given)  # a tuple with a weight stands in a list, as in gensim


def _unit(vector: np.ndarray) -> np.ndarray:
    length = float(np.linalg.norm(vector))
    return vector / np.float32(length) if length else vector
