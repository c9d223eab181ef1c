"""What both methods of compression share: rows centred and weighted, blocks of coded rows, and the step that meets a goal."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from antembed.compression.quality import Progress, chunks
from antembed.files import JSON
from antembed.native.threads import take_turns, usable_cpus
from antembed.tables.container import unpack
from antembed.tables.entropy_rows import HEAD, row_weights
from antembed.tables.save import read_table, serialize_coded
from antembed.tables.table import Table

COARSE = 1e-3  # the share of the rows' variance that rounding their mean to fp16 may cost; else it is stored as fp32
OVERHEAD = 0.012  # of a block's bytes, for its state
PART = 1 << 12  # rows that a core codes at a time
ATTEMPTS, MOST_ATTEMPTS = 6, 30  # as a rule; until one meets the goal


class TooFewBytesError(ValueError):
    """No table of this kind is so small."""


class BeatenError(ValueError):
    """Another method will stay better."""


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
class Vectors:
    """Rows of any kind of float, perhaps of a file that is mapped: fp32, and divided by `unit`, when they are asked for."""

    array: np.ndarray
    unit: float = 1.0

    @property
    def shape(self) -> tuple[int, int]:
        V, d = self.array.shape
        return V, d

    def __len__(self) -> int:
        return len(self.array)

    def __getitem__(self, rows: slice | np.ndarray) -> np.ndarray:
        found = np.asarray(self.array[rows], np.float32)
        return found if self.unit == 1 else found / np.float32(self.unit)


@dataclass(frozen=True)
class Weighted:
    """Rows of E without their mean (and length), times their weights, and what takes them back."""

    E: np.ndarray | Vectors
    weights: np.ndarray  # (V,)
    lengths: np.ndarray  # (V,)
    mean: np.ndarray  # (d,) as the file holds it: fp16, or fp32 where that is too coarse
    weighting: float
    mean_place: float
    norms: np.ndarray | None  # (V,) uint8
    norm_base: float

    def __len__(self) -> int:
        return len(self.E)

    def __getitem__(self, rows: slice | np.ndarray) -> np.ndarray:
        """(n, d) float32."""
        found = self.E[rows] if self.norms is None else self.E[rows] / self.lengths[rows, None]
        return np.ascontiguousarray((found - self.mean) * self.weights[rows, None])

    @cached_property
    def scales(self) -> np.ndarray:
        """(V,): what rows were multiplied by, in all."""
        return self.weights / self.lengths

    @cached_property
    def gram(self) -> np.ndarray:
        """(d, d): the mean of the rows' products with themselves."""
        total = np.zeros((self.E.shape[1],) * 2)
        for part in chunks(self.E.shape):
            rows = self[part].astype(np.float64)
            total += rows.T @ rows
        return total / max(len(self), 1)

    def about(self) -> JSON:
        return {"weighting": self.weighting, "mean_place": self.mean_place, "norm_base": self.norm_base}


def divisors(E: np.ndarray | Vectors, split_norms: bool, importance: np.ndarray | None = None) -> np.ndarray | None:
    """What rows are divided by before they are coded, and stored apart: their lengths, and 1/importance. None: nothing."""
    if not split_norms:
        return None if importance is None else 1 / importance
    lengths = np.concatenate([np.linalg.norm(E[part], axis=1) for part in chunks(E.shape)])
    return lengths if importance is None else lengths / importance


def weighted(
    E: np.ndarray | Vectors,
    weighting: float,
    exact: np.ndarray | None,
    norm_step: float,
    norms: int = 256,
    positions: np.ndarray | None = None,
) -> Weighted:
    """Centre and weigh; rows are divided by `exact`, if there are some, rounded to steps of `norm_step` octaves, at most
    `norms` of them. `positions`: where rows of a sample stand in the table."""
    codes, base, lengths = None, 1.0, np.ones(len(E), np.float32)
    if exact is not None:
        reach = 2.0 ** ((norms - 1) * norm_step)  # the longest rows are within, those that are too short have one step for all
        base = float(max(np.quantile(exact[exact > 0], 0.001), exact.max() / reach, 1e-12)) if (exact > 0).any() else 1.0
        steps = np.clip(np.rint(np.log2(np.maximum(exact, base) / base) / norm_step), 0, norms - 1)
        codes, lengths = steps.astype(np.uint8), (base * 2.0 ** (steps * norm_step)).astype(np.float32)
    positions = np.arange(len(E)) if positions is None else positions
    mean_place = float(np.mean((positions + HEAD) ** -weighting) ** (-1 / weighting)) if weighting else 1.0
    weights = row_weights(positions, weighting, mean_place)
    share, total = weights.astype(np.float64) ** 2, np.zeros(E.shape[1])
    for part in chunks(E.shape):
        total += (share[part] / lengths[part]) @ E[part]
    mean = (total / share.sum()).astype(np.float32)
    held = mean.astype(np.float16)
    found = Weighted(E, weights, lengths, held, weighting, mean_place, codes, base)
    if ((mean - held) ** 2).sum() > COARSE * np.trace(found.gram):  # large, beside what rows differ by
        found = Weighted(E, weights, lengths, mean, weighting, mean_place, codes, base)
    return found


def int8_anchors(A: np.ndarray, mean: np.ndarray) -> dict[str, np.ndarray]:
    """The arrays of anchors in a file: int8 with a scale each, and the mean."""
    scales = np.maximum(np.abs(A).max(1, initial=0) / 127, 1e-7).astype(np.float16)
    rounded = np.clip(np.rint(A / scales.astype(np.float32)[:, None]), -127, 127).astype(np.int8)
    return {"anchors": rounded, "anchor_scales": scales, "mean": mean}


def coded_blocks(
    encode: Callable[[slice, int, np.ndarray, np.ndarray], int], rows: int, bits: float
) -> tuple[dict[str, np.ndarray], int]:
    """Payload and offsets, and the rows of a block; parts of the rows are coded on all cores. `bits` of a row, about.
    encode(part, rows of a block, out, offsets) → bytes, or −1 if `out` is too small."""
    per_block = int(np.clip(np.ceil(64 / max(OVERHEAD * bits, 1e-9)), 1, 256))
    each = -(-PART // per_block) * per_block
    parts = [slice(first, min(first + each, rows)) for first in range(0, rows, each)]
    made: list[tuple[np.ndarray, np.ndarray]] = [(np.empty(0, np.uint8), np.empty(0, np.int64))] * len(parts)

    def work(number: int) -> None:
        n = parts[number].stop - parts[number].start
        offsets, room = np.zeros(-(-n // per_block) + 1, np.int64), int(1.3 * bits * n / 8) + 16 * n // per_block + 1024
        while (end := encode(parts[number], per_block, out := np.empty(room, np.uint8), offsets)) < 0:
            room *= 2
        made[number] = out[:end].copy(), offsets[1:]

    take_turns(work, len(parts), usable_cpus())
    starts = np.cumsum([0, *(len(payload) for payload, _ in made)])
    offsets = np.concatenate([[0], *(start + ends for start, (_, ends) in zip(starts, made, strict=False))])
    kind = np.uint32 if starts[-1] < 1 << 32 else np.uint64
    return {"payload": np.concatenate([payload for payload, _ in made]), "offsets": offsets.astype(kind)}, per_block


def with_anchors(table: Table, anchors: np.ndarray) -> Table:
    """A table that was made in memory, with other anchors: (K, d), the mean behind them."""
    if table.anchors is None or anchors.shape != table.anchors.shape:
        has = None if table.anchors is None else table.anchors.shape
        raise ValueError(f"anchors are {anchors.shape}, this table has {has}")
    found = unpack(table.to_bytes())
    new = int8_anchors(anchors[:-1], anchors[-1].astype(found.arrays["mean"].dtype))
    return read_table(serialize_coded(found.arrays | new, found.about, {}))


def opened(coded: Coded) -> Table:
    """A compressed table that can be looked up."""
    return Table(coded.arrays, coded.about, coded.size)


def relative_error(E: np.ndarray | Vectors, F: np.ndarray | Table, weighting: float = 0.0) -> float:
    """‖E − F‖²/‖E − mean‖², rows weighted as they were when compressed."""
    weights = row_weights(np.arange(len(E)), weighting, 1.0).astype(np.float64) ** 2
    parts = chunks(E.shape)
    mean = sum(weights[part] @ E[part] for part in parts) / weights.sum()

    def lost(part: slice, other: np.ndarray) -> float:
        return float(weights[part] @ ((E[part] - other) ** 2).sum(1, dtype=np.float64))

    return sum(lost(part, F[part]) for part in parts) / max(sum(lost(part, mean) for part in parts), 1e-300)


def meet(goal: Goal, E: np.ndarray | Vectors, attempt: Callable[[float], Coded], step: float, progress: Progress) -> Coded:
    """The best of a few attempts that meets the goal; a larger step gives a smaller file and a larger error."""
    best: Coded | None = None
    slack = 0.02 if goal.by_error else 0.004  # how much of what is allowed may be left
    tried: list[tuple[float, float]] = []  # log2 of the step, log2 of the share of what is allowed
    for number in range(MOST_ATTEMPTS):
        progress("coding", number, ATTEMPTS)
        found = attempt(step)
        share = goal.share(found.size, relative_error(E, opened(found)) if goal.by_error else 0.0)
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


def next_step(tried: list[tuple[float, float]], direction: int, safe: float = 0.003) -> float:
    """By the line through the last two attempts, a little on the safe side, or else between the nearest ones that met the goal
    and did not. `direction`: the share rises (1) or falls (−1)."""
    x, share = tried[-1]
    slope = 1.0 * direction
    if len(tried) > 1 and abs(x - tried[-2][0]) > 1e-4:
        slope = direction * float(np.clip((share - tried[-2][1]) / (x - tried[-2][0]) * direction, 0.3, 3))
    safe *= len(tried)  # more and more, since sizes are not smooth
    found = x + np.clip((-safe - share) / slope, -0.4, 0.4)
    low = max((x for x, share in tried if share * direction <= 0), default=-np.inf)
    high = min((x for x, share in tried if share * direction > 0), default=np.inf)
    between = -np.inf < low < high < np.inf
    return float(2 ** ((low + high) / 2 if between and not low < found < high else found))
