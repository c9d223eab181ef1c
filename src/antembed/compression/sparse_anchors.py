"""Compression by sparse codes, E ≈ T·A + mean: each row takes a few of many anchors, times small multiples of a step ≥ 0."""

from dataclasses import dataclass

import numpy as np

from antembed.compression.goal import Coded, Goal, Weighted, coded_blocks, divisors, int8_anchors, meet, weighted
from antembed.compression.quality import Progress, quiet
from antembed.compression.sparse_anchors_kernel import add_combined, add_products, anchor_products, choose_rows, fit_anchors
from antembed.native.threads import parallel_for, usable_cpus
from antembed.tables.sparse_entropy_kernel import TOTAL, encode_sparse
from antembed.tables.sparse_entropy_rows import NORM_STEP, UNIT, VALUES, cumulative, reached

PRICE = 0.15  # of a bit, in squared steps
GROUPS = 8  # of anchors, by how large their values are
NORMS = 64  # at most
ROUNDS = 14  # of rows and anchors that follow each other
SAMPLE = 20_000  # rows that the anchors are first fitted to
LINE = 4096  # length of the line on which anchors have parts, by how often they are used
PARTS = 8  # of the rows, summed one by one: the same sums for any number of threads
PASSES = 3  # of least squares in a round
SIZES = (1024, 512, 256, 128, 64, 32)  # numbers of anchors: the first whose bytes are few
LARGEST_SHARE = 0.25  # of the bytes, that anchors may take


@dataclass(frozen=True)
class Codes:
    """Rows: anchors index[i, :count[i]] times value·step."""

    index: np.ndarray  # (n, most) int16
    value: np.ndarray  # (n, most) uint8
    count: np.ndarray  # (n,)
    step: float

    def __len__(self) -> int:
        return len(self.count)

    @property
    def used(self) -> np.ndarray:
        return np.arange(self.index.shape[1]) < self.count[:, None]


@dataclass(frozen=True)
class Model:
    """What the coder knows of anchors and values."""

    often: np.ndarray  # (K,): the share of rows that use an anchor
    group: np.ndarray  # (K,)
    frequencies: np.ndarray  # (GROUPS, VALUES), sums of TOTAL

    @property
    def anchor_bits(self) -> np.ndarray:
        return np.log2((1 - self.often) / self.often)

    @property
    def value_bits(self) -> np.ndarray:
        return np.concatenate([np.zeros((GROUPS, 1)), np.log2(TOTAL / self.frequencies)], 1)

    def bits_of_no_anchor(self) -> float:
        """What a row takes even if it is empty."""
        return float(-np.log2(1 - self.often).sum())


def first_model(K: int, bits: float) -> Model:
    """Before anything is known; `bits` of a row."""
    often = np.full(K, np.clip(bits / 9 / K, 1e-6, 0.5))
    return Model(often, np.zeros(K, np.int64), integer_frequencies(np.tile(np.exp(-0.5 * np.arange(VALUES)), (GROUPS, 1))))


def integer_frequencies(weights: np.ndarray) -> np.ndarray:
    """Frequencies that sum to TOTAL in each row, none of them zero."""
    n = weights.shape[1]
    shares = (weights / weights.sum(1, keepdims=True) * (TOTAL - n)).astype(np.int64) + 1
    shares[np.arange(len(shares)), shares.argmax(1)] += TOTAL - shares.sum(1)
    return shares


def learned(codes: Codes, K: int) -> Model:
    """Frequencies of what was chosen."""
    anchors, values = codes.index[codes.used].astype(np.int64), codes.value[codes.used].astype(np.int64)
    number = np.bincount(anchors, minlength=K)
    often = np.clip((number + 0.3) / (len(codes) + 0.6), 1e-7, 0.95)
    mean = np.bincount(anchors, values, K) / np.maximum(number, 1)
    group = np.empty(K, np.int64)
    group[np.argsort(mean, kind="stable")] = np.arange(K) * GROUPS // K
    counts = np.bincount(group[anchors] * VALUES + values - 1, minlength=GROUPS * VALUES).reshape(GROUPS, VALUES)
    before = np.exp(-0.5 * np.arange(VALUES))
    return Model(often, group, integer_frequencies(counts + 4 * before / before.sum()))


def estimated_bits(codes: Codes, model: Model) -> float:
    """Of all rows."""
    anchors, values = codes.index[codes.used], codes.value[codes.used]
    bits = model.anchor_bits[anchors].sum() + model.value_bits[model.group[anchors], values].sum()
    return float(bits) + len(codes) * model.bits_of_no_anchor()


def choose(X: np.ndarray, A: np.ndarray, model: Model, step: float, most: int) -> Codes:
    """The weights of all rows, of unit anchors A (K, d)."""
    n, K = len(X), len(A)
    index, value, count = np.zeros((n, most), np.int16), np.zeros((n, most), np.uint8), np.zeros(n, np.int64)
    by_column, products = np.ascontiguousarray(A.T), np.zeros((K, K), np.float32)
    parallel_for(lambda a, b: anchor_products(A, by_column, products, a, b), K, A.size, usable_cpus())
    known = (by_column, products, model.anchor_bits, model.value_bits, model.group, step, PRICE * step**2)
    parallel_for(lambda a, b: choose_rows(X, *known, index, value, count, a, b), n, K * most, usable_cpus())
    return Codes(index, value, count, step)


def refit(X: np.ndarray, codes: Codes, A: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The anchors that fit the rows best (least squares), and how much each is used."""
    K, d = A.shape
    TT, TX = np.zeros((PARTS, K, K)), np.zeros((PARTS, K, d))
    cuts = [len(X) * part // PARTS for part in range(PARTS + 1)]

    def add(first: int, stop: int) -> None:
        for part in range(first, stop):
            given = (X, codes.index, codes.value, codes.count, codes.step, TT[part], TX[part])
            add_products(*given, cuts[part], cuts[part + 1])

    parallel_for(add, PARTS, len(X), usable_cpus())
    fitted, together = A.astype(np.float64), TT.sum(0)
    fit_anchors(fitted, together, TX.sum(0), PASSES)
    return fitted, np.diag(together)


def combined(codes: Codes, A: np.ndarray) -> np.ndarray:
    """T·A."""
    found = np.zeros((len(codes), A.shape[1]), np.float32)
    add_combined(codes.index, codes.value, codes.count, codes.step, A, found)
    return found


def rounded(A: np.ndarray) -> np.ndarray:
    """Unit anchors, as a file holds them."""
    unit = (A / np.maximum(np.linalg.norm(A, axis=1, keepdims=True), 1e-12)).astype(np.float32)
    arrays = int8_anchors(unit, np.zeros(0))
    held: np.ndarray = arrays["anchors"] * arrays["anchor_scales"].astype(np.float32)[:, None]
    return held


def encode(rows: Weighted, codes: Codes, model: Model, A: np.ndarray) -> Coded:
    """The arrays of a file; anchors that no row uses are left out."""
    kept = np.flatnonzero(np.bincount(codes.index[codes.used], minlength=len(A)))
    place = np.zeros(len(A), np.int16)
    place[kept] = np.arange(len(kept))
    hazard = -np.log(1 - model.often[kept])
    widths = np.clip(np.rint(hazard * (LINE / max(hazard.sum(), 1e-12))), 1, TOTAL // 32).astype(np.uint16)
    ends = cumulative(widths)
    rate = int((1 - np.exp(-hazard.sum() / max(int(ends[-1]), 1))) * (1 << UNIT))
    arrays = {"widths": widths, "groups": model.group[kept].astype(np.uint8), **int8_anchors(A[kept], rows.mean)}
    arrays["value_frequencies"] = model.frequencies.astype(np.uint16)
    norms, norm_firsts = np.empty(0, np.uint8), np.zeros(1, np.int64)
    if rows.norms is not None:
        norms = rows.norms
        shares = integer_frequencies(np.bincount(norms, minlength=2)[None] + 0.0)[0]
        arrays["norm_frequencies"], norm_firsts = shares.astype(np.uint16), cumulative(shares)
    index = np.where(codes.used, place[codes.index], len(kept))
    order = np.argsort(index, 1, kind="stable")
    chosen = (np.take_along_axis(index, order, 1), np.take_along_axis(codes.value, order, 1), codes.count, norms)
    known = (ends, reached(int(ends[-1]), rate), model.group[kept], cumulative(model.frequencies), norm_firsts)
    blocks, per_block = coded_blocks(
        lambda *block: encode_sparse(*chosen, *known, *block), len(codes), estimated_bits(codes, model) / 8 + len(codes)
    )
    about = {"encoding": "sparse", "values": "int8", "objects": len(codes), "columns": len(kept) + 1}
    about |= {"nonzeros": int(codes.count.sum()) + len(codes), "dimensions": A.shape[1]}
    about |= {"step": codes.step, "rate": rate, "rows_per_block": per_block}
    return Coded(arrays | blocks, about | rows.about())


def fit(
    E: np.ndarray,
    goal: Goal,
    *,
    weighting: float = 0.0,
    split_norms: bool = False,
    seed: int = 0,
    progress: Progress = quiet,
    num_anchors: int | None = None,
) -> Coded:
    """E (V, d) → a table that meets the goal."""
    rows = weighted(E, weighting, divisors(E, split_norms), NORM_STEP, NORMS)
    K = min(num_anchors or number_of_anchors(E.shape, goal), len(E))
    fixed, least = fixed_bytes(E.shape[1], K), (0.1 + 0.5 * split_norms) * len(E)
    goal.check(fixed + least, len(E))
    A, model, step, most = _trained(rows, goal, 8 * (goal.size - fixed) / len(E), K, seed, progress)
    least_step = smallest_step(rows.X)

    def attempt(step: float) -> Coded:
        nonlocal A, model
        step = max(step, least_step)
        codes = choose(rows.X, A, model, step, most)
        model, fitted = learned(codes, K), refit(rows.X, codes, A)[0]
        A = rounded(fitted)  # the next attempt begins with these
        return encode(rows, codes, model, fitted)

    return meet(goal, E, attempt, step, progress)


def smallest_step(X: np.ndarray) -> float:
    """Of which the largest value reaches nearly all rows' lengths; a finer one would cut vectors off."""
    return max(float(np.quantile(np.linalg.norm(X, axis=1), 0.99)) / VALUES, 1e-9)


def fixed_bytes(d: int, K: int) -> int:
    """Of a file, beside its rows."""
    return K * (d + 5) + 2 * GROUPS * VALUES + 2 * d


def number_of_anchors(shape: tuple[int, int], goal: Goal) -> int:
    """The largest number whose anchors leave most of the bytes for the rows; with a tolerance, of about a bit a number, and
    enough that non-negative weights can reach every vector."""
    V, d = shape
    size = goal.size if not goal.by_error else V * d / 8
    fitting = next((K for K in SIZES if K * (d + 5) <= LARGEST_SHARE * size), SIZES[-1])
    return max(fitting, 3 * d) if goal.by_error else fitting


def _trained(
    rows: Weighted, goal: Goal, bits: float, K: int, seed: int, progress: Progress
) -> tuple[np.ndarray, Model, float, int]:
    """Anchors, frequencies, step, and the most weights of a row, from a sample; `bits` of a row."""
    rng = np.random.default_rng(seed)
    some = np.sort(rng.choice(len(rows.X), min(len(rows.X), SAMPLE), replace=False))
    X, scales = rows.X[some], rows.scales[some].astype(np.float64) ** -2
    n, d = X.shape
    if rows.norms is not None:
        shares = np.bincount(rows.norms) / len(rows.norms)
        bits += float((shares * np.log2(np.maximum(shares, 1e-12))).sum())
    squares, least_step = (X.astype(np.float64) ** 2).sum(1), smallest_step(X)
    if goal.by_error:
        bits, step = 2.0 * d, float(np.sqrt(3 * goal.error * squares.mean() / d))
    else:
        step = float(0.9 * np.sqrt(12 * squares.mean() / d * 2 ** (-2 * bits / d)))
    A, model, most = rounded(X[rng.choice(n, K, replace=n < K)]), first_model(K, bits), int(np.clip(bits / 2, 48, 250))
    for number in range(ROUNDS):
        progress("fitting anchors", number, ROUNDS)
        codes = choose(X, A, model, step, most)
        model = learned(codes, K)
        fitted, used = refit(X, codes, A)
        if goal.by_error:
            left = ((X - combined(codes, fitted)).astype(np.float64) ** 2).sum(1)
            octaves = np.log2(goal.error * (squares * scales).sum() / (left * scales).sum()) / 1.2
        else:
            octaves = (estimated_bits(codes, model) / n - bits) / max(min(1.3 * d, 7 * codes.count.mean()), 20)
        step = max(step * float(2 ** np.clip(octaves, -0.3, 0.3)), least_step)
        idle = used < 2.5 * codes.step**2
        fitted[idle] = X[rng.choice(n, int(idle.sum()))]
        A = rounded(fitted)
    return A, model, step, most
