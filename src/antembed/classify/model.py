"""Networks that classify text, over any embedding: the paper's convolutional network, and the mean of the words' vectors."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from antembed.classify.dataset import DocumentExamples
from antembed.classify.documents import Documents
from antembed.classify.predictor import WordPredictor
from antembed.classify.windows_kernel import pooled_windows
from antembed.layer.embedding import Embedding
from antembed.layer.optim.lazy_kernel import group
from antembed.train.model import EmbeddingModel, StoredVectors


class TextModel(EmbeddingModel):
    """words (n,) of documents one after the other, and where each begins (documents + 1,) → scores (documents, classes)."""

    def __init__(self, embedding: Embedding):
        super().__init__()
        self.words = embedding
        self.anchor_ids: np.ndarray | None = None  # words that are anchors
        self._slot = np.empty(0, np.int32)

    @property
    def embeddings(self) -> dict[str, Embedding]:
        return {"words": self.words}

    def distinct(self, words: Tensor) -> tuple[Tensor, Tensor]:
        """Each word once, and the place of every word among them: words repeat, and are looked up and multiplied once."""
        if words.device.type != "cpu":
            return torch.unique(words, return_inverse=True)
        if len(self._slot) != self.words.num_embeddings:
            self._slot = np.full(self.words.num_embeddings, -1, np.int32)
        groups = group(words.numpy(), self._slot)
        return torch.from_numpy(groups.unique), torch.from_numpy(groups.group)


class TextCNN(TextModel):
    """Filters over 3, 4 and 5 words, 100 of each, the largest value of each over the document, dropout, one linear layer."""

    def __init__(
        self, embedding: Embedding, classes: int, *, filters: int = 100, widths: Sequence[int] = (3, 4, 5), dropout: float = 0.5
    ):
        super().__init__(embedding)
        d, self.widths = embedding.embedding_dim, tuple(widths)
        bounds = torch.cat([torch.full((width * filters, 1), (width * d) ** -0.5) for width in widths])  # as nn.Conv1d has it
        self.weight = nn.Parameter(torch.empty(len(bounds), d).uniform_(-1, 1) * bounds)  # width by width, place by place
        self.bias = nn.Parameter(torch.zeros(len(self.widths) * filters))
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(len(self.bias), classes)

    def forward(self, words: Tensor, starts: Tensor) -> Tensor:
        unique, row_of = self.distinct(words)
        X, A = self.words.coordinates(unique)
        weight = self.weight if A is None else self.weight @ A.T
        largest = pooled_windows(X, weight, row_of, starts, self.widths)
        return self.head(self.dropout(F.relu(largest + self.bias)))


class MeanPooled(TextModel):
    """The mean of the words' vectors, dropout, one linear layer: what fastText does."""

    def __init__(self, embedding: Embedding, classes: int, *, dropout: float = 0.0):
        super().__init__(embedding)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(embedding.embedding_dim, classes)

    def forward(self, words: Tensor, starts: Tensor) -> Tensor:
        unique, row_of = self.distinct(words)
        X, A = self.words.coordinates(unique)
        mixed = F.embedding_bag(row_of.to(starts.dtype), X, starts, mode="mean", include_last_offset=True)
        return self.head(self.dropout(mixed if A is None else mixed @ A))


MODELS: dict[str, Callable[..., TextModel]] = {"cnn": TextCNN, "mean": MeanPooled}


EVALUATION_BATCH = 512  # documents


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
