"""A finished run of labelled text as a classifier: files and texts → probabilities of its classes."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from antembed.data.documents import Documents, documents_of, read_documents
from antembed.data.text import DataError
from antembed.pipelines import tiny
from antembed.pipelines.classify import EVALUATION_BATCH, reopen_model, settings_of
from antembed.pipelines.text import TextSettings
from antembed.training import RunFolder


class NetPredictor:
    """A run's network: texts → probabilities of its classes."""

    def __init__(self, run: str | Path, settings: TextSettings):
        self.model, self.vocabulary, remembered = reopen_model(run)
        self.classes: list[str] = remembered["classes"]
        self.told: dict[str, Any] = {"vocabulary": self.vocabulary, "classes": self.classes, "length": settings.length}
        self.device = settings.device

    def read(self, path: str, **columns: Any) -> Documents:
        return read_documents(path, **columns, **self.told)

    def of_texts(self, texts: Iterable[str | None]) -> Iterator[np.ndarray]:
        return self.probabilities(documents_of(texts, **self.told))

    def probabilities(self, documents: Documents) -> Iterator[np.ndarray]:
        """Of each class for each document, some documents at a time: (n, classes)."""
        for first in range(0, len(documents), EVALUATION_BATCH):
            taken = documents.take(np.arange(first, min(first + EVALUATION_BATCH, len(documents))))
            with torch.no_grad():
                words, starts = (torch.from_numpy(part).to(self.device) for part in (taken.tokens, taken.starts))
                yield torch.softmax(self.model(words, starts), 1).cpu().numpy()


def open_predictor(run: str | Path) -> NetPredictor | tiny.TinyPredictor:
    """The classifier of a run, whatever its model."""
    settings, _ = settings_of(RunFolder(run))
    return tiny.TinyPredictor(run, settings) if settings.model == "tiny" else NetPredictor(run, settings)


def documents_to_predict(
    known: NetPredictor | tiny.TinyPredictor, path: str, text: tuple[str, ...] | None, label: str | None, like: TextSettings
) -> tuple[Documents, str]:
    """A file's documents, and what there is to say of it. If no column has the run's classes, there is no label."""
    if label is not None:
        return (documents := known.read(path, text=text or like.text, label=label)), documents.complaint
    try:
        documents = known.read(path, text=text or like.text, label=like.label)
        if (documents.labels >= 0).any():
            return documents, documents.complaint
    except DataError:
        if like.label is None:
            raise
    return known.read(path, text=text or like.text, label=""), "no column has the classes of the run: there are no labels"
