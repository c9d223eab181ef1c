"""Labelled text → a classifier with a small table of words: the whole way, top to bottom."""

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from antembed.data import Examples
from antembed.data.batches import permutation
from antembed.data.documents import Documents, read_documents
from antembed.embedding import Embedding, param_groups
from antembed.files import write_atomically
from antembed.optim import OPTIMISERS
from antembed.pipelines.steps import learn, schedules
from antembed.pipelines.text import TextSettings, build_model
from antembed.serving import export, serialise
from antembed.tasks.classify import TextModel, evaluate
from antembed.training import Engine, RunFolder, Tick, TorchEngine, save_checkpoint
from antembed.training.budget import Budget, parse_budget

EVALUATION_BATCH = 1024


@dataclass(frozen=True)
class TextJob:
    settings: TextSettings
    model: TextModel
    training: Documents
    test: Documents
    parts: dict[str, Examples]  # rows of their documents, and labels

    @property
    def tables(self) -> dict[str, Embedding]:
        return self.model.tables

    def batch(self, rows: Tensor, part: str = "train") -> tuple[Tensor, Tensor]:
        documents = (self.test if part == "test" else self.training).take(rows.numpy())
        return torch.from_numpy(documents.tokens).to(self.settings.device), torch.from_numpy(documents.starts).to(self.settings.device)

    def loss(self, model: torch.nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        rows, labels = batch
        return F.cross_entropy(model(*self.batch(rows)), labels.long())

    def engine(self, optimiser: Any) -> Engine:
        return TorchEngine(self.model, optimiser, self.loss)

    @torch.no_grad()
    def judge(self, part: str) -> dict[str, float]:
        self.model.eval()
        return evaluate(
            (self.model(*self.batch(rows, part)), labels.long()) for rows, labels in self.parts[part].batches(EVALUATION_BATCH)
        )

    def validate(self) -> dict[str, float]:
        return self.judge("validation")


def prepare(settings: TextSettings) -> TextJob:
    training = read_documents(settings.data, min_count=settings.min_count, max_vocab=settings.max_vocab or None, length=settings.length)
    test = read_documents(settings.test, vocabulary=training.vocabulary, classes=training.classes, length=settings.length)
    order = permutation(len(training), settings.seed)
    n = len(training) // 10
    rows = {"validation": (training, order[:n]), "train": (training, order[n:]), "test": (test, np.arange(len(test), dtype=np.int32))}
    parts = {name: Examples((np.arange(len(d), dtype=np.int32), d.labels), r, "cpu", settings.threads) for name, (d, r) in rows.items()}
    model = build_model(settings, len(training.vocabulary), len(training.classes))
    return TextJob(settings, model, training, test, parts)
