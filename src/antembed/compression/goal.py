"""What both methods of compression share: rows centred and weighted, blocks of coded rows, and the step that meets a goal."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from antembed.compression.quality import Progress
from antembed.files import JSON
from antembed.tables.container import unpack
from antembed.tables.entropy_rows import HEAD, row_weights
from antembed.tables.save import read_table, serialize_coded
from antembed.tables.table import Table

COARSE = 1e-3  # the share of the rows' variance that rounding their mean to fp16 may cost; else it is stored as fp32
OVERHEAD = 0.012  # of a block's bytes, for its state
ATTEMPTS, MOST_ATTEMPTS = 6, 30  # as a rule; until one meets the goal


class TooFewBytesError(ValueError):
    """No table of this kind is so small."""


@dataclass(frozen=True)
class Coded:
    """A compressed table, as the arrays of its file."""

    arrays: dict[str, np.ndarray]
    about: JSON

    @property
    def size(self) -> int:
        return sum(array.nbytes for array in self.arrays.values())


@dataclass(frozen=True)
class Goal:
    """A file of at most `size` bytes (without words and header), or the smallest of at most this relative squared `error`."""

    size: float = 0.0
    error: float = 0.0

    @property
    def by_error(self) -> bool:
        return self.error > 0

    def share(self, size: float, error: float) -> float:
        """How much of what is allowed was taken."""
        return error / self.error if self.by_error else size / self.size

    def check(self, least: float, V: int) -> None:
        """Raise if V vectors cannot take so few bytes."""
        if not self.by_error and self.size < least:
            raise TooFewBytesError(f"{self.size:,.0f} bytes are too few for {V:,} vectors: {least:,.0f} at least; allow more")

    def __str__(self) -> str:
        return f"a relative error of {self.error:.3g}" if self.by_error else f"a size of {self.size:,.0f} bytes"


@dataclass(frozen=True)
class Weighted:
    """Rows without their mean (and length), times their weights, and what takes them back."""

    X: np.ndarray  # (V, d) float32
    scales: np.ndarray  # (V,): what rows were multiplied by, in all
    mean: np.ndarray  # (d,) as the file holds it: fp16, or fp32 where that is too coarse
    weighting: float
    mean_place: float
    norms: np.ndarray | None  # (V,) uint8
    norm_base: float

    def about(self) -> JSON:
        return {"weighting": self.weighting, "mean_place": self.mean_place, "norm_base": self.norm_base}


def divisors(E: np.ndarray, split_norms: bool, importance: np.ndarray | None = None) -> np.ndarray | None:
    """What rows are divided by before they are coded, and stored apart: their lengths, and 1/importance. None: nothing."""
    if not split_norms and importance is None:
        return None
    lengths = np.linalg.norm(E, axis=1) if split_norms else np.ones(len(E))
    return lengths if importance is None else lengths / importance


def weighted(E: np.ndarray, weighting: float, exact: np.ndarray | None, norm_step: float, norms: int = 256) -> Weighted:
    """Centre and weigh; rows are divided by `exact`, if there are some, rounded to steps of `norm_step` octaves, at most
    `norms` of them."""
    E = np.asarray(E, np.float32)
    codes, base, lengths = None, 1.0, np.ones(len(E), np.float32)
    if exact is not None:
        reach = 2.0 ** ((norms - 1) * norm_step)  # the longest rows are within, those that are too short have one step for all
        base = float(max(np.quantile(exact[exact > 0], 0.001), exact.max() / reach, 1e-12)) if (exact > 0).any() else 1.0
        steps = np.clip(np.rint(np.log2(np.maximum(exact, base) / base) / norm_step), 0, norms - 1)
        codes, lengths = steps.astype(np.uint8), (base * 2.0 ** (steps * norm_step)).astype(np.float32)
        E = E / lengths[:, None]
    positions = np.arange(len(E))
    mean_place = float(np.mean((positions + HEAD) ** -weighting) ** (-1 / weighting)) if weighting else 1.0
    weights = row_weights(positions, weighting, mean_place)
    share = weights.astype(np.float64) ** 2
    mean = ((share[:, None] * E).sum(0) / share.sum()).astype(np.float32)
    held = mean.astype(np.float16)
    X = np.ascontiguousarray((E - held) * weights[:, None])
    if ((mean - held) ** 2).sum() > COARSE * (X**2).sum() / len(X):  # large, beside what rows differ by
        held = mean
        X = np.ascontiguousarray((E - held) * weights[:, None])
    return Weighted(X, weights / lengths, held, weighting, mean_place, codes, base)


def int8_anchors(A: np.ndarray, mean: np.ndarray) -> dict[str, np.ndarray]:
    """The arrays of anchors in a file: int8 with a scale each, and the mean."""
    scales = np.maximum(np.abs(A).max(1, initial=0) / 127, 1e-7).astype(np.float16)
    rounded = np.clip(np.rint(A / scales.astype(np.float32)[:, None]), -127, 127).astype(np.int8)
    return {"anchors": rounded, "anchor_scales": scales, "mean": mean}


def coded_blocks(
    encode: Callable[[int, np.ndarray, np.ndarray], int], rows: int, estimate: float
) -> tuple[dict[str, np.ndarray], int]:
    """Payload and offsets, and the rows of a block. encode(rows of a block, out, offsets) → bytes, about `estimate`."""
    per_block = int(np.clip(np.ceil(8 * rows / max(OVERHEAD * estimate, 1e-9)), 1, 256))
    blocks = -(-rows // per_block)
    out, offsets = np.empty(int(1.3 * estimate) + 16 * blocks + 1024, np.uint8), np.zeros(blocks + 1, np.int64)
    end = encode(per_block, out, offsets)
    assert end >= 0  # `out` is large enough
    return {"payload": out[:end].copy(), "offsets": offsets.astype(np.uint32 if end < 1 << 32 else np.uint64)}, per_block


def with_anchors(table: Table, anchors: np.ndarray) -> Table:
    """A table that was made in memory, with other anchors: (K, d), the mean behind them."""
    if table.anchors is None or anchors.shape != table.anchors.shape:
        has = None if table.anchors is None else table.anchors.shape
        raise ValueError(f"anchors are {anchors.shape}, this table has {has}")
    found = unpack(table.to_bytes())
    new = int8_anchors(anchors[:-1], anchors[-1].astype(found.arrays["mean"].dtype))
    return read_table(serialize_coded(found.arrays | new, found.about, {}))


def decoded(coded: Coded) -> np.ndarray:
    """All vectors of a compressed table."""
    return Table(coded.arrays, coded.about, coded.size)[:]


def relative_error(E: np.ndarray, F: np.ndarray, weighting: float = 0.0) -> float:
    """‖E − F‖²/‖E − mean‖², rows weighted as they were when compressed."""
    weights = row_weights(np.arange(len(E)), weighting, 1.0).astype(np.float64) ** 2
    mean = (weights[:, None] * E).sum(0) / weights.sum()
    centred = float((((E - mean) ** 2).sum(1, dtype=np.float64) * weights).sum())
    return float((((E - F) ** 2).sum(1, dtype=np.float64) * weights).sum()) / max(centred, 1e-300)


def meet(goal: Goal, E: np.ndarray, attempt: Callable[[float], Coded], step: float, progress: Progress) -> Coded:
    """The best of a few attempts that meets the goal; a larger step gives a smaller file and a larger error."""
    best: Coded | None = None
    slack = 0.02 if goal.by_error else 0.004  # how much of what is allowed may be left
    tried: list[tuple[float, float]] = []  # log2 of the step, log2 of the share of what is allowed
    for number in range(MOST_ATTEMPTS):
        progress("coding", number, ATTEMPTS)
        found = attempt(step)
        share = goal.share(found.size, relative_error(E, decoded(found)) if goal.by_error else 0.0)
        tried.append((float(np.log2(step)), float(np.log2(max(share, 1e-9)))))
        if share <= 1 and (best is None or (found.size < best.size) == goal.by_error):
            best = found
        if best is not None and (share <= 1 < (1 + slack) * share or number + 1 >= ATTEMPTS):
            break
        step = next_step(tried, 1 if goal.by_error else -1)
    if best is None:
        raise TooFewBytesError(f"{goal} cannot be met; allow more")
    progress("coding", ATTEMPTS, ATTEMPTS)
    return best


def next_step(tried: list[tuple[float, float]], direction: int) -> float:
    """By the line through the last two attempts, a little on the safe side. `direction`: the share rises (1) or falls (−1)."""
    x, share = tried[-1]
    slope = 1.0 * direction
    if len(tried) > 1 and abs(x - tried[-2][0]) > 1e-4:
        slope = direction * float(np.clip((share - tried[-2][1]) / (x - tried[-2][0]) * direction, 0.3, 3))
    safe = 0.003 * len(tried)  # more and more, since sizes are not smooth
    return float(2 ** (x + np.clip((-safe - share) / slope, -0.4, 0.4)))
