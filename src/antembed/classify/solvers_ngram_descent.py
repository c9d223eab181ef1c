"""The solver of the hashed n-gram classifier: coordinate descent on the logistic loss, to a size (classify/ngram_fit.py).

It takes seconds, so there is no state to continue from: an interrupted run starts anew.
"""

import time
from collections.abc import Iterator
from typing import ClassVar

from antembed.classify.dataset import TextSplits
from antembed.classify.explain_ngrams import top_ngrams
from antembed.classify.ngram_fit import NgramSettings, fit_sweeps
from antembed.classify.ngrams_config import NgramConfig, NgramDescentConfig
from antembed.classify.ngrams_model import NgramModel
from antembed.files import JSON
from antembed.train.checkpoint import Checkpoint
from antembed.train.solver import Callback, Progress, RunFiles, Solver, ignore


class NgramDescent(Solver[NgramConfig, TextSplits, NgramModel, NgramDescentConfig]):
    """A record for each sweep, and one for the end."""

    name: ClassVar[str] = "ngram_descent"

    def setup(self) -> None:
        """Nothing is prepared; but a tolerance must have become a size before."""
        if self.own.tolerance:
            raise ValueError("a tolerance is searched by `antembed train` and HashedNgramClassifier; give a budget here")

    def fit(self, files: RunFiles, callback: Callback = ignore) -> Iterator[JSON]:
        train = self.splits.train
        assert train.documents is not None
        own, started = self.own, time.perf_counter()
        settings = NgramSettings(
            size=own.budget,
            orders=own.ngrams,
            repeats=own.repeats,
            prefix=own.prefix,
            ridge=own.ridge,
            rarity=own.rarity,
            noise=own.noise,
            ramp=own.epochs,
            seed=self.config.machine.seed,
        )
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
