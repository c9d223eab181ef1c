"""A convolutional network over an exported table as a classifier; classify/predictor.py has those that need no torch."""

from collections.abc import Iterator
from pathlib import Path
from typing import cast

import numpy as np
import torch

from antembed.classify.dataset import DocumentExamples
from antembed.classify.documents import Documents
from antembed.classify.model import TextCNN
from antembed.classify.predictor import WordPredictor
from antembed.layer.embedding import Embedding
from antembed.train.model import StoredVectors

EVALUATION_BATCH = 512


class CnnPredictor(WordPredictor):
    """By the convolutional network of a run, on the CPU."""

    def __init__(self, folder: Path):
        super().__init__(folder)
        self.model = TextCNN(cast(Embedding, StoredVectors(self.table)), len(self.classes), dropout=0.0)
        self.model.load_state_dict({name: torch.from_numpy(weight) for name, weight in self.weights.items()})
        self.model.eval()

    @torch.no_grad()
    def probabilities(self, documents: Documents) -> Iterator[np.ndarray]:
        for words, starts, _ in DocumentExamples(documents, np.arange(len(documents))).batches(EVALUATION_BATCH):
            yield torch.softmax(self.model(words, starts), 1).numpy()
