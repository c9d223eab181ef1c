"""Compression by transform, E ≈ T·A + mean: anchors are the principal axes, T is on one grid and entropy-coded."""

from dataclasses import dataclass, replace

import numpy as np

from antembed.compression.goal import OVERHEAD, Coded, Goal, Weighted, coded_blocks, divisors, int8_anchors, meet, weighted
from antembed.compression.quality import Progress, quiet
from antembed.native.threads import parallel_for, usable_cpus
from antembed.tables.entropy_kernel import CLASSES, LARGEST, MOST, MOVES, THRESHOLDS, TOTAL, UNIT, encode_blocks, quantize_rows
from antembed.tables.entropy_rows import NORM_STEP, row_weights

OFFSET = 12  # the class of a column whose deviation is one step: half of what a number of 1 is
RATE = 0.44  # price of a bit, in squared steps: the slope of error over bits at this grid
SAMPLE = 1 << 19  # numbers
SEARCHED = 14  # steps, halving
ROUNDS = 3  # of frequencies and numbers that follow each other
SMALLEST = 1e-6  # deviation


@dataclass(frozen=True)
class Model:
    """What the coder knows beside the rows."""

    step: float
    classes: np.ndarray  # (K,)
    promise: np.ndarray  # (CLASSES,)
    frequencies: np.ndarray  # (CLASSES, 16), sums of TOTAL
    centres: np.ndarray  # (CLASSES, 4) int8

    @property
    def bits(self) -> np.ndarray:
        return np.log2(TOTAL / np.maximum(self.frequencies, 1e-9)) + (np.arange(LARGEST + 1) > 0)


@dataclass(frozen=True)
class Prepared:
    """Rows in the axes' coordinates."""

    Y: np.ndarray  # (V, K) float32
    stored: dict[str, np.ndarray]  # the arrays of the axes
    deviations: np.ndarray  # (K,)
    shifts: np.ndarray  # (V,): how much larger rows are than the mean by their weights, in quarter octaves
    rows: Weighted


def prepare(E: np.ndarray, weighting: float, split_norms: bool, importance: np.ndarray | None = None) -> Prepared:
    """Centre, weigh, and turn into principal axes."""
    rows = weighted(E, weighting, divisors(E, split_norms, importance), NORM_STEP)
    X = rows.X.astype(np.float64)
    values, vectors = np.linalg.eigh(X.T @ X / max(len(X), 1))
    stored = int8_anchors(vectors[:, np.argsort(-values)].T.astype(np.float32), rows.mean)
    axes = stored["anchors"] * stored["anchor_scales"].astype(np.float64)[:, None]
    Y = (X @ np.linalg.inv(axes)).astype(np.float32)  # the axes as they are stored lose nothing, although they are rounded
    weights = row_weights(np.arange(len(Y)), weighting, rows.mean_place)
    shifts = np.rint(4 * np.log2(weights)).astype(np.int64)
    return Prepared(Y, stored, np.sqrt((Y.astype(np.float64) ** 2).mean(0)), shifts, rows)


def laplacian(step: float, deviations: np.ndarray) -> Model:
    """Where the search begins: numbers that fall off exponentially."""
    classes = np.clip(np.rint(4 * np.log2(np.maximum(deviations, 1e-12) / step)) + OFFSET, 0, CLASSES - 1).astype(np.int64)
    scale = 2.0 ** ((np.arange(2 * CLASSES) % CLASSES - OFFSET) / 4)
    m = np.arange(LARGEST + 1)
    stands = np.where(m > 0, 2 * m - (np.arange(2 * CLASSES) >= CLASSES)[:, None], 0)
    p = np.exp(-np.sqrt(2) * stands / scale[:, None]) * np.where(m > 0, 2, 1)
    promise = np.rint(UNIT * np.minimum((p * m).sum(1) / p.sum(1), MOST)).astype(np.int64)[:CLASSES]
    return Model(step, classes, promise, integer_frequencies(p), np.zeros((2 * CLASSES, 4), np.int8))


def integer_frequencies(weights: np.ndarray) -> np.ndarray:
    """Frequencies that sum to TOTAL in each row, none of them zero."""
    weights = weights + 1e-3 * weights.sum(1, keepdims=True) / weights.shape[1] + 1e-12
    shares = np.maximum((weights / weights.sum(1, keepdims=True) * TOTAL).astype(np.int64), 1)
    rows = np.arange(len(shares))
    shares[rows, shares.argmax(1)] += TOTAL - shares.sum(1)
    return shares


def quantized(Y: np.ndarray, shifts: np.ndarray, model: Model) -> tuple[np.ndarray, np.ndarray]:
    """Integers and contexts."""
    Q, C = np.empty(Y.shape, np.int32), np.empty(Y.shape, np.uint8)
    X = (Y / np.float32(model.step)).astype(np.float32)
    centres = model.centres.astype(np.float64) / 128
    known = (model.classes, model.promise, model.bits, centres, RATE, THRESHOLDS, MOVES)
    parallel_for(lambda a, b: quantize_rows(X[a:b], shifts[a:b], *known, Q[a:b], C[a:b]), len(X), X.shape[1], usable_cpus())
    return Q, C


def learned(Y: np.ndarray, shifts: np.ndarray, Q: np.ndarray, C: np.ndarray, model: Model) -> Model:
    """Frequencies, promises and centres of what was quantized."""
    m = np.abs(Q).astype(np.int64)
    symbol, context = np.minimum(m, LARGEST), C.astype(np.int64)
    counts = np.bincount((context * (LARGEST + 1) + symbol).reshape(-1), minlength=2 * CLASSES * (LARGEST + 1))
    before = laplacian(model.step, model.step * 2.0 ** ((model.classes - OFFSET) / 4)).frequencies / TOTAL
    frequencies = integer_frequencies(counts.reshape(2 * CLASSES, -1) + 8 * before)
    columns = np.clip(model.classes + shifts[:, None], 0, CLASSES - 1).reshape(-1)
    number = np.bincount(columns, minlength=CLASSES)
    sums = np.bincount(columns, np.minimum(m, MOST).reshape(-1), CLASSES)
    promise = np.where(number > 0, np.rint(UNIT * sums / np.maximum(number, 1)), model.promise).astype(np.int64)
    kind = np.minimum(m, 3)
    shift = np.where(m > 0, 2 * m - (context >= CLASSES) - np.abs(Y) / model.step, 0.0)
    place = (context * 4 + kind).reshape(-1)
    many = np.bincount(place, minlength=8 * CLASSES)
    mean = np.bincount(place, shift.reshape(-1), 8 * CLASSES) / np.maximum(many, 1)
    centres = np.where((many > 50) & (np.arange(8 * CLASSES) % 4 > 0), np.clip(np.rint(128 * mean), -60, 80), 0)
    return replace(model, promise=promise, frequencies=frequencies, centres=centres.reshape(-1, 4).astype(np.int8))


def estimated_bits(Q: np.ndarray, C: np.ndarray, model: Model) -> float:
    """Of these numbers by this model; escapes are rare."""
    m = np.abs(Q)
    escapes = np.where(m >= LARGEST, 5 + np.log2(np.maximum(m - LARGEST + 1, 1)), 0)
    return float(model.bits[C, np.minimum(m, LARGEST)].sum() + escapes.sum())


def used_columns(Q: np.ndarray) -> np.ndarray:
    return np.flatnonzero((Q != 0).any(0))


def encode(prepared: Prepared, Q: np.ndarray, C: np.ndarray, model: Model) -> Coded:
    """The numbers as arrays of a file."""
    n, K = Q.shape
    shares = model.frequencies.astype(np.int64)
    firsts = np.cumsum(shares, 1) - shares
    arrays, per_block = coded_blocks(
        lambda rows, out, offsets: encode_blocks(Q, C, shares, firsts, rows, out, offsets), n, estimated_bits(Q, C, model) / 8
    )
    arrays |= {"classes": model.classes.astype(np.uint8), "promise": model.promise.astype(np.uint16)}
    arrays |= {"frequencies": model.frequencies.astype(np.uint16), "centres": model.centres, "mean": prepared.stored["mean"]}
    arrays |= {name: prepared.stored[name][:K] for name in ("anchors", "anchor_scales")}
    if prepared.shifts.any():
        arrays["shift_places"] = np.repeat(np.arange(1, n), -np.diff(prepared.shifts)).astype(np.uint32)
    if prepared.rows.norms is not None:
        arrays["norms"] = prepared.rows.norms
    about = {"encoding": "coded", "values": "int8", "objects": n, "columns": K + 1}
    about |= {"nonzeros": int(np.count_nonzero(Q)) + n, "dimensions": prepared.stored["anchors"].shape[1]}
    about |= {"step": float(model.step), "first_shift": int(prepared.shifts[0]), "rows_per_block": per_block}
    return Coded(arrays, about | prepared.rows.about())


def fixed_bytes(d: int) -> int:
    """Of a file, beside its rows and anchors."""
    return 2 * CLASSES * (2 * (LARGEST + 1) + 1 + 4) + 2 * d


def fit(
    E: np.ndarray,
    goal: Goal,
    *,
    weighting: float = 0.0,
    split_norms: bool = False,
    importance: np.ndarray | None = None,
    seed: int = 0,
    progress: Progress = quiet,
) -> Coded:
    """E (V, d) → a table that meets the goal."""
    V, d = E.shape
    fixed = fixed_bytes(d) + (V if split_norms or importance is not None else 0)
    goal.check(fixed + 0.05 * V, V)
    progress("principal axes", 0, 1)
    prepared = prepare(E, weighting, split_norms, importance)
    if goal.by_error:
        step = float(np.sqrt(3 * goal.error) * max(np.sqrt((prepared.deviations**2).mean()), SMALLEST))
    else:
        step = _searched(prepared, goal.size, fixed, seed, progress)
    model: Model | None = None

    def attempt(step: float) -> Coded:
        nonlocal model
        coded, model = _coded(prepared, step, model)
        return coded

    return meet(goal, E, attempt, step, progress)


def _searched(prepared: Prepared, target: float, fixed: float, seed: int, progress: Progress) -> float:
    """The step by which a sample of the rows takes its share of the bytes."""
    V, d = prepared.Y.shape
    some = np.sort(np.random.default_rng(seed).choice(V, min(V, max(SAMPLE // d, 1024)), replace=False))
    sample, shifts = prepared.Y[some], prepared.shifts[some]
    largest = max(float(prepared.deviations.max()), SMALLEST)  # all vectors may be the same
    low, high = 1e-3 * largest, 8 * largest
    for number in range(SEARCHED):
        progress("searching the step", number, SEARCHED)
        step = float(np.sqrt(low * high))
        model = laplacian(step, prepared.deviations)
        for _ in range(2):
            Q, C = quantized(sample, shifts, model)
            model = learned(sample, shifts, Q, C, model)
        used = len(used_columns(Q))
        size = estimated_bits(Q, C, model) / 8 * V / len(sample) * (1 + OVERHEAD) + fixed + (d + 2) * used
        low, high = (step, high) if size > target else (low, step)
    return high


def _coded(prepared: Prepared, step: float, before: Model | None) -> tuple[Coded, Model]:
    """At this step; `before`: what was learned at another, which is nearly the same."""
    model = laplacian(step, prepared.deviations)
    if before is not None:
        model = replace(before, step=step, classes=model.classes)
    for _ in range(ROUNDS if before is None else 1):
        Q, C = quantized(prepared.Y, prepared.shifts, model)
        model = learned(prepared.Y, prepared.shifts, Q, C, model)
    full = model
    columns = int(used_columns(Q).max(initial=-1)) + 1  # axes are in the order of their size
    cut = replace(prepared, Y=np.ascontiguousarray(prepared.Y[:, :columns]))
    model = replace(model, classes=model.classes[:columns])
    Q, C = quantized(cut.Y, cut.shifts, model)
    model = replace(learned(cut.Y, cut.shifts, Q, C, model), promise=model.promise)  # contexts follow from it
    return encode(cut, Q, C, model), full
