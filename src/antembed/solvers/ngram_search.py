"""The best n-grams for some documents, and the smallest file that is nearly as good: by a short search on validation data.

First the model without a size (a row of class scores for each n-gram): its ridge, noise, rarity and longest n-gram, greedily.
Then the size: doubled until the validation accuracy is within the tolerance of that model's, then halved in between.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from antembed.config.budget import BudgetError
from antembed.data.documents import Documents
from antembed.files import JSON
from antembed.inference.text import ngram_probabilities
from antembed.solvers.logistic import softmax
from antembed.solvers.ngram_fit import NgramFit, NgramSettings, fit_ngrams, incidence

BITS = 22  # of a bucket's number, without a size
SAMPLE, WORK = 20_000, 1e7  # documents, and words × classes, that are enough to choose settings by
BETTER, WORSE = 0.01, 2e-3  # the share of the loss that a move must gain, and the accuracy that it may cost
SMALLEST, LARGEST, PRECISE = 1_000, 4_000_000, 1.5
LEAST_RIDGE, MANY = 0.02, 2000
SURE = 1.645  # standard errors: 95 %
Report = Callable[[str], None]

MOVES: tuple[tuple[str, float], ...] = (
    ("ridge", 1 / 4), ("ridge", 4), ("orders", 1 / 2), ("orders", 1.5), ("noise", 1 / 4), ("rarity", 0), ("ridge", 1 / 2),
    ("ridge", 2),
)  # fmt: skip


@dataclass(frozen=True)
class NgramSearch:
    """Settings and sizes for these documents; a share of them was held out for validation."""

    train: Documents
    validation: Documents
    seed: int

    def settings(self, fixed: JSON, report: Report) -> NgramSettings:
        """The best settings, without a size."""
        some = _sampled(self.train, self.seed)
        best = replace(NgramSettings(seed=self.seed), **fixed)
        quality = dense_quality(some, self.validation, best)
        report(f"search: {_described(best)}: validation accuracy {quality.accuracy:.4f}")
        tried = {best}
        for name, factor in MOVES:
            while name not in fixed and (now := moved(best, name, factor)) not in tried and now.ridge >= LEAST_RIDGE:
                tried.add(now)
                reached = dense_quality(some, self.validation, now)
                if not reached.beats(quality):
                    break
                best, quality = now, reached
                report(f"search: {_described(best)}: validation accuracy {quality.accuracy:.4f}")
        return best

    def size(self, settings: NgramSettings, tolerance: float, report: Report) -> tuple[int, float, float]:
        """The smallest size in bytes that is surely within the tolerance, its accuracy, and that of the model without a size.

        Surely: both models are asked about the same documents, and the loss of accuracy is below the tolerance by SURE standard
        errors, or there is none. (A few hundred documents cannot tell half a per cent from nothing.)
        """
        dense = dense_quality(self.train, self.validation, settings).hits
        smallest = SMALLEST if len(self.train) < SAMPLE else 4 * SMALLEST
        size, good, bad, reached = max(smallest, 2 * len(self.train.classes) ** 2), 0, 0, 0.0
        while True:
            hits, written = self._hits(settings, size)
            lost = dense.astype(float) - hits
            fits = lost.mean() <= max(tolerance * dense.mean() - SURE * lost.std() / len(lost) ** 0.5, 0.0)
            largest = LARGEST if written > 0.9 * size or not written else size  # all n-grams are in it
            said = "yes" if fits else "no" if largest > size else "no, but it holds all n-grams"
            report(
                f"search: a file of {size:,} bytes has validation accuracy {hits.mean():.4f}, without a size it is "
                f"{dense.mean():.4f}; surely within {100 * tolerance:g} %: {said}"
            )
            if fits or size >= largest:
                good, reached = min(size, max(written, SMALLEST)), float(hits.mean())
            else:
                bad = size
            if good and (not bad or good <= PRECISE * bad):
                return good, reached, float(dense.mean())
            size = int((good * bad) ** 0.5) if good else min(2 * size, LARGEST)

    def _hits(self, settings: NgramSettings, size: int) -> tuple[np.ndarray, int]:
        """Which validation documents a file of this size gets right, and how many bytes it has (0: it cannot be written)."""
        try:
            classifier = fit_ngrams(self.train, replace(settings, size=f"{size}B"))
        except BudgetError:  # many classes do not fit into a small file
            return np.zeros(len(self.validation), bool), 0
        found = np.concatenate([part.argmax(1) for part in ngram_probabilities(classifier, self.validation)])
        return np.asarray(found == self.validation.labels), len(classifier.to_bytes())


@dataclass(frozen=True)
class Quality:
    """Of a model without a size, on validation documents."""

    hits: np.ndarray  # (n,): which are right
    loss: float  # the mean cross-entropy

    @property
    def accuracy(self) -> float:
        return float(self.hits.mean())

    def beats(self, other: "Quality") -> bool:
        """By its accuracy; where documents are few, by its loss, which they tell better, but not at the cost of accuracy."""
        if len(self.hits) >= MANY:  # a lower loss alone made small files worse
            return self.accuracy > other.accuracy + WORSE
        by_loss = self.loss < (1 - BETTER) * other.loss and self.accuracy > other.accuracy - WORSE
        return by_loss or self.accuracy > other.accuracy + WORSE


def dense_quality(train: Documents, validation: Documents, settings: NgramSettings) -> Quality:
    """On validation documents, with a row of scores for each n-gram of the training documents."""
    fit = NgramFit(train, replace(settings, anchors=1, values=(1.0,), bits=BITS))
    fit.dense()
    other = incidence(validation, settings.orders, BITS, least=1)
    at = np.minimum(np.searchsorted(fit.data.buckets, other.buckets), len(fit.data.buckets) - 1)
    rows = np.where((fit.data.buckets[at] == other.buckets)[:, None], fit.R[at], 0.0) if len(fit.data.buckets) else 0.0
    scores = np.zeros((len(validation), len(train.classes)))
    if len(fit.data.buckets):
        np.add.at(scores, other.documents, np.repeat(rows, np.diff(other.starts), axis=0))
    scores = scores * other.scales[:, None] + fit.bias
    chances = np.maximum(softmax(scores)[np.arange(len(validation)), validation.labels], 1e-12)
    return Quality(scores.argmax(1) == validation.labels, float(-np.log(chances).mean()))


def moved(settings: NgramSettings, name: str, factor: float) -> NgramSettings:
    value = vars(settings)[name] * factor
    if name == "orders":
        return replace(settings, orders=max(round(value), 1))
    return NgramSettings(**(vars(settings) | {name: float(f"{value:.4g}")}))


def _sampled(documents: Documents, seed: int) -> Documents:
    """Some documents; fewer of long ones and with many classes, since a trial goes over all words and classes."""
    each = len(documents.tokens) / max(len(documents), 1) * len(documents.classes)
    enough = int(min(SAMPLE, max(WORK / max(each, 1), 10 * len(documents.classes))))
    if len(documents) <= enough:
        return documents
    return documents.take(np.sort(np.random.default_rng(seed).choice(len(documents), enough, replace=False)))


def _described(settings: NgramSettings) -> str:
    return f"runs of {settings.orders} words, ridge {settings.ridge:g}, rarity {settings.rarity:g}, noise {settings.noise:g}"
