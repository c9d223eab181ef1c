"""Compression by transform, E ≈ T·A + mean: anchors are the principal axes, T is on one grid and entropy-coded."""

from dataclasses import dataclass, replace

import numpy as np

from antembed.compression.goal import (
    OVERHEAD,
    Coded,
    Goal,
    Vectors,
    Weighted,
    coded_blocks,
    divisors,
    int8_anchors,
    meet,
    next_step,
    weighted,
)
from antembed.compression.quality import Progress, chunks, quiet
from antembed.native.threads import parallel_for, usable_cpus
from antembed.tables.entropy_kernel import CLASSES, LARGEST, MOST, MOVES, THRESHOLDS, TOTAL, UNIT, encode_blocks, quantize_rows
from antembed.tables.entropy_rows import NORM_STEP

OFFSET = 12  # the class of a column whose deviation is one step: half of what a number of 1 is
RATE = 0.44  # price of a bit, in squared steps: the slope of error over bits at this grid
SEARCHES = ((1 << 17, 16), (1 << 20, 4))  # numbers of the samples on which the step is searched, and steps tried on each
ROUNDS = 2  # of frequencies and numbers that follow each other, at a step
NEAR = 2e-3  # octaves: a search ends so near its aim, which is so much below the goal
SEEN = 3.0  # steps: where a row is so large on an axis, the axis is kept although no row of the sample needs it
SMALLEST = 1e-6  # deviation


@dataclass(frozen=True)
class Model:
    """What the coder knows beside the rows."""

    step: float
    classes: np.ndarray  # (K,)
    promise: np.ndarray  # (CLASSES,)
    frequencies: np.ndarray  # (CLASSES, 16), sums of TOTAL
    centres: np.ndarray  # (CLASSES, 4) int8
    bits_of_a_row: float = 0.0

    @property
    def bits(self) -> np.ndarray:
        return np.log2(TOTAL / np.maximum(self.frequencies, 1e-9)) + (np.arange(LARGEST + 1) > 0)


@dataclass(frozen=True)
class Prepared:
    """Rows, and the axes in whose coordinates they are coded."""

    rows: Weighted
    stored: dict[str, np.ndarray]  # the arrays of the axes
    axes: np.ndarray  # (K, d), as they are stored
    inverse: np.ndarray  # (d, K) float32
    deviations: np.ndarray  # (K,), of the coordinates
    shifts: np.ndarray  # (V,): how much larger rows are than the mean by their weights, in quarter octaves

    def coordinates(self, rows: slice | np.ndarray) -> np.ndarray:
        """(n, K) float32."""
        return self.rows[rows] @ self.inverse

    def cut(self, columns: int) -> "Prepared":
        """With the first axes alone."""
        inverse = np.ascontiguousarray(self.inverse[:, :columns])
        return replace(self, axes=self.axes[:columns], inverse=inverse, deviations=self.deviations[:columns])


def prepare(rows: Weighted) -> Prepared:
    """The principal axes."""
    values, vectors = np.linalg.eigh(rows.gram)
    stored = int8_anchors(vectors[:, np.argsort(-values)].T.astype(np.float32), rows.mean)
    axes = stored["anchors"] * stored["anchor_scales"].astype(np.float64)[:, None]
    inverse = np.linalg.inv(axes)  # the axes as they are stored lose nothing, although they are rounded
    deviations = np.sqrt(np.maximum(((inverse.T @ rows.gram) * inverse.T).sum(1), 0))
    shifts = np.rint(4 * np.log2(rows.weights)).astype(np.int16)
    return Prepared(rows, stored, axes, inverse.astype(np.float32), deviations, shifts)


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


def quantized(Y: np.ndarray, shifts: np.ndarray, model: Model, threads: int) -> tuple[np.ndarray, np.ndarray]:
    """Integers and contexts."""
    Q, C = np.empty(Y.shape, np.int32), np.empty(Y.shape, np.uint8)
    X = Y / np.float32(model.step)
    centres = model.centres.astype(np.float64) / 128
    known = (model.classes, model.promise, model.bits, centres, RATE, THRESHOLDS, MOVES)
    parallel_for(lambda a, b: quantize_rows(X[a:b], shifts[a:b], *known, Q[a:b], C[a:b]), len(X), X.shape[1], threads)
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


def squared_errors(Y: np.ndarray, Q: np.ndarray, C: np.ndarray, model: Model, axes: np.ndarray) -> np.ndarray:
    """(n,): of rows that are read again."""
    m, odd = np.abs(Q), C >= CLASSES
    stands = np.where(m > 0, 2 * m - odd - model.centres[C, np.minimum(m, 3)] / 128, 0.0) * np.sign(Q)
    return (((Y - model.step * stands) @ axes) ** 2).sum(1)


def encode(prepared: Prepared, model: Model) -> Coded:
    """The rows as arrays of a file."""
    n, K = len(prepared.rows), len(prepared.axes)
    shares = model.frequencies.astype(np.int64)
    firsts = np.cumsum(shares, 1) - shares
    nonzeros: list[int] = []

    def encode_part(part: slice, per_block: int, out: np.ndarray, offsets: np.ndarray) -> int:
        Q, C = quantized(prepared.coordinates(part), prepared.shifts[part], model, 1)
        end = encode_blocks(Q, C, shares, firsts, per_block, out, offsets)
        nonzeros.append(int(np.count_nonzero(Q)) if end >= 0 else 0)
        return end

    arrays, per_block = coded_blocks(encode_part, n, model.bits_of_a_row)
    arrays |= {"classes": model.classes.astype(np.uint8), "promise": model.promise.astype(np.uint16)}
    arrays |= {"frequencies": model.frequencies.astype(np.uint16), "centres": model.centres, "mean": prepared.stored["mean"]}
    arrays |= {name: prepared.stored[name][:K] for name in ("anchors", "anchor_scales")}
    if prepared.shifts.any():
        arrays["shift_places"] = np.repeat(np.arange(1, n), -np.diff(prepared.shifts)).astype(np.uint32)
    if prepared.rows.norms is not None:
        arrays["norms"] = prepared.rows.norms
    about = {"encoding": "coded", "values": "int8", "objects": n, "columns": K + 1}
    about |= {"nonzeros": sum(nonzeros) + n, "dimensions": prepared.stored["anchors"].shape[1]}
    about |= {"step": float(model.step), "first_shift": int(prepared.shifts[0]), "rows_per_block": per_block}
    return Coded(arrays, about | prepared.rows.about())


def fixed_bytes(d: int) -> int:
    """Of a file, beside its rows and anchors."""
    return 2 * CLASSES * (2 * (LARGEST + 1) + 1 + 4) + 2 * d


def fit(
    E: np.ndarray | Vectors,
    goal: Goal,
    *,
    weighting: float = 0.0,
    split_norms: bool = False,
    importance: np.ndarray | None = None,
    seed: int = 0,
    progress: Progress = quiet,
) -> Coded:
    """E (V, d) → a table that meets the goal: axes from all rows, the step and the coder's frequencies from a sample."""
    V, d = E.shape
    fixed = fixed_bytes(d) + (V if split_norms or importance is not None else 0)
    goal.check(fixed + 0.05 * V, V)
    progress("principal axes", 0, 1)
    prepared = prepare(weighted(E, weighting, divisors(E, split_norms, importance), NORM_STEP))
    model, columns = _searched(prepared, goal, fixed, seed, progress)
    columns = max(columns, _last_seen(prepared, columns, SEEN * model.step))
    prepared = prepared.cut(columns)
    model = replace(model, classes=model.classes[:columns])
    return meet(goal, E, lambda step: encode(prepared, replace(model, step=step)), model.step, progress)


def _searched(prepared: Prepared, goal: Goal, fixed: float, seed: int, progress: Progress) -> tuple[Model, int]:
    """The step by which samples of the rows, small, then larger, meet the goal; what the coder knows then; and how many axes
    are used."""
    V, d = prepared.rows.E.shape
    rng, model, direction = np.random.default_rng(seed), None, 1 if goal.by_error else -1
    step = _first_step(prepared.deviations, goal, goal.size / (1 + OVERHEAD) - fixed, V)
    for numbers, steps in SEARCHES:
        some = np.sort(rng.choice(V, min(V, max(numbers // d, 1024)), replace=False))
        Y, shifts = prepared.coordinates(some), prepared.shifts[some]
        by_row, vectors = prepared.rows.scales[some].astype(np.float64) ** -2, prepared.rows.E[some]
        variance = float(((vectors - vectors.mean(0)) ** 2).sum())
        tried: list[tuple[float, float]] = []
        found: list[tuple[bool, float, int, Model]] = []
        for number in range(steps):
            progress(f"searching the step on {len(some):,} rows", number, steps)
            at = laplacian(step, prepared.deviations)
            model = at if model is None else replace(model, step=step, classes=at.classes)
            for _ in range(ROUNDS):
                Q, C = quantized(Y, shifts, model, usable_cpus())
                model = learned(Y, shifts, Q, C, model)
            bits, used = estimated_bits(Q, C, model) / len(Y), int(np.flatnonzero((Q != 0).any(0)).max(initial=-1)) + 1
            if goal.by_error:
                share = squared_errors(Y, Q, C, model, prepared.axes) @ by_row / max(variance, 1e-300) / goal.error
            else:
                share = (bits * V / 8 * (1 + OVERHEAD) + fixed + (d + 2) * used) / goal.size
            aim = float(np.log2(max(share, 1e-9))) + NEAR
            tried.append((float(np.log2(step)), aim))
            found.append((aim > NEAR, abs(aim), used, replace(model, bits_of_a_row=bits)))
            if abs(aim) < NEAR:
                break
            step = next_step(tried, direction, safe=0.0)
        _, _, used, model = min(found, key=lambda trial: trial[:2])
        step = model.step
    assert model is not None
    return model, used


def _first_step(deviations: np.ndarray, goal: Goal, size: float, V: int) -> float:
    """Where the search begins: at the step of the error, or that of Gaussian coordinates and their axes in so many bytes."""
    largest = max(float(deviations.max()), SMALLEST)  # all vectors may be the same
    if goal.by_error:
        return float(np.sqrt(3 * goal.error) * max(np.sqrt((deviations**2).mean()), SMALLEST))
    low, high = 1e-3 * largest, 8 * largest
    for _ in range(20):
        step = float(np.sqrt(low * high))
        bits, axes = 0.5 * np.log2(1 + (deviations / step) ** 2).sum(), (deviations > step / 2).sum()
        low, high = (step, high) if bits * V / 8 + axes * len(deviations) > size else (low, step)
    return high


def _last_seen(prepared: Prepared, used: int, size: float) -> int:
    """How many axes are needed, of those behind the first `used`, for no row to lose as much as `size` on one of them."""
    behind = prepared.inverse[:, used:]
    seen = np.zeros(behind.shape[1], bool)
    for part in chunks(prepared.rows.E.shape) if behind.size else []:
        seen |= (np.abs(prepared.rows[part] @ behind) > size).any(0)
    return used + int(np.flatnonzero(seen).max(initial=-1)) + 1
