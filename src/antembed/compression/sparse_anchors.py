"""Compression by sparse codes, E ≈ T·A + mean: each row takes a few of many anchors, times small multiples of a step ≥ 0."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from antembed.compression.goal import (
    OVERHEAD,
    BeatenError,
    Coded,
    Goal,
    Vectors,
    Weighted,
    coded_blocks,
    divisors,
    int8_anchors,
    meet,
    weighted,
)
from antembed.compression.quality import Progress, chunks, quiet
from antembed.compression.sparse_anchors_kernel import add_combined, add_products, anchor_products, choose_rows, fit_anchors
from antembed.native.threads import parallel_for, take_turns, usable_cpus
from antembed.tables.sparse_entropy_kernel import TOTAL, encode_sparse
from antembed.tables.sparse_entropy_rows import NORM_STEP, UNIT, VALUES, cumulative, reached

PRICE = 0.15  # of a bit, in squared steps
GROUPS = 8  # of anchors, by how large their values are
NORMS = 64  # at most
STAGES = ((20_000, 10), (100_000, 5))  # rows of the sample, and how often rows and anchors follow each other
SETTLED = 4  # rounds, after which the next ones gain less than the last
LINE = 4096  # length of the line on which anchors have parts, by how often they are used
PARTS = 8  # of the rows, summed one by one: the same sums for any number of threads
PASSES = 3  # of least squares in a round
HELD = 1 << 18  # numbers of the rows that are coded at a time
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


@dataclass(frozen=True)
class Trained:
    """What is known of a table by a sample of its rows."""

    A: np.ndarray  # (K, d) unit anchors, as a file holds them
    model: Model
    step: float
    least_step: float  # a finer one would cut long vectors off
    most: int  # weights of a row


def chosen_by(known: Trained, step: float) -> Callable[[np.ndarray], Codes]:
    """rows (n, d) → their weights."""
    A, model, K = known.A, known.model, len(known.A)
    by_column, products = np.ascontiguousarray(A.T), np.zeros((K, K), np.float32)
    parallel_for(lambda a, b: anchor_products(A, by_column, products, a, b), K, A.size, usable_cpus())
    given = (by_column, products, model.anchor_bits, model.value_bits, model.group, step, PRICE * step**2)

    def choose(X: np.ndarray) -> Codes:
        n = len(X)
        index, value, count = np.zeros((n, known.most), np.int16), np.zeros((n, known.most), np.uint8), np.zeros(n, np.int64)
        choose_rows(X, *given, index, value, count, 0, n)
        needed = int(count.max(initial=0))
        return Codes(index[:, :needed].copy(), value[:, :needed].copy(), count, step)

    return choose


def coded_and_refitted(rows: np.ndarray | Weighted, known: Trained, step: float) -> tuple[Codes, np.ndarray, np.ndarray]:
    """The weights of all rows; the anchors that fit them best (least squares), and how much each is used."""
    V, (K, d) = len(rows), known.A.shape
    TT, TX = np.zeros((PARTS, K, K)), np.zeros((PARTS, K, d))
    choose, cuts = chosen_by(known, step), [V * part // PARTS for part in range(PARTS + 1)]
    found: list[list[Codes]] = [[] for _ in range(PARTS)]

    def work(part: int) -> None:
        first, stop = cuts[part : part + 2]
        for some in chunks((stop - first, d), HELD):
            X = rows[first + some.start : first + some.stop]
            codes = choose(X)
            add_products(X, codes.index, codes.value, codes.count, step, TT[part], TX[part], 0, len(X))
            found[part].append(codes)

    take_turns(work, PARTS, usable_cpus())
    fitted, together = known.A.astype(np.float64), TT.sum(0)
    fit_anchors(fitted, together, TX.sum(0), PASSES)
    return joined([codes for part in found for codes in part], step), fitted, np.diag(together)


def joined(parts: list[Codes], step: float) -> Codes:
    """One after the other."""
    most, n = max(part.index.shape[1] for part in parts), sum(map(len, parts))
    index, value, at = np.zeros((n, most), np.int16), np.zeros((n, most), np.uint8), 0
    for part in parts:
        width = part.index.shape[1]
        index[at : at + len(part), :width], value[at : at + len(part), :width] = part.index, part.value
        at += len(part)
    return Codes(index, value, np.concatenate([part.count for part in parts]), step)


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
    known = (ends, reached(int(ends[-1]), rate), model.group[kept], cumulative(model.frequencies), norm_firsts)

    def encode_part(part: slice, per_block: int, out: np.ndarray, offsets: np.ndarray) -> int:
        some = Codes(codes.index[part], codes.value[part], codes.count[part], codes.step)
        index = np.where(some.used, place[some.index], len(kept))
        order = np.argsort(index, 1, kind="stable")
        chosen = (np.take_along_axis(index, order, 1), np.take_along_axis(some.value, order, 1), some.count, norms[part])
        return encode_sparse(*chosen, *known, per_block, out, offsets)

    blocks, per_block = coded_blocks(encode_part, len(codes), estimated_bits(codes, model) / len(codes) + 8)
    about = {"encoding": "sparse", "values": "int8", "objects": len(codes), "columns": len(kept) + 1}
    about |= {"nonzeros": int(codes.count.sum()) + len(codes), "dimensions": A.shape[1]}
    about |= {"step": codes.step, "rate": rate, "rows_per_block": per_block}
    return Coded(arrays | blocks, about | rows.about())


def weigh(E: np.ndarray | Vectors, weighting: float, split_norms: bool) -> Weighted:
    """Rows as this method codes them."""
    return weighted(E, weighting, divisors(E, split_norms), NORM_STEP, NORMS)


def fit(
    E: np.ndarray | Vectors,
    goal: Goal,
    *,
    weighting: float = 0.0,
    split_norms: bool = False,
    seed: int = 0,
    progress: Progress = quiet,
    num_anchors: int | None = None,
    known: Trained | None = None,
) -> Coded:
    """E (V, d) → a table that meets the goal: anchors from a sample of the rows, and refitted to all. `known`: of `train`, by
    the first stage."""
    rows = weigh(E, weighting, split_norms)
    K = len(known.A) if known else min(num_anchors or number_of_anchors(E.shape, goal), len(rows))
    known = train(rows, goal, K, seed, progress, STAGES[known is not None :], known)
    return code(rows, goal, known, progress)


def code(rows: Weighted, goal: Goal, known: Trained, progress: Progress, refit: bool = True) -> Coded:
    """A table that meets the goal; with these very anchors, or refitted to all rows."""

    def attempt(step: float) -> Coded:
        codes, fitted, _ = coded_and_refitted(rows, known, max(step, known.least_step))
        return encode(rows, codes, learned(codes, len(known.A)), fitted if refit else known.A)

    return meet(goal, rows.E, attempt, known.step, progress)


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


def train(
    rows: Weighted,
    goal: Goal,
    K: int,
    seed: int,
    progress: Progress,
    stages: tuple[tuple[int, int], ...],
    known: Trained | None = None,
    rival: float = np.inf,
) -> Trained:
    """By samples of the rows, small, then larger. `rival`: a relative error of as many bytes; BeatenError, as soon as it is
    likely that this method's stays above."""
    rng, errors, (V, d) = np.random.default_rng(seed), list[float](), rows.E.shape
    fixed, least = fixed_bytes(d, K), (0.1 + 0.5 * (rows.norms is not None)) * V
    goal.check(fixed + least, V)
    bits = 2.0 * d if goal.by_error else 8 * (goal.size - fixed) / (1 + OVERHEAD) / V
    if rows.norms is not None and not goal.by_error:
        shares = np.bincount(rows.norms) / V
        bits += float((shares * np.log2(np.maximum(shares, 1e-12))).sum())
    for most, rounds in stages:
        X = rows[some := np.sort(rng.choice(V, min(V, most), replace=False))]
        known = known or _begun(X, goal, bits, K, rng)
        squares, lengths = (X.astype(np.float64) ** 2).sum(1), rows.lengths[some].astype(np.float64) ** 2
        by_row = lengths / rows.weights[some] ** 2
        for number in range(rounds):
            progress(f"fitting anchors to {len(X):,} rows", number, rounds)
            codes, fitted, used = coded_and_refitted(X, known, known.step)
            model = learned(codes, K)
            left = ((X - combined(codes, fitted)).astype(np.float64) ** 2).sum(1)
            if goal.by_error:
                octaves = np.log2(goal.error * (squares @ by_row) / (left @ by_row)) / 1.2
            else:
                now = estimated_bits(codes, model) / len(X)
                errors.append(float(left @ lengths) / (squares @ lengths) * 2 ** (2 * (now - bits) / d))
                _give_up_if_beaten(errors, sum(rounds for _, rounds in stages) - len(errors), rival)
                octaves = (now - bits) / max(min(1.3 * d, 7 * codes.count.mean()), 20)
            step = max(known.step * float(2 ** np.clip(octaves, -0.3, 0.3)), known.least_step)
            idle = used < 2.5 * codes.step**2
            fitted[idle] = X[rng.choice(len(X), int(idle.sum()))]
            known = replace(known, A=rounded(fitted), model=model, step=step)
    assert known is not None
    return known


def _begun(X: np.ndarray, goal: Goal, bits: float, K: int, rng: np.random.Generator) -> Trained:
    """Rows as anchors, and a step that is about right."""
    n, d = X.shape
    mean = float((X.astype(np.float64) ** 2).sum(1).mean()) / d
    step = float(np.sqrt(3 * goal.error * mean)) if goal.by_error else float(0.9 * np.sqrt(12 * mean * 2 ** (-2 * bits / d)))
    first, most = rounded(X[rng.choice(n, K, replace=n < K)]), int(np.clip(bits / 2, 48, 250))
    return Trained(first, first_model(K, bits), step, smallest_step(X), most)


def _give_up_if_beaten(errors: list[float], rounds: int, rival: float) -> None:
    """If the error, falling in all `rounds` to come as it did in the last one, would stay above the rival's."""
    if len(errors) >= SETTLED and errors[-1] * (errors[-1] / errors[-2]) ** rounds > rival:
        raise BeatenError(f"an error of {errors[-1]:.4g}, {rival:.4g} is to be beaten")
