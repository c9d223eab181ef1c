"""Labelled text → a classifier whose whole file has the size asked for: words and pairs of words by their hashes."""

import json
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from antembed.data.documents import Documents, documents_of, read_documents
from antembed.data.splits import shares
from antembed.data.text import DataError
from antembed.files import write_atomically
from antembed.pipelines.text import TextSettings
from antembed.serving import HashedNgrams, load_hashed_ngrams
from antembed.training import RunFolder
from antembed.training.bag import BagSettings, fit_bag, word_hashes
from antembed.training.logistic import softmax
from antembed.training.run import RunError

FILE = "classifier.bag"
PIECE = 4096  # documents at a time
HELD_BACK = 10  # one in so many for the test, or for validation


def read(settings: TextSettings) -> tuple[Documents, Documents | None]:
    """Documents to learn from and to be tested by; each with words of its own, since a hash needs no vocabulary."""
    columns: dict[str, Any] = {"text": settings.text, "label": settings.label, "length": settings.length}
    learned = read_documents(settings.data, **columns)
    return learned, read_documents(settings.test, **columns, classes=learned.classes) if settings.test else None


def train(
    settings: TextSettings,
    out: str | Path,
    *,
    learned: Documents | None = None,
    test: Documents | None = None,
    tell: Callable[[str], object] | None = None,
    validate: bool = False,
) -> dict[str, Any]:
    """Fit, judge, write; → what was measured. Nothing is chosen on the way, so all documents but the test's are learned.

    Who chooses among several (a sweep) says `validate`: then another is fitted before, without a tenth, and judged on that.
    """
    if learned is None:
        learned, test = read(settings)
    folder = RunFolder(out)
    learned, test = parts(settings, learned, test)
    about = {"task": "classify", "classes": learned.classes, "documents": {"train": len(learned), "test": len(test)}}
    if folder.config_file.exists():
        raise RunError(f"{folder.path} exists; add --overwrite to replace it, or choose another --out")
    how = BagSettings(size=settings.size, orders=settings.ngrams, seed=settings.seed)
    validation = None
    if validate:
        rows, held_back = nine_tenths(learned, settings.seed)
        validation = judged(fit_bag(learned.take(rows), how, tell), learned.take(held_back))
    begun = time.perf_counter()
    bag = fit_bag(learned, how, tell)
    seconds = time.perf_counter() - begun
    folder.create(json.loads(json.dumps(asdict(settings) | about)), resume=False)
    bag.save(folder.path / FILE)
    result = measure(settings, folder, test) | {"validation": validation, "seconds": round(seconds, 3)}
    write_atomically(folder.result_file, json.dumps(result, indent=2).encode())
    return result


def parts(settings: TextSettings, learned: Documents, test: Documents | None) -> tuple[Documents, Documents]:
    """What is learned, and what is not: a tenth, if there is no file for that. Documents without a class are left out."""
    learned = learned.take(np.flatnonzero(learned.labels >= 0))
    if test is not None:
        if not (test.labels >= 0).any():
            raise DataError(f"{settings.test}: of {len(test)} documents 0 are of a class that is trained; say --label")
        return learned, test
    rows, held_back = nine_tenths(learned, settings.seed)
    return learned.take(rows), learned.take(held_back)


def nine_tenths(documents: Documents, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Which documents are learned, and which are not."""
    if len(documents) < HELD_BACK:
        raise DataError(f"{len(documents)} documents with a class are too few, {HELD_BACK} are enough; is --label right?")
    parts = (1 - 1 / HELD_BACK, 1 / HELD_BACK)
    rows, held_back = shares(len(documents), parts, seed, documents.labels)
    if not len(held_back):  # of few documents of each of many classes, none is a tenth
        rows, held_back = shares(len(documents), parts, seed)
    return rows, held_back


def judged(bag: HashedNgrams, documents: Documents) -> dict[str, float]:
    right = np.concatenate([chances.argmax(1) for chances in probabilities(bag, documents)]) == documents.labels
    return {"accuracy": float(right.mean()), "error": float(1 - right.mean()), "examples": len(right)}


def measure(settings: TextSettings, folder: RunFolder, test: Documents) -> dict[str, Any]:
    bag = load_hashed_ngrams(folder.path / FILE)
    return {
        "task": "classify",
        "model": "tiny",
        "embedding": "anchor",
        "anchors": len(bag.B),
        "metric": "accuracy",
        "validation": None,
        "test": judged(bag, test),
        "parameters": len(bag.objects) + bag.B.size + bag.bias.size,
        "nnz": len(bag.objects),
        "bytes": (folder.path / FILE).stat().st_size,  # all that is needed to predict
        "epochs": 0,
        "seed": settings.seed,
    }


def reopen(settings: TextSettings, folder: RunFolder) -> dict[str, Any]:
    """Judge a run again."""
    learned, test = read(settings)
    if learned.classes != (wanted := load_hashed_ngrams(folder.path / FILE).classes):
        raise ValueError(
            f"{settings.data} has the classes {learned.classes}, the run {wanted}; give the right file with --data"
        )
    before = json.loads(folder.result_file.read_text())
    return measure(settings, folder, parts(settings, learned, test)[1]) | {
        name: before[name] for name in ("validation", "seconds")
    }


def probabilities(bag: HashedNgrams, documents: Documents) -> Iterator[np.ndarray]:
    """Of each class for each document, some documents at a time: (n, classes)."""
    hashes = word_hashes(documents)
    for first in range(0, len(documents), PIECE):
        starts = documents.starts[first : first + PIECE + 1]
        yield softmax(bag.scores(hashes[starts[0] : starts[-1]], starts - starts[0]))


class TinyPredictor:
    """A run's classifier: texts → probabilities of its classes."""

    def __init__(self, run: str | Path, settings: TextSettings):
        self.bag, self.settings = load_hashed_ngrams(Path(run) / FILE), settings
        self.classes = self.bag.classes

    def read(self, path: str, **columns: Any) -> Documents:
        return read_documents(path, **columns, classes=self.classes, length=self.settings.length)

    def probabilities(self, documents: Documents) -> Iterator[np.ndarray]:
        return probabilities(self.bag, documents)

    def of_texts(self, texts: Iterable[str | None]) -> Iterator[np.ndarray]:
        return probabilities(self.bag, documents_of(texts, classes=self.classes, length=self.settings.length))
