"""Fit a text classifier of hashed n-grams to a file size: dense rows, anchors, fewer and fewer n-grams, a polish.

    dense     a row of class scores for each n-gram, logistic loss, ridge and noise, by coordinate descent
    anchors   the directions in which the rows lie (k-means), as few class-score prototypes B
    ramp      each n-gram takes the best of `values` on the best anchor, or nothing if that is not worth the penalty, which
              rises until as many n-grams are left as fit into the file; B and the bias are refitted after each sweep
    polish    the n-grams that are left choose their code anew, without the penalty

Values are the few of the file from the first sweep of the ramp on: what is trained is what is stored.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from antembed.budget import BudgetError, parse_budget, target
from antembed.classify.documents import Documents
from antembed.classify.ngram_file import MOST_BITS, HashedNgrams, buckets_of, document_scales, ngram_hashes
from antembed.classify.ngram_kernel import (
    MANY,
    count_objects,
    descend_codes,
    descend_dense,
    gather_codes,
    logistic_loss,
    score_rows,
)
from antembed.classify.predictor import vocabulary_hashes
from antembed.native.threads import take_turns, usable_cpus


def curvatures(weights: np.ndarray, P: np.ndarray) -> np.ndarray:
    """Σ_i weights[i, k]·(diag(P_i) − P_i·P_iᵀ) for each k: (K, C, C)."""
    rows = [weights.T @ (P[:, a : a + 1] * (np.eye(P.shape[1])[a] - P)) for a in range(P.shape[1])]
    return np.stack(rows, axis=1)


def logistic(
    Z: np.ndarray, labels: np.ndarray, penalty: np.ndarray, B: np.ndarray, bias: np.ndarray, steps: int = 20
) -> tuple[np.ndarray, np.ndarray]:
    """min over B (K, C), bias (C):  mean_i −log softmax(Z_i·B + bias)[labels_i]  +  ½/n·Σ_k B_kᵀ·penalty_k·B_k.

    From those given. A penalty is a matrix (K, C, C) or its diagonals (K, C)."""
    from scipy.optimize import minimize  # a fifth of a second, which other solvers' runs need not wait for

    shape, size, threads = B.shape, B.size, usable_cpus()

    def loss(x: np.ndarray) -> tuple[float, np.ndarray]:
        B, bias = x[:size].reshape(shape), x[size:]
        penalty_slope = penalty * B if penalty.ndim == 2 else (penalty @ B[..., None])[..., 0]
        total, slopes, slope = logistic_loss(Z, labels, B, bias, threads)
        slopes = np.concatenate([(slopes + penalty_slope).ravel(), slope])
        return (total + 0.5 * (penalty_slope * B).sum()) / len(Z), slopes / len(Z)

    found = minimize(loss, np.concatenate([B.ravel(), bias]), jac=True, method="L-BFGS-B", options={"maxiter": steps}).x
    return found[:size].reshape(shape), found[size:]


SETTINGS = {"repeats", "prefix", "ridge", "rarity", "noise"}  # of NgramDescentConfig, by the same names in NgramSettings
LONGEST_STEP = 3.0  # in scores, of one object in one sweep
# What a code can stand for, in units of a class's scale.
COARSE_VALUES, FINE_VALUES = (0.5, 1.0, 2.0, 4.0), (0.35, 0.5, 0.7, 1.0, 1.4, 2.0, 2.8, 4.0)
ROOMY = 2e5  # bytes; from here on objects, not bytes, run out, and finer codes cost nothing
ANCHORS = 0.25  # of the file
MOST_PARTS, PARTED_UP_TO = 4, 24  # threads that count, since each needs memory for 2^bits buckets, and bits
COUNTED_FROM = 1 << 21  # words and runs; below, sorting them is faster than counting in 2^bits buckets
BLOCKS, BLOCKS_PER_OBJECT = 256, 8  # of a sweep, at least; and for each object of a document
DENSE_SWEEPS, POLISH_SWEEPS = 4, 3  # at most: they end when the loss is SETTLED, or few codes CHANGE
SETTLED, CHANGE = 0.25, 0.06  # the share of the loss, and of the codes, that a sweep changes when there is little left to gain
CANDIDATES, LEAST_CANDIDATES = 3, 60_000  # objects, the most frequent: so many for each that fits, and at least so many
SPARE = 1.04  # objects kept at the end of the ramp, of those that are expected to fit: some are dropped when the size is known


@dataclass(frozen=True)
class NgramSettings:
    """What a classifier is fitted with."""

    size: str = "50KB"  # of the file, at most
    orders: int = 2  # objects are words, and runs of up to so many
    repeats: bool = False  # every occurrence in a document counts, not only the first
    prefix: int = 5  # longer words are also objects by their first letters, so many; 0: they are not
    anchors: int = 0  # 0: by the size and the number of classes
    values: tuple[float, ...] = ()  # of T; (): by the size
    bits: int = 0  # of a bucket's number; 0: 64 buckets an object or more
    ridge: float = 20.0
    rarity: float = 2.5  # an object's ridge is divided by its idf to this power
    noise: float = 1.0  # objects are left out at random as often as not, on average (classify/ngram_kernel.py)
    ramp: int = 6  # sweeps, at most: one for each halving of the objects, and one more
    seed: int = 0


@dataclass(frozen=True)
class Incidence:
    """Which object is in which document: object j, bucket buckets[j], in documents[starts[j]:starts[j + 1]], and how often."""

    buckets: np.ndarray  # (V,) int64, sorted
    starts: np.ndarray  # (V + 1,)
    documents: np.ndarray  # (pairs,) int32
    times: np.ndarray  # (pairs,) float32
    scales: np.ndarray  # (n,)


def incidence(documents: Documents, settings: NgramSettings, bits: int, least: int = 2, enough: float = np.inf) -> Incidence:
    """The objects that `least` documents have: what is seen once says nothing of others. And that more documents have, as long
    as there are `enough` of these."""
    scales = document_scales(documents.starts, settings.orders)
    make = _sorted_pairs if len(documents.tokens) * settings.orders < COUNTED_FROM else _counted_pairs
    hashes = vocabulary_hashes(tuple(documents.vocabulary.words), settings.prefix)
    buckets, starts, inside, times = make(documents, hashes, settings.orders, bits, least, enough)
    return Incidence(buckets, starts, inside, times if settings.repeats else np.ones_like(times), scales.astype(np.float32))


Pairs = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]  # buckets, starts, documents, times


def _frequent(counts: np.ndarray, least: int, enough: float) -> np.ndarray:
    """Which of objects that so many documents have are taken."""
    n = len(counts)
    rarest = np.partition(counts, n - int(enough))[n - int(enough)] if 0 < enough <= n else 0
    return counts >= max(least, rarest, 1)


def _sorted_pairs(documents: Documents, hashes: np.ndarray, orders: int, bits: int, least: int, enough: float) -> Pairs:
    hashes, owners = ngram_hashes(hashes[documents.tokens], documents.starts, orders)
    pairs, times = np.unique((buckets_of(hashes, bits) << 32) | owners, return_counts=True)
    buckets, counts = np.unique(pairs >> 32, return_counts=True)
    taken = _frequent(counts, least, enough)
    inside = np.repeat(taken, counts)
    starts = np.concatenate([[0], np.cumsum(counts[taken])])
    return buckets[taken], starts, (pairs[inside] & 0xFFFFFFFF).astype(np.int32), times[inside].astype(np.float32)


def _counted_pairs(documents: Documents, hashes: np.ndarray, orders: int, bits: int, least: int, enough: float) -> Pairs:
    """The same in two passes, without all hashes in memory. Threads share the documents, and each has counts of its own."""
    words, prefixes = np.ascontiguousarray(hashes.T) if hashes.ndim == 2 else (hashes, hashes[:0])
    text = (documents.tokens, documents.starts, words, prefixes, orders, bits)
    none, longs, reals = (np.empty(0, dtype) for dtype in (np.int32, np.int64, np.float32))
    parts = min(usable_cpus(), MOST_PARTS) if bits <= PARTED_UP_TO else 1
    counts, cuts = np.zeros((parts, 1 << bits), np.int32), [len(documents) * part // parts for part in range(parts + 1)]

    def count(part: int) -> None:
        last = np.full(1 << bits, -1, np.int32)
        count_objects(cuts[part], cuts[part + 1], *text, none, counts[part], last, longs, none, reals)

    take_turns(count, parts, parts)
    total = counts.sum(0, dtype=np.int32)
    buckets = np.flatnonzero(_frequent(total, least, enough))
    starts = np.concatenate([[0], np.cumsum(total[buckets], dtype=np.int64)])
    rows = np.full(1 << bits, -1, np.int32)
    rows[buckets] = np.arange(len(buckets), dtype=np.int32)
    inside, times = np.empty(starts[-1], np.int32), np.empty(starts[-1], np.float32)
    # Documents of earlier parts come first, as without parts.
    ends = starts[:-1] + np.cumsum(counts[:, buckets], axis=0) - counts[:, buckets]

    def place(part: int) -> None:
        last = np.full(len(buckets), -1, np.int32)
        count_objects(cuts[part], cuts[part + 1], *text, rows, none, last, ends[part], inside, times)

    take_turns(place, parts, parts)
    return buckets, starts, inside, times


def fit_ngrams(train: Documents, settings: NgramSettings | None = None) -> HashedNgrams:
    """A classifier whose file has at most the size asked for. The same for the same documents and settings."""
    *_, fit = fit_sweeps(train, settings or NgramSettings())
    return fit.classifier()


def fit_sweeps(train: Documents, settings: NgramSettings) -> "Iterator[NgramFit]":
    """The state of the fit after each sweep of the ramp, and once more at the end, when the file has its size."""
    train = train.take(np.flatnonzero(train.labels >= 0)) if (train.labels < 0).any() else train
    if len(train) == 0 or len(train.classes) < 2:
        raise ValueError(
            f"{len(train)} documents of {len(train.classes)} classes; 2 classes and some documents of each are needed"
        )
    budget = parse_budget(settings.size, 0)
    if budget.unit != "bytes":
        raise BudgetError(f"{settings.size!r} is no size of a file; say 50KB or 1MB")
    values = settings.values or (FINE_VALUES if budget.amount > ROOMY else COARSE_VALUES)
    K = settings.anchors or likely_anchors(budget.amount, len(train.classes), len(values))
    bits = settings.bits or likely_bits(budget.amount, K * len(values))
    fit = NgramFit(train, replace(settings, anchors=K, values=values, bits=bits))
    if (least := fit.overhead - 20) > budget.amount:
        raise BudgetError(f"a file without objects has {least} bytes, {budget.amount:.0f} are allowed; allow more")
    fit.dense()
    fit.choose_anchors()
    objects = len(fit.data.buckets)
    wanted = SPARE * likely_objects(budget.amount - fit.overhead, fit.code_bits, bits)
    ramp = int(np.clip(np.ceil(np.log2(max(objects, 1) / wanted)) + 1, min(2, settings.ramp), settings.ramp))
    for sweep in range(ramp):
        wanted = SPARE * likely_objects(budget.amount - fit.overhead, fit.code_bits, bits)
        fit.sweep(round(target(objects, wanted, (sweep + 1) / ramp)))
        yield fit
    fit.shrink_to(budget.amount)
    for _ in range(POLISH_SWEEPS):
        if fit.sweep(None) < CHANGE:
            break
    fit.shrink_to(budget.amount)
    yield fit


def likely_anchors(size: float, classes: int, values: int) -> int:
    """Some for each class, but for one no more than a part of the file has room for: their scores, and their codes' chances."""
    return min((12 if size > ROOMY else 6) * classes, max(int(ANCHORS * size / (2 * classes + values)), classes))


def usual_bits(codes: int) -> float:
    """Entropy of an object's code, of so many."""
    return float(0.85 * np.log2(codes))


def likely_objects(size: float, code_bits: float, bits: int) -> int:
    """How many objects fit into `size` bytes, if each takes `code_bits` and the entropy of a gap between 2^bits buckets."""
    n = room = 8 * max(size, 1)
    for _ in range(30):
        n = room / (max(bits - np.log2(n), 0) + 1.45 + code_bits)
    return max(int(n), 1)


def likely_bits(size: float, codes: int) -> int:
    """Bits of a bucket's number such that there are 64 buckets an object: fewer, and too many others fall on it."""
    n = likely_objects(size - 4 * codes, usual_bits(codes), 20)
    return int(np.clip(np.ceil(np.log2(n)) + 6, 12, MOST_BITS - 2))


class NgramFit:
    """The state of a fit: rows, codes, anchors, and the scores that they give."""

    def __init__(self, train: Documents, settings: NgramSettings) -> None:
        self.settings, self.classes = settings, train.classes
        self.labels = train.labels.astype(np.int32)
        code_bits = usual_bits(settings.anchors * len(settings.values))
        room = likely_objects(parse_budget(settings.size, 0).amount, code_bits, settings.bits)
        self.data = incidence(train, settings, settings.bits, enough=max(CANDIDATES * room, LEAST_CANDIDATES))
        data = self.data
        self.arrays = (data.starts, data.documents, data.times, data.scales, self.labels)  # as kernels take them
        V, n, C = len(data.buckets), len(train), len(train.classes)
        counts = np.diff(data.starts)
        self.ridge = settings.ridge / (np.log(n / np.maximum(counts, 1)) + 1) ** settings.rarity
        self.R = np.zeros((V, C))
        # In single precision, since most of the time goes into fetching them; sums over documents are in double precision.
        self.S, self.P = np.zeros((n, C), np.float32), np.full((n, C), 1 / C, np.float32)
        self.B, self.bias = np.zeros((settings.anchors, C)), np.zeros(C)
        self.values = np.array(settings.values)
        self.anchors, self.levels = np.full(V, -1), np.full(V, -1)
        self.gains, self.penalty = np.zeros(V), 0.0
        self.random = np.random.default_rng(settings.seed)

    @property
    def kept(self) -> int:
        return int((self.anchors >= 0).sum())

    @property
    def overhead(self) -> int:
        """Bytes of a file without objects."""
        none = np.empty(0, np.int64)
        empty = replace(self.classifier(), objects=none, anchors=none, levels=none)
        return len(empty.to_bytes()) + 20  # longer numbers in its head

    @property
    def code_bits(self) -> float:
        """Entropy of an object's code as codes are now; at first, what is usual."""
        used = self.anchors >= 0
        if not used.any():
            return usual_bits(self.B.shape[0] * len(self.values))
        counts = np.bincount((self.anchors * len(self.values) + self.levels)[used])
        shares = counts[counts > 0] / counts.sum()
        return float(-(shares * np.log2(shares)).sum())

    @property
    def loss(self) -> float:
        """The mean cross-entropy over the training documents."""
        own = self.P[np.arange(len(self.labels)), self.labels].astype(np.float64)
        return float(-np.log(np.maximum(own, 1e-300)).mean())

    @property
    def accuracy(self) -> float:
        return float((self.S.argmax(1) == self.labels).mean())

    def dense(self, settled: float = SETTLED) -> None:
        """Rows of all objects, until a sweep changes the loss by less than the share `settled`."""
        noise, longest = self.settings.noise, LONGEST_STEP / self.data.scales.mean()
        for _ in range(DENSE_SWEEPS):
            before = self.loss
            order = self.random.permutation(len(self.data.buckets))
            descend_dense(
                self.arrays, self.ridge, noise, order, self.cuts(order), longest, self.R, self.S, self.P, usable_cpus()
            )
            if abs(self.loss - before) < settled * before:
                break

    def cuts(self, order: np.ndarray) -> np.ndarray:
        """Blocks of objects that are fitted at the same time: so many that a document has hardly two of one block."""
        ends = np.cumsum(np.diff(self.data.starts)[order])
        blocks = max(BLOCKS, BLOCKS_PER_OBJECT * len(self.data.documents) // len(self.S))
        wanted = np.arange(1, blocks) * (int(ends[-1]) / blocks if len(ends) else 0.0)
        return np.unique(np.concatenate([[0], np.searchsorted(ends, wanted), [len(order)]]))

    def choose_anchors(self) -> None:
        worth = np.diff(self.data.starts) * (self.R**2).sum(1)
        self.B = directions(self.R, worth, self.settings.anchors) / np.median(self.values)

    def sweep(self, wanted: int | None) -> float:
        """Codes for all objects, then the `wanted` best of them only, then anchors. None: those that are left choose anew.
        → the share of those that are left whose codes have changed."""
        frozen = wanted is None
        before = self.anchors * len(self.values) + self.levels
        order = self.random.permutation(self._candidates(frozen))
        descend_codes(
            self.arrays, self.ridge, self.settings.noise, order, self.cuts(order), self.B, self.values, self.penalty, frozen,
            self.anchors, self.levels, self.gains, self.R, self.S, self.P, usable_cpus(),
        )  # fmt: skip
        if wanted is not None:
            self.penalty = self.drop_to(wanted)
        self.refit_anchors()
        changed = (before != self.anchors * len(self.values) + self.levels) & (self.anchors >= 0)
        return float(changed.sum() / max(self.kept, 1))

    def _candidates(self, frozen: bool) -> np.ndarray:
        """Objects that may get a code: those that have one; in the ramp all but those that the last sweep found to be worth
        less than what was needed then, and more is needed now."""
        if not frozen and self.penalty == 0:
            return np.arange(len(self.data.buckets))
        return np.flatnonzero(self.anchors >= 0 if frozen else self.gains > 0)

    def drop_to(self, wanted: int) -> float:
        """Keep the objects that lower the loss most; by how much the last of them does."""
        worst_first = np.argsort(np.where(self.anchors >= 0, self.gains, -1), kind="stable")
        dropped = worst_first[: max(len(worst_first) - wanted, 0)]
        self.anchors[dropped] = self.levels[dropped] = -1
        return float(self.gains[worst_first[len(dropped)]]) if len(dropped) < len(worst_first) else self.penalty

    def refit_anchors(self) -> None:
        """B and the bias for the codes as they are: a logistic regression on Z, how much of each anchor a document has."""
        K, n = len(self.B), len(self.S)
        used = self.anchors >= 0
        t = np.where(used, self.values[self.levels], 0.0)
        Z, squares = np.zeros((n, K), np.float32), np.zeros((n, K), np.float32)  # some tens of numbers are summed in each
        gather_codes(self.arrays, self.anchors, t, Z, squares, usable_cpus())
        ridge = np.bincount(self.anchors[used], weights=(self.ridge * t**2)[used], minlength=K) + 1e-3
        C = self.P.shape[1]
        if C > MANY:  # full matrices take n·K·C², diagonals n·K·C
            penalty = ridge[:, None] + self.settings.noise * (squares.T @ (self.P * (1 - self.P)))
        else:
            penalty = ridge[:, None, None] * np.eye(C) + self.settings.noise * curvatures(squares, self.P)
        self.B, self.bias = logistic(Z, self.labels, penalty, self.B, self.bias)
        self.R = np.where(used[:, None], self.B[self.anchors] * t[:, None], 0.0)
        score_rows(Z, self.B, self.bias, self.S, self.P, usable_cpus())

    def shrink_to(self, size: float) -> None:
        """Drop the objects that matter least until the file fits."""
        kept = self.kept
        while (over := len(self.classifier().to_bytes()) - size) > 0:
            if self.kept == 0:
                raise BudgetError(
                    f"a file without objects has {over + size:.0f} bytes, {size:.0f} are allowed; allow more: "
                    f"{len(self.B)} anchors for {len(self.classes)} classes take {2 * self.B.size}"
                )
            each = max(over + size - 200, 1) / self.kept
            self.drop_to(max(self.kept - int(over / each) - 1, 0))
        if self.kept < kept:
            self.refit_anchors()

    def classifier(self) -> HashedNgrams:
        used = np.flatnonzero(self.anchors >= 0)
        B = self.B.astype(np.float16).astype(np.float64)  # as they are stored
        bias, values = (numbers.astype(np.float32).astype(np.float64) for numbers in (self.bias, self.values))
        codes, own = (self.data.buckets[used], self.anchors[used], self.levels[used]), self.settings
        return HashedNgrams(*codes, B, bias, values, self.classes, own.bits, own.orders, own.repeats, own.prefix)


def directions(R: np.ndarray, worth: np.ndarray, K: int, most: int = 20_000, rounds: int = 20) -> np.ndarray:
    """K anchors (K, C) along which rows lie: k-means of the directions of the rows worth most, in their usual length. The first
    is that of the best row, each next one the row that is worth most and least like those so far."""
    rows = R - R.mean(1, keepdims=True)  # softmax does not see what classes have in common
    lengths = np.linalg.norm(rows, axis=1)
    top = np.argsort(-np.where(lengths > 1e-9, worth, -1), kind="stable")[:most]
    top = top[lengths[top] > 1e-9]
    if len(top) == 0:
        return np.zeros((K, R.shape[1]))
    rows, lengths, worth = rows[top] / lengths[top, None], lengths[top], worth[top]
    found = np.empty((K, R.shape[1]))
    found[0] = rows[0]
    for k in range(1, K):
        found[k] = rows[np.argmax(np.sqrt(worth) * (1 - (rows @ found[:k].T).max(1)))]
    for _ in range(rounds):
        nearest = (rows @ found.T).argmax(1)
        for k in range(K):
            mean = (worth[nearest == k, None] * rows[nearest == k]).sum(0)
            if (size := np.linalg.norm(mean)) > 0:
                found[k] = mean / size
    nearest = (rows @ found.T).argmax(1)
    usual = [np.median(lengths[nearest == k]) if (nearest == k).any() else np.median(lengths) for k in range(K)]
    return found * np.array(usual)[:, None]
