"""Train a text classifier of hashed n-grams, in one file of a given size."""

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from antembed.classify.config import NgramConfig, NgramDescentConfig, read_input
from antembed.classify.dataset import DocumentExamples, TextSplits, largest_class, make_splits
from antembed.classify.documents import Documents
from antembed.classify.ngram_file import HashedNgrams, read_hashed_ngrams
from antembed.classify.ngram_fit import SETTINGS, NgramSettings, fit_sweeps
from antembed.classify.predictor import TextPredictor, light_predictor, ngram_probabilities, top_ngrams, write_top
from antembed.data.download import find_data
from antembed.files import JSON, write_atomically
from antembed.tables.model_folder import TOP_NGRAMS
from antembed.train.checkpoint import Checkpoint
from antembed.train.model import ModelSize, TaskModel
from antembed.train.run_folder import RunFolder
from antembed.train.solver import Callback, Progress, Solver, ignore
from antembed.train.task import Batch, Metric, Metrics, Part, Task

FILE = "classifier.ngrams"


class NgramModel(TaskModel):
    """Holds what classify/ngram_file.py stores: hashes, one coded anchor each, and anchors that are class scores."""

    def __init__(self) -> None:
        super().__init__()
        self.details = {"model": "hashed_ngrams"}
        self._classifier: HashedNgrams | None = None
        self.top: JSON | None = None  # n-grams that speak for each class, after a fit

    @property
    def classifier(self) -> HashedNgrams:
        if self._classifier is None:
            raise ValueError("this classifier has not been trained yet")
        return self._classifier

    @classifier.setter
    def classifier(self, classifier: HashedNgrams) -> None:
        self._classifier = classifier

    def model_size(self) -> ModelSize:
        own = self.classifier
        n = len(own.objects)
        return ModelSize({"ngrams": len(own.B)}, {"ngrams": n}, n + own.B.size + own.bias.size, 0)

    def export(self, folder: Path, values: str, encoding: str) -> dict[str, int]:
        folder.mkdir(parents=True, exist_ok=True)
        if self.top is not None:
            write_top(folder, self.top)
        return {FILE: self.classifier.save(folder / FILE)}

    def file_names(self) -> list[str]:
        return [FILE]

    # Checkpoints hold the bytes of the file.

    def get_extra_state(self) -> Tensor:
        packed = b"" if self._classifier is None else self._classifier.to_bytes()
        return torch.from_numpy(np.frombuffer(packed, np.uint8).copy())

    def set_extra_state(self, state: Tensor) -> None:
        packed = state.numpy().tobytes()
        self._classifier = read_hashed_ngrams(packed, "the checkpoint") if packed else None


class HashedNgramTask(Task[NgramConfig, TextSplits, NgramModel]):
    """A classifier of text: hashed words and n-grams in one file of a given size."""

    name: ClassVar[str] = "classify-ngrams"
    Config = NgramConfig
    metric: ClassVar[Metric] = Metric("error", "error rate", "accuracy")
    examples: ClassVar[str] = "documents"

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
        raise NotImplementedError("hashed n-grams have no gradient; their solver is ngram_descent")

    def evaluate(self, model: NgramModel, splits: TextSplits, part: Part) -> Metrics:
        examples = splits.part(part)
        assert isinstance(examples, DocumentExamples)
        assert examples.documents is not None
        documents = examples.documents.take(examples.rows)
        right, total, start = 0, 0.0, 0
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
        return splits.about()

    def reopen(self, config: NgramConfig, facts: JSON, folder: Path) -> TextSplits:
        return TextSplits(classes=facts["classes"])

    def export_extras(self, folder: Path, config: NgramConfig, out: Path, seen: bool) -> None:
        if (folder / TOP_NGRAMS).is_file():
            write_atomically(out / TOP_NGRAMS, (folder / TOP_NGRAMS).read_bytes())

    def predictor(self, folder: Path) -> TextPredictor:
        found = light_predictor(folder)
        assert found is not None
        return found


class NgramDescent(Solver[NgramConfig, TextSplits, NgramModel, NgramDescentConfig]):
    """A record for each sweep, and one for the end. It takes seconds: an interrupted run starts anew."""

    name: ClassVar[str] = "ngram_descent"

    def setup(self) -> None:
        """Nothing is prepared; but a tolerance must have become a size before."""
        if self.own.tolerance:
            raise ValueError("a tolerance is searched by `antembed train` and HashedNgramClassifier; give a budget here")

    def fit(self, files: RunFolder, callback: Callback = ignore) -> Iterator[JSON]:
        train = self.splits.train
        assert train.documents is not None
        own, started = self.own, time.perf_counter()
        named = own.model_dump(include=SETTINGS)
        settings = NgramSettings(own.budget, own.ngrams, ramp=own.epochs, seed=self.config.machine.seed, **named)
        documents = train.documents.take(train.rows)
        for epoch, fit in enumerate(fit_sweeps(documents, settings), 1):
            record: JSON = {
                "epoch": epoch,
                "nnz": {"ngrams": fit.kept},
                "train_loss": fit.loss,
                "train_accuracy": fit.accuracy,
                "seconds": time.perf_counter() - started,
            }
            started = time.perf_counter()
            self.model.classifier = fit.classifier()
            self.epoch = epoch
            callback(Progress(epoch, len(train), fit.loss, record["seconds"], record))
            yield record
        self.model.top = top_ngrams(self.model.classifier, documents)

    def state_dict(self) -> Checkpoint:
        return Checkpoint({})

    def load_state_dict(self, checkpoint: Checkpoint) -> None:
        self.epoch = 0
