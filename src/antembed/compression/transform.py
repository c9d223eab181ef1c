"""A table that exists → E ≈ T·A + mean: anchors are its principal axes, T is on one grid, chosen with a price for each bit."""

from dataclasses import dataclass, replace

import numpy as np

from antembed.compression.report import Progress, quiet
from antembed.kernels.coded import CLASSES, LARGEST, MOST, MOVES, THRESHOLDS, TOTAL, UNIT, encode_blocks, quantize_rows
from antembed.serving.coded import HEAD, NORM_STEP, row_weights

OFFSET = 12  # the class of a column whose deviation is one step: half of what a number of 1 is
RATE = 0.44  # price of a bit, in squared steps: the slope of error over bits at this grid
SAMPLE = 8192
ROUNDS = 3  # of frequencies and numbers that follow each other
OVERHEAD = 0.012  # of a block's bytes, for its state
NEAR = 0.004  # of the budget, that may be left


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
    """Rows in the axes' coordinates, and what takes them back."""

    Y: np.ndarray  # (V, K) float32
    axes: np.ndarray  # (K, d)
    mean: np.ndarray  # (d,)
    deviations: np.ndarray  # (K,)
    weighting: float
    mean_place: float
    norms: np.ndarray | None  # (V,) uint8
    norm_base: float


def prepare(E: np.ndarray, weighting: float, split_norms: bool) -> Prepared:
    """Centre, turn into principal axes, and weigh."""
    E = np.asarray(E, np.float32)
    norms, base = None, 1.0
    if split_norms:
        lengths = np.linalg.norm(E, axis=1)
        base = float(max(np.quantile(lengths[lengths > 0], 0.001), 1e-12)) if (lengths > 0).any() else 1.0
        codes = np.clip(np.rint(np.log2(np.maximum(lengths, base) / base) / NORM_STEP), 0, 255)
        norms = codes.astype(np.uint8)
        E = E / (base * 2.0 ** (codes * NORM_STEP)).astype(np.float32)[:, None]
    places = np.arange(len(E))
    mean_place = float(np.mean((places + HEAD) ** -weighting) ** (-1 / weighting)) if weighting else 1.0
    weights = row_weights(places, weighting, mean_place)
    share = weights.astype(np.float64) ** 2
    mean = ((share[:, None] * E).sum(0) / share.sum()).astype(np.float16).astype(np.float32)
    X = (E - mean) * weights[:, None]
    values, vectors = np.linalg.eigh(X.T.astype(np.float64) @ X.astype(np.float64) / max(len(X), 1))
    order = np.argsort(-values)
    axes = vectors[:, order].T.astype(np.float16).astype(np.float32)
    Y = X @ axes.T
    deviations = np.sqrt((Y.astype(np.float64) ** 2).mean(0))
    return Prepared(Y, axes, mean, deviations, weighting, mean_place, norms, base)


def laplacian(step: float, deviations: np.ndarray) -> Model:
    """Where the search begins: numbers that fall off exponentially."""
    classes = np.clip(np.rint(4 * np.log2(np.maximum(deviations, 1e-12) / step)) + OFFSET, 0, CLASSES - 1).astype(np.int64)
    scale = 2.0 ** ((np.arange(2 * CLASSES) % CLASSES - OFFSET) / 4)
    m = np.arange(LARGEST + 1)
    stands = np.where(m > 0, 2 * m - (np.arange(2 * CLASSES) >= CLASSES)[:, None], 0)
    p = np.exp(-np.sqrt(2) * stands / scale[:, None]) * np.where(m > 0, 2, 1)
    promise = np.rint(UNIT * np.minimum((p * m).sum(1) / p.sum(1), MOST)).astype(np.int64)[:CLASSES]
    return Model(step, classes, promise, whole(p), np.zeros((2 * CLASSES, 4), np.int8))


def whole(weights: np.ndarray) -> np.ndarray:
    """Frequencies that sum to TOTAL in each row, none of them zero."""
    weights = weights + 1e-3 * weights.sum(1, keepdims=True) / weights.shape[1] + 1e-12
    shares = np.maximum((weights / weights.sum(1, keepdims=True) * TOTAL).astype(np.int64), 1)
    rows = np.arange(len(shares))
    shares[rows, shares.argmax(1)] += TOTAL - shares.sum(1)
    return shares


def quantized(Y: np.ndarray, model: Model, rate: float) -> tuple[np.ndarray, np.ndarray]:
    """Whole numbers and contexts."""
    Q, C = np.empty(Y.shape, np.int32), np.empty(Y.shape, np.uint8)
    X = (Y / np.float32(model.step)).astype(np.float32)
    centres = model.centres.astype(np.float64) / 128
    quantize_rows(X, model.classes, model.promise, model.bits, centres, rate, THRESHOLDS, MOVES, Q, C)
    return Q, C


def learned(Y: np.ndarray, Q: np.ndarray, C: np.ndarray, model: Model) -> Model:
    """Frequencies, promises and centres of what was quantized."""
    m = np.abs(Q).astype(np.int64)
    symbol, context = np.minimum(m, LARGEST), C.astype(np.int64)
    counts = np.bincount((context * (LARGEST + 1) + symbol).reshape(-1), minlength=2 * CLASSES * (LARGEST + 1))
    before = laplacian(model.step, model.step * 2.0 ** ((model.classes - OFFSET) / 4)).frequencies / TOTAL
    frequencies = whole(counts.reshape(2 * CLASSES, -1) + 8 * before)
    columns = np.broadcast_to(model.classes, Q.shape).reshape(-1)
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
    return float(
        model.bits[C, np.minimum(m, LARGEST)].sum()
        + (np.where(m >= LARGEST, 5 + np.log2(np.maximum(m - LARGEST + 1, 1)), 0)).sum()
    )


@dataclass(frozen=True)
class Coded:
    """A compressed table, as the arrays of its file."""

    arrays: dict[str, np.ndarray]
    about: dict[str, object]

    @property
    def size(self) -> int:
        return sum(array.nbytes for array in self.arrays.values())


def used_columns(Q: np.ndarray) -> np.ndarray:
    return np.flatnonzero((Q != 0).any(0))


def encode(prepared: Prepared, Q: np.ndarray, C: np.ndarray, model: Model, rows: int) -> Coded:
    """The numbers as arrays of a file; `rows` in a block."""
    n, K = Q.shape
    blocks = -(-n // rows)
    out, offsets = (
        np.empty(int(1.3 * estimated_bits(Q, C, model) / 8) + 16 * blocks + 1024, np.uint8),
        np.zeros(blocks + 1, np.int64),
    )
    shares = model.frequencies.astype(np.int64)
    firsts = np.cumsum(shares, 1) - shares
    end = encode_blocks(Q, C, shares, firsts, rows, out, offsets)
    assert end >= 0
    arrays = {
        "payload": out[:end].copy(),
        "offsets": offsets.astype(np.uint32 if end < 1 << 32 else np.uint64),
        "classes": model.classes.astype(np.uint8),
        "promise": model.promise.astype(np.uint16),
        "frequencies": model.frequencies.astype(np.uint16),
        "centres": model.centres,
        "anchors": np.concatenate([prepared.axes[:K], prepared.mean[None]]).astype(np.float16),
    }
    if prepared.norms is not None:
        arrays["norms"] = prepared.norms
    about = {
        "encoding": "coded",
        "values": "fp16",
        "objects": n,
        "columns": K + 1,
        "nonzeros": int(np.count_nonzero(Q)) + n,
        "dimensions": prepared.axes.shape[1],
        "step": float(model.step),
        "rows_per_block": rows,
        "weighting": prepared.weighting,
        "mean_place": prepared.mean_place,
        "norm_base": prepared.norm_base,
    }
    return Coded(arrays, about)


def fit(
    E: np.ndarray,
    target: float,
    *,
    weighting: float = 0.0,
    split_norms: bool = False,
    seed: int = 0,
    progress: Progress = quiet,
) -> Coded:
    """E (V, d) → a table of at most `target` bytes (without vocabulary and header)."""
    prepared = prepare(E, weighting, split_norms)
    V, d = E.shape
    fixed = 2 * CLASSES * (2 * (LARGEST + 1) + 1 + 4) + 2 * d + (V if split_norms else 0)
    if target < fixed + 0.05 * V:
        raise ValueError(f"{target:,.0f} bytes are too few for {V:,} vectors: {fixed + 0.05 * V:,.0f} at least; allow more")
    step, model = _searched(prepared, target, fixed, seed)
    best: Coded | None = None
    tried: list[tuple[float, float]] = []
    for attempt in range(6):
        progress("coding", attempt, 6)
        found = _coded(prepared, replace(model, step=step), target)
        tried.append((np.log2(step), float(found.size)))
        if found.size <= target and (best is None or found.size > best.size):
            best = found
        if best is not None and best.size >= (1 - NEAR) * target:
            break
        step = _next_step(tried, step, target)
    while best is None or best.size > target:
        step *= 1.05
        best = _coded(prepared, replace(model, step=step), target)
    progress("coding", 6, 6)
    return best


def _searched(prepared: Prepared, target: float, fixed: float, seed: int) -> tuple[float, Model]:
    """The step by which a sample of the rows takes its share of the bytes."""
    V = len(prepared.Y)
    sample = prepared.Y[np.sort(np.random.default_rng(seed).choice(V, min(V, SAMPLE), replace=False))]
    low, high = 1e-3 * prepared.deviations.max(), 8 * prepared.deviations.max()
    for _ in range(14):
        step = float(np.sqrt(low * high))
        model = laplacian(step, prepared.deviations)
        for _ in range(2):
            Q, C = quantized(sample, model, RATE)
            model = learned(sample, Q, C, model)
        used = len(used_columns(Q))
        size = estimated_bits(Q, C, model) / 8 * V / len(sample) * (1 + OVERHEAD) + fixed + 2 * used * prepared.axes.shape[1]
        if size > target:
            low = step
        else:
            high = step
    return high, model


def _coded(prepared: Prepared, model: Model, target: float) -> Coded:
    model = replace(laplacian(model.step, prepared.deviations))
    for _ in range(ROUNDS):
        Q, C = quantized(prepared.Y, model, RATE)
        model = learned(prepared.Y, Q, C, model)
    columns = int(used_columns(Q).max(initial=-1)) + 1  # axes are in the order of their size
    cut = replace(prepared, Y=prepared.Y[:, :columns])
    model = replace(model, classes=model.classes[:columns])
    Q, C = quantized(cut.Y, model, RATE)
    model = replace(learned(cut.Y, Q, C, model), promise=model.promise)  # contexts follow from it
    each = estimated_bits(Q, C, model) / 8 / max(len(Q), 1)
    rows = int(np.clip(np.ceil(8 / max(OVERHEAD * each, 1e-9)), 1, 256))
    return encode(cut, Q, C, model, rows)


def _next_step(tried: list[tuple[float, float]], step: float, target: float) -> float:
    """By the line through the last two sizes."""
    (x, size) = tried[-1]
    slope = -0.9 * size
    if len(tried) > 1 and abs(tried[-1][0] - tried[-2][0]) > 1e-4:
        slope = min((size - tried[-2][1]) / (x - tried[-2][0]), 0.3 * slope)
    return float(2 ** (x + np.clip((0.998 * target - size) / slope, -0.4, 0.4)))
