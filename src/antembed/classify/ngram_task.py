"""Labelled text → a classifier whose whole file has the size asked for: words and pairs of words by their hashes."""

from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np
from torch import Tensor

from antembed.classify.config import read_input
from antembed.classify.dataset import DocumentExamples, TextSplits, largest_class, make_splits
from antembed.classify.documents import Documents
from antembed.classify.ngrams_config import NgramConfig
from antembed.classify.ngrams_model import NgramModel
from antembed.classify.predictor import TextPredictor, light_predictor, ngram_probabilities, word_hashes
from antembed.data.download import find_data
from antembed.files import JSON, write_atomically
from antembed.tables.model_folder import TOP_NGRAMS
from antembed.train.task import Batch, Metric, Metrics, Part, Task

__all__ = ["HashedNgramTask", "word_hashes"]


class HashedNgramTask(Task[NgramConfig, TextSplits, NgramModel]):
    """A classifier of text: hashed words and n-grams in one file of a given size."""

    name: ClassVar[str] = "classify-ngrams"
    Config = NgramConfig
    metric: ClassVar[Metric] = Metric("error", "error rate", "accuracy")
    examples: ClassVar[str] = "documents"
    sweep_options: ClassVar[JSON] = {"hold_out": True}

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
        for chances in ngram_probabilities(model.classifier, documents):
            labels = documents.labels[start : start + len(chances)]
            right += int((chances.argmax(1) == labels).sum())
            seen = labels >= 0
            total -= float(np.log(np.maximum(chances[seen, labels[seen]], 1e-300)).sum())
            start += len(chances)
        known = int((documents.labels >= 0).sum())
        return {"loss": total / known, "accuracy": right / start, "error": 1 - right / start, "examples": start}

    def baselines(self, splits: TextSplits) -> dict[str, float]:
        return largest_class(splits)

    def facts(self, splits: TextSplits, model: NgramModel) -> JSON:
        return {
            "classes": splits.classes,
            "columns": splits.columns,
            "documents": {part: len(splits.part(part)) for part in ("train", "validation", "test")},
            "examples": splits.count,
            "sha256": splits.digest,
        }

    def details(self, config: NgramConfig, splits: TextSplits, model: NgramModel) -> JSON:
        return {"model": "hashed_ngrams"}

    def reopen(self, config: NgramConfig, facts: JSON, folder: Path) -> TextSplits:
        return TextSplits(classes=facts["classes"])

    def export_extras(self, folder: Path, config: NgramConfig, out: Path, seen: bool) -> None:
        if (folder / TOP_NGRAMS).is_file():
            write_atomically(out / TOP_NGRAMS, (folder / TOP_NGRAMS).read_bytes())

    def predictor(self, folder: Path) -> TextPredictor:
        found = light_predictor(folder)
        assert found is not None
        return found
