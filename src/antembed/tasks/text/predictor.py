"""A finished run on text as a classifier: files and texts → probabilities of its classes."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import torch

from antembed.data.documents import Documents, documents_of, read_documents
from antembed.data.text import DataError
from antembed.files import JSON
from antembed.tasks.text.config import TextConfig
from antembed.tasks.text.data import DocumentExamples, TextSplits
from antembed.tasks.text.model import TextModel

EVALUATION_BATCH = 512


class TextPredictor(ABC):
    """What every classifier of text can do; a subclass says the probabilities of documents."""

    classes: list[str]

    def __init__(self, classes: list[str], text: Sequence[str] | None, label: str | None, max_length: int):
        self.classes, self.text, self.label, self.max_length = classes, text, label, max_length

    @abstractmethod
    def probabilities(self, documents: Documents) -> Iterator[np.ndarray]:
        """Of each class for each document, some documents at a time: (n, classes)."""

    def reading(self) -> JSON:
        """How texts are read beside the columns."""
        return {"classes": self.classes, "length": self.max_length}

    def predict_texts(self, texts: Iterable[str | None]) -> Iterator[np.ndarray]:
        return self.probabilities(documents_of(texts, **self.reading()))

    def predict_file(self, path: str, text: Sequence[str] | None, label: str | None) -> tuple[Iterator[np.ndarray], str]:
        """Probabilities, and what there is to say of the file. If no column has the run's classes, there is no label."""
        documents, complaint = self._read(path, text or self.text, label)
        return self.probabilities(documents), complaint

    def _read(self, path: str, text: Sequence[str] | None, label: str | None) -> tuple[Documents, str]:
        more = self.reading()
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


class ModelPredictor(TextPredictor):
    """By the network of a run."""

    def __init__(self, model: TextModel, config: TextConfig, splits: TextSplits):
        super().__init__(splits.classes, config.input.text, config.input.label, config.input.max_length)
        self.model, self.vocabulary, self.device = model, splits.vocabulary, config.solver.train.device

    def reading(self) -> JSON:
        return super().reading() | {"vocabulary": self.vocabulary}

    @torch.no_grad()
    def probabilities(self, documents: Documents) -> Iterator[np.ndarray]:
        examples = DocumentExamples(documents, np.arange(len(documents)), self.device)
        for words, starts, _ in examples.batches(EVALUATION_BATCH):
            yield torch.softmax(self.model(words, starts), 1).cpu().numpy()
