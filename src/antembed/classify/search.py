"""Search on validation data for the settings of hashed n-grams, and for the smallest file that is nearly as good.

First the model without a size (a row of class scores for each n-gram): its ridge, noise, rarity and longest n-gram, greedily.
Then the size: four times as large until the validation accuracy is within the tolerance of that model's, then between.
"""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np

from antembed.budget import BudgetError, parse_tolerance
from antembed.classify.config import NgramConfig
from antembed.classify.dataset import DocumentExamples, TextSplits
from antembed.classify.documents import Documents
from antembed.classify.ngram_fit import SETTINGS, NgramFit, NgramSettings, fit_ngrams, incidence
from antembed.classify.predictor import ngram_probabilities, softmax
from antembed.files import JSON
from antembed.native.threads import usable_cpus
from antembed.train.config import TaskConfig
from antembed.train.configure import Report, cached
from antembed.train.options import Options
from antembed.train.task import Splits

BITS = 22  # of a bucket's number, without a size
SAMPLE, WORK = 20_000, 1e7  # documents, and words × classes, that are enough to choose settings by
BETTER, WORSE = 0.01, 2e-3  # the share of the loss that a move must gain, and the accuracy that it may cost
MUCH_BETTER = 0.02  # the share of the loss that suffices where documents are many
COUNTED = {"repeats", "orders", "prefix"}  # moves that change what is counted; others trade the loss for accuracy
SMALLEST, LARGEST, PRECISE = 1_000, 4_000_000, 1.5  # bytes that are tried, and by which factor the result may be too large
LEAST_RIDGE, MANY = 0.02, 4000  # below, nothing changes; documents held out that show half a per cent
FEW, FOLDS = 10_000, 5  # documents below which all of them are held out in turn
SURE = 1.645  # standard errors: 95 %
# The same for sizes where MANY are held out: 69 %. On AG-News (5 100 held out, a standard error of .2 points) 95 % chose 64 to
# 293 KB by the draw of these; 64 KB lose .22 points on average of four draws, and .46 are allowed.
LIKELY = 0.5

MOVES: tuple[tuple[str, float], ...] = (
    ("repeats", 1), ("ridge", 1 / 4), ("ridge", 4), ("orders", 1 / 2), ("orders", 1.5), ("prefix", 0), ("noise", 1 / 4),
    ("rarity", 0), ("ridge", 1 / 2), ("ridge", 2),
)  # fmt: skip
# Short texts of many kinds; and texts in which the class shows in how often frequent words occur.
STARTS: tuple[JSON, ...] = ({}, {"orders": 1, "repeats": True, "ridge": 2.5, "rarity": 0.0, "noise": 0.25})
STRIDES = {("ridge", 1 / 4): 2}  # moves after which one more is made though they did not help: long documents need far less


@dataclass(frozen=True)
class NgramSearch:
    """Settings and sizes for these documents. Each is tried on `folds`, pairs of documents to learn from and to be asked about:
    the validation part where documents (or words and classes) are many, else every document in turn."""

    folds: list[tuple[Documents, Documents]]
    seed: int

    @classmethod
    def of(cls, train: Documents, validation: Documents, seed: int) -> "NgramSearch":
        n = len(train) + len(validation)
        if n >= FEW or len(train.tokens) * len(train.classes) > WORK:
            return cls([(train, validation)], seed)
        everything = joined(train, validation)
        fold = np.random.default_rng(seed).permutation(np.arange(n) % FOLDS)
        pairs = [(np.flatnonzero(fold != k), np.flatnonzero(fold == k)) for k in range(min(FOLDS, n))]
        return cls([(everything.take(rest), everything.take(held)) for rest, held in pairs], seed)

    def settings(self, fixed: JSON, report: Report) -> NgramSettings:
        """The best settings, without a size."""
        some = [(_sampled(train, self.seed), held) for train, held in self.folds]
        first, *others = (replace(NgramSettings(seed=self.seed), **(start | fixed)) for start in STARTS)
        moves = [(name, factor) for name, factor in MOVES if name not in fixed]
        at_once = min(usable_cpus(), 2)  # a trial hardly uses a second core, and takes some hundred MB
        with ThreadPoolExecutor(at_once) as pool:
            trials = {settings: pool.submit(qualities, some, settings) for settings in (first, *others)}
            best, quality, tried = first, trials[first].result(), {first}
            report(f"search: {_described(best)}: validation accuracy {quality.accuracy:.4f}")
            for other in others:
                tried.add(other)
                if (reached := trials[other].result()).beats(quality):
                    best, quality = other, reached
                    report(f"search: {_described(best)}: validation accuracy {quality.accuracy:.4f}")
            for at, (name, factor) in enumerate(moves):
                now, missed = best, 0
                while missed <= STRIDES.get((name, factor), 0):
                    now = moved(now, name, factor)
                    if now in tried or now.ridge < LEAST_RIDGE:
                        break
                    tried.add(now)
                    # Those of the next moves, too, in case that this one is no better.
                    for settings in (now, *(moved(best, *move) for move in moves[at + 1 : at + at_once])):
                        if settings not in trials and settings.ridge >= LEAST_RIDGE:
                            trials[settings] = pool.submit(qualities, some, settings)
                    reached = trials[now].result()
                    missed += 1
                    if reached.beats(quality, by_loss=name in COUNTED):
                        best, quality, missed = now, reached, 0
                        report(f"search: {_described(best)}: validation accuracy {quality.accuracy:.4f}")
        return best

    def size(self, settings: NgramSettings, tolerance: float, report: Report) -> tuple[int, float, float]:
        """The smallest size in bytes that is surely within the tolerance, its accuracy, and that of the model without a size.
        Surely: both models are asked about the same documents, and the loss of accuracy is below the tolerance by SURE standard
        errors (of MANY documents by LIKELY ones), or there is none. (A few hundred cannot show half a per cent.)"""
        dense = qualities(self.folds, settings).hits
        train, _ = self.folds[0]
        smallest = SMALLEST if len(train) < SAMPLE else 4 * SMALLEST
        errors = LIKELY if len(dense) >= MANY else SURE
        size, good, bad, reached = max(smallest, 2 * len(train.classes) ** 2), 0, 0, 0.0
        while True:
            hits, written = self._hits(settings, size)
            lost = dense.astype(float) - hits
            fits = lost.mean() <= max(tolerance * dense.mean() - errors * lost.std() / len(lost) ** 0.5, 0.0)
            largest = LARGEST if written > 0.9 * size or not written else size  # all n-grams are in it
            said = "yes" if fits else "no" if largest > size else "no, but it holds all n-grams"
            sure = "likely" if errors == LIKELY else "surely"
            report(
                f"search: a file of {size:,} bytes has validation accuracy {hits.mean():.4f}, without a size it is "
                f"{dense.mean():.4f}; {sure} within {100 * tolerance:g} %: {said}"
            )
            if fits or size >= largest:
                good, reached = min(size, max(written, SMALLEST)), float(hits.mean())
            else:
                bad = size
            if good and (not bad or good <= PRECISE * bad):
                return good, reached, float(dense.mean())
            size = int((good * bad) ** 0.5) if good else min(4 * size, LARGEST)

    def _hits(self, settings: NgramSettings, size: int) -> tuple[np.ndarray, int]:
        """Which held-out documents files of this size get right, and the bytes of the largest (0: it cannot be written)."""
        found, written = [], 0
        for train, held in self.folds:
            try:
                classifier = fit_ngrams(train, replace(settings, size=f"{size}B"))
            except BudgetError:  # many classes do not fit into a small file
                return np.zeros(sum(len(held) for _, held in self.folds), bool), 0
            best = np.concatenate([part.argmax(1) for part in ngram_probabilities(classifier, held)])
            found.append(best == held.labels)
            written = max(written, len(classifier.to_bytes()))
        return np.concatenate(found), written


@dataclass(frozen=True)
class Quality:
    """Of a model without a size, on validation documents."""

    hits: np.ndarray  # (n,): which are right
    loss: float  # the mean cross-entropy

    @property
    def accuracy(self) -> float:
        return float(self.hits.mean())

    def beats(self, other: "Quality", by_loss: bool = False) -> bool:
        """By its accuracy; where documents are few, also by its loss, which varies less, if accuracy does not suffer.
        Where they are many, a lower loss alone made small files worse: it counts only if asked for, and with more accuracy."""
        gained = self.hits.astype(float) - other.hits
        if len(self.hits) >= MANY:
            clearly = by_loss and self.loss < (1 - MUCH_BETTER) * other.loss and gained.mean() > 0
            return bool(clearly or gained.mean() > max(WORSE, gained.std() / len(gained) ** 0.5))
        lower = self.loss < (1 - BETTER) * other.loss and gained.mean() > -WORSE
        return bool(lower or gained.mean() > max(WORSE, SURE * gained.std() / len(gained) ** 0.5))


def joined(one: Documents, other: Documents) -> Documents:
    """Both, one after the other: with the same vocabulary and classes."""
    starts = np.concatenate([one.starts, one.starts[-1] + other.starts[1:]])
    tokens, labels = (np.concatenate([vars(one)[name], vars(other)[name]]) for name in ("tokens", "labels"))
    return replace(one, tokens=tokens, starts=starts, labels=labels)


def qualities(folds: list[tuple[Documents, Documents]], settings: NgramSettings) -> Quality:
    """Over all folds."""
    each = [dense_quality(train, held, settings) for train, held in folds]
    hits = np.concatenate([quality.hits for quality in each])
    return Quality(hits, sum(quality.loss * len(quality.hits) for quality in each) / max(len(hits), 1))


def dense_quality(train: Documents, validation: Documents, settings: NgramSettings) -> Quality:
    """On validation documents, with a row of scores for each n-gram of the training documents."""
    fit = NgramFit(train, replace(settings, anchors=1, values=(1.0,), bits=BITS))
    fit.dense(settled=0.0)  # stopped early, settings differ by less than they do in the end: AG-News lost `repeats` by it
    other = incidence(validation, settings, BITS, least=1)
    at = np.minimum(np.searchsorted(fit.data.buckets, other.buckets), len(fit.data.buckets) - 1)
    rows = np.where((fit.data.buckets[at] == other.buckets)[:, None], fit.R[at], 0.0) if len(fit.data.buckets) else 0.0
    scores = np.zeros((len(validation), len(train.classes)))
    if len(fit.data.buckets):
        np.add.at(scores, other.documents, np.repeat(rows, np.diff(other.starts), axis=0) * other.times[:, None])
    scores = scores * other.scales[:, None] + fit.bias
    chances = np.maximum(softmax(scores)[np.arange(len(validation)), validation.labels], 1e-12)
    return Quality(scores.argmax(1) == validation.labels, float(-np.log(chances).mean()))


def moved(settings: NgramSettings, name: str, factor: float) -> NgramSettings:
    value = vars(settings)[name] * factor
    if name in ("orders", "prefix"):
        return replace(settings, **{name: max(round(value), int(name == "orders"))})
    if name == "repeats":
        return replace(settings, repeats=True)
    return NgramSettings(**(vars(settings) | {name: float(f"{value:.4g}")}))


def _sampled(documents: Documents, seed: int) -> Documents:
    """Some documents; fewer of long ones and with many classes, since a trial goes over all words and classes."""
    each = len(documents.tokens) / max(len(documents), 1) * len(documents.classes)
    enough = int(min(SAMPLE, max(WORK / max(each, 1), 10 * len(documents.classes))))
    if len(documents) <= enough:
        return documents
    return documents.take(np.sort(np.random.default_rng(seed).choice(len(documents), enough, replace=False)))


def _described(settings: NgramSettings) -> str:
    repeats = ", each occurrence" if settings.repeats else ""
    prefix = f", words by their first {settings.prefix} letters" if settings.prefix else ""
    numbers = f"ridge {settings.ridge:g}, rarity {settings.rarity:g}, noise {settings.noise:g}"
    return f"runs of {settings.orders} words{repeats}{prefix}, {numbers}"


TEXT_TOLERANCE = "0.5%"


class SearchText:
    """Text: n-grams, by their accuracy, in the smallest file within the tolerance."""

    def __call__(self, config: TaskConfig, given: Options, splits: Splits, report: Report) -> JSON:
        assert isinstance(splits, TextSplits)
        assert isinstance(config, NgramConfig)
        fixed = {"orders": config.solver.ngrams} if "ngrams" in given else {}
        tolerance = str(given.get("tolerance", TEXT_TOLERANCE))
        size = {"budget": config.solver.budget} if "budget" in given else {"tolerance": tolerance}
        read = {"data": splits.digest, "seed": config.machine.seed, "max_length": config.input.max_length}
        found = cached(
            {"search": "ngrams", **read, "columns": [config.input.text, config.input.label], **fixed, **size},
            lambda: self._search(splits, config.machine.seed, fixed, size, report),
            report,
        )
        return {**found["options"], "hold_out": False}

    def _search(self, splits: TextSplits, seed: int, fixed: JSON, size: JSON, report: Report) -> JSON:
        train, validation = (_documents(part) for part in (splits.train, splits.validation))
        search = NgramSearch.of(train, validation, seed)
        best = search.settings(fixed, report)
        options: JSON = {"ngrams": best.orders, **{name: vars(best)[name] for name in sorted(SETTINGS)}, **size}
        if "tolerance" not in size:
            return {"options": options}
        amount, accuracy, dense = search.size(best, parse_tolerance(options.pop("tolerance")), report)
        report(f"searched: {amount:,} bytes, validation accuracy {accuracy:.4f}; without a size {dense:.4f}")
        return {"options": options | {"budget": f"{amount}B"}, "dense_accuracy": dense}


def _documents(part: DocumentExamples) -> Documents:
    assert part.documents is not None
    return part.documents.take(part.rows)
