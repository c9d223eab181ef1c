"""Labelled text → a classifier whose whole file has the size asked for: words and pairs of words by their hashes."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np
from torch import Tensor

from antembed.data import find_data
from antembed.data.documents import Documents
from antembed.files import JSON
from antembed.serving import HashedNgrams
from antembed.serving.ngrams import hash_words
from antembed.tasks.base import Batch, Metric, Metrics, Part, Predictor, Task
from antembed.tasks.ngrams.config import NgramConfig
from antembed.tasks.ngrams.model import NgramModel
from antembed.tasks.text.data import DocumentExamples, TextSplits, make_splits, read_input
from antembed.tasks.text.predictor import TextPredictor

PIECE = 4096  # documents at a time


class HashedNgramTask(Task[NgramConfig, TextSplits, NgramModel]):
    """Learn to tell classes of text apart, in one file of the size you say: hashed words and n-grams.

    The documents and the test part are those of `classify`. Validation data choose nothing here, so they are learned, too.
    """

    name: ClassVar[str] = "classify-ngrams"
    Config = NgramConfig
    metric: ClassVar[Metric] = Metric("error", "error rate", "accuracy")
    examples: ClassVar[str] = "documents"
    sweep_options: ClassVar[JSON] = {"hold_out": True}
    usage: ClassVar[Sequence[str]] = ("train.csv --test test.csv --budget 50KB", "train.csv --budget 10KB --ngrams 1")

    def load(self, config: NgramConfig) -> TextSplits:
        documents, test = read_input(config.input, share_words=False)
        splits = self.split(config, documents, test)
        splits.files = tuple(str(find_data(name)) for name in (config.input.data, config.input.test) if name)
        return splits

    def split(self, config: NgramConfig, documents: Documents, test: Documents | None = None) -> TextSplits:
        """The parts of documents in memory."""
        splits = make_splits(documents, test, config.machine.seed)
        if not config.solver.hold_out:
            learned = np.concatenate([splits.validation.rows, splits.train.rows])
            splits.train, splits.validation = replace(splits.train, rows=learned), DocumentExamples()
        return splits

    def build(self, config: NgramConfig, splits: TextSplits) -> NgramModel:
        return NgramModel()

    def loss(self, model: NgramModel, batch: Batch) -> Tensor:
        raise TypeError("hashed n-grams have no gradient; their solver is ngram_descent")

    def evaluate(self, model: NgramModel, splits: TextSplits, part: Part) -> Metrics:
        examples = splits.part(part)
        assert isinstance(examples, DocumentExamples)
        assert examples.documents is not None
        documents = examples.documents.take(examples.rows)
        right, total = 0, 0.0
        start = 0
        for chances in probabilities(model.classifier, documents):
            labels = documents.labels[start : start + len(chances)]
            right += int((chances.argmax(1) == labels).sum())
            seen = labels >= 0
            total -= float(np.log(np.maximum(chances[seen, labels[seen]], 1e-300)).sum())
            start += len(chances)
        known = int((documents.labels >= 0).sum())
        return {"loss": total / known, "accuracy": right / start, "error": 1 - right / start, "examples": start}

    def facts(self, splits: TextSplits, model: NgramModel) -> JSON:
        return {
            "classes": splits.classes,
            "documents": {part: len(splits.part(part)) for part in ("train", "validation", "test")},
            "examples": splits.count,
            "sha256": splits.digest,
        }

    def details(self, config: NgramConfig, splits: TextSplits, model: NgramModel) -> JSON:
        return {"model": "hashed_ngrams"}

    def reopen(self, config: NgramConfig, facts: JSON, folder: Path) -> TextSplits:
        return TextSplits(classes=facts["classes"])

    def predictor(self, folder: Path, config: NgramConfig, model: NgramModel, splits: TextSplits) -> Predictor:
        return NgramPredictor(model.classifier, config)


class NgramPredictor(TextPredictor):
    """By the hashes alone; each text has words of its own, since a hash needs no vocabulary."""

    def __init__(self, classifier: HashedNgrams, config: NgramConfig):
        super().__init__(classifier.classes, config.input.text, config.input.label, config.input.max_length)
        self.classifier = classifier

    def probabilities(self, documents: Documents) -> Iterator[np.ndarray]:
        return probabilities(self.classifier, documents)


def word_hashes(documents: Documents) -> np.ndarray:
    """The hash of each word of the documents (total,). Each word of the vocabulary is hashed once.

    Words that the vocabulary lacks are all "<unk>": read texts with a vocabulary of their own, as the classifier needs none.
    """
    return hash_words(documents.vocabulary.words)[documents.tokens]


def probabilities(classifier: HashedNgrams, documents: Documents) -> Iterator[np.ndarray]:
    """Of each class for each document, some documents at a time: (n, classes)."""
    hashes = word_hashes(documents)
    for first in range(0, len(documents), PIECE):
        starts = documents.starts[first : first + PIECE + 1]
        outputs = classifier.scores(hashes[starts[0] : starts[-1]], starts - starts[0])
        powers = np.exp(outputs - outputs.max(1, keepdims=True))
        yield powers / powers.sum(1, keepdims=True)
