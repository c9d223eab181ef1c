"""Text classifiers that need no torch: hashed n-grams, and the mean of the words' vectors with a linear layer."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np

from antembed.classify.documents import Documents, documents_of, read_documents
from antembed.classify.ngram_file import HashedNgrams, hash_words, load_hashed_ngrams
from antembed.data.text_file import DataError
from antembed.data.vocabulary import UNKNOWN, Vocabulary
from antembed.files import JSON
from antembed.tables.model_folder import check_files, read_description, read_weights
from antembed.tables.save import load_table
from antembed.tables.table import Table

PIECE = 4096  # documents at a time
NAMED = 3  # lines that a remark names
NGRAMS, WORDS = "classifier.ngrams", "words.ant"


class TextPredictor(ABC):
    """What every classifier of text can do; a subclass says the probabilities of documents."""

    classes: list[str]

    def __init__(self, classes: list[str], source: JSON):
        """`source`: the group "input" of the config: columns, and how many words are used."""
        self.classes, self.text, self.label = classes, source.get("text"), source.get("label")
        self.max_length = source.get("max_length")

    @abstractmethod
    def probabilities(self, documents: Documents) -> Iterator[np.ndarray]:
        """Of each class for each document, some documents at a time: (n, classes)."""

    @abstractmethod
    def knows(self, documents: Documents) -> np.ndarray:
        """Whether any word of each document is known: (n,) bool."""

    def reading(self) -> JSON:
        """How texts are read beside the columns."""
        return {"classes": self.classes, "length": self.max_length}

    def read_texts(self, texts: Iterable[str | None]) -> Documents:
        """Texts in memory, for `probabilities`."""
        return documents_of(texts, **self.reading())

    def read_file(self, path: str, text: Sequence[str] | None, label: str | None) -> tuple[Documents, str]:
        """A file, for `probabilities`, and what there is to say of it. If no column has the classes, there is no label."""
        more, text = self.reading(), text or self.text
        if label is not None:
            documents = read_documents(path, text=text, label=label, **more)
            return documents, documents.complaint
        try:
            documents = read_documents(path, text=text, label=self.label, **more)
            if (documents.labels >= 0).any():
                return documents, documents.complaint
        except DataError:
            if self.label is None:
                raise
        none = read_documents(path, text=text, label="", **more)
        return none, "no column has the classes of the run: there are no labels"

    def predict_texts(self, texts: Iterable[str | None]) -> Iterator[np.ndarray]:
        return self.probabilities(self.read_texts(texts))

    def remarks(self, documents: Documents) -> list[str]:
        """What there is to say of answers that say nothing of the text: one line for empty ones, one for unknown words."""
        empty = documents.lengths == 0
        strange = ~empty & ~self.knows(documents)
        lines = (
            (empty, "empty (no words): the answer is the model's for no words at all"),
            (strange, "without a word that the model knows: the answer is not about the text"),
        )
        return [f"{_lines(np.flatnonzero(which) + 1, len(which))} {said}" for which, said in lines if which.any()]


class NgramPredictor(TextPredictor):
    """By the hashes alone; each text has words of its own, since a hash needs no vocabulary."""

    def __init__(self, classifier: HashedNgrams, source: JSON):
        super().__init__(classifier.classes, source)
        self.classifier = classifier

    def probabilities(self, documents: Documents) -> Iterator[np.ndarray]:
        return ngram_probabilities(self.classifier, documents)

    def knows(self, documents: Documents) -> np.ndarray:
        return self.classifier.coded(word_hashes(documents, self.classifier.prefix), documents.starts)


class WordPredictor(TextPredictor):
    """By the vectors of a vocabulary's words; a subclass says what the network makes of them."""

    def __init__(self, folder: Path):
        check_files(folder, WORDS, "vocabulary.parquet")
        whole = read_description(folder)
        super().__init__(whole["data"]["classes"], whole["config"]["input"])
        self.vocabulary = Vocabulary.read(folder / "vocabulary.parquet")
        self.table: Table = load_table(folder / WORDS)
        self.weights = read_weights(folder, ("words",))
        if len(self.table) != len(self.vocabulary):
            raise ValueError(
                f"{folder}: {WORDS} has {len(self.table)} rows, vocabulary.parquet {len(self.vocabulary)}; export them together"
            )

    def reading(self) -> JSON:
        return super().reading() | {"vocabulary": self.vocabulary}

    def knows(self, documents: Documents) -> np.ndarray:
        known = np.concatenate([[0], np.cumsum(documents.tokens != UNKNOWN)])
        return np.diff(known[documents.starts]) > 0


class MeanPredictor(WordPredictor):
    """The mean of the words' vectors, one linear layer: scores of words are summed over each document."""

    def __init__(self, folder: Path):
        super().__init__(folder)
        classes = len(self.classes)
        for name, shape in (("head.weight", (classes, self.table.embedding_dim)), ("head.bias", (classes,))):
            found = self.weights[name].shape if name in self.weights else "none"
            if found != shape:
                raise ValueError(f"{folder}: {name} should have the shape {shape}, there is {found}; export the run anew")

    def probabilities(self, documents: Documents) -> Iterator[np.ndarray]:
        W, b = self.weights["head.weight"], self.weights["head.bias"]
        for first in range(0, len(documents), PIECE):
            starts = documents.starts[first : first + PIECE + 1]
            words, places = np.unique(documents.tokens[starts[0] : starts[-1]], return_inverse=True)
            scores = (self.table[words] @ W.T)[places]
            lengths = np.diff(starts)
            there = lengths > 0  # reduceat gives an empty document the next one's first word
            means = np.zeros((len(lengths), len(b)), np.float32)
            if there.any():
                means[there] = np.add.reduceat(scores, (starts[:-1] - starts[0])[there]) / lengths[there, None]
            yield softmax(means + b)


def light_predictor(folder: str | Path) -> TextPredictor | None:
    """The classifier in a folder; None if its network needs torch, or if it is none."""
    folder = Path(folder)
    config = read_description(folder)["config"]
    if config["task"] == "classify-ngrams":
        check_files(folder, NGRAMS)
        return NgramPredictor(load_hashed_ngrams(folder / NGRAMS), config["input"])
    mean = config["task"] == "classify" and config["tables"]["model"] == "mean"
    return MeanPredictor(folder) if mean else None


def softmax(scores: np.ndarray) -> np.ndarray:
    """Along the last axis."""
    powers = np.exp(scores - scores.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)


def word_hashes(documents: Documents, prefix: int = 0) -> np.ndarray:
    """The hash of each word of the documents (total,), and of its prefix (total, 2). Words of the vocabulary are hashed once.

    Words that the vocabulary lacks are all "<unk>": read texts with a vocabulary of their own, as the classifier needs none.
    """
    return vocabulary_hashes(tuple(documents.vocabulary.words), prefix)[documents.tokens]


@lru_cache(maxsize=4)
def vocabulary_hashes(words: tuple[str, ...], prefix: int) -> np.ndarray:
    """What hash_words gives. A search asks some dozen times for those of the same 50 000 words, .1 s each."""
    return hash_words(words, prefix)


def ngram_probabilities(classifier: HashedNgrams, documents: Documents) -> Iterator[np.ndarray]:
    """Of each class for each document, some documents at a time: (n, classes)."""
    hashes = word_hashes(documents, classifier.prefix)
    for first in range(0, len(documents), PIECE):
        starts = documents.starts[first : first + PIECE + 1]
        yield softmax(classifier.scores(hashes[starts[0] : starts[-1]], starts - starts[0]))


def _lines(numbers: np.ndarray, of: int) -> str:
    """Which lines, the first few of them: "line 3 is", "2 of 9 lines (3 and 7) are"."""
    if len(numbers) == 1:
        return f"line {numbers[0]} is"
    named = ", ".join(map(str, numbers[:NAMED])) + (", …" if len(numbers) > NAMED else "")
    return f"{len(numbers):,} of {of:,} lines ({named}) are"
