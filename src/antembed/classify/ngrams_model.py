"""The hashed n-gram classifier as a model of a run: empty until its solver has filled it."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from antembed.classify.explain_ngrams import write_top
from antembed.classify.ngram_file import HashedNgrams, read_hashed_ngrams
from antembed.files import JSON
from antembed.train.model import ModelSize, TaskModel

FILE = "classifier.ngrams"


class NgramModel(TaskModel):
    """Holds what classify/ngram_file.py stores: hashes, one coded anchor each, and anchors that are class scores."""

    def __init__(self) -> None:
        super().__init__()
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
