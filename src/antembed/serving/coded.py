"""Entropy-coded rows: T in whole numbers on one grid, coded by contexts in blocks of rows that are read by themselves.

    payload, offsets     bytes of the blocks, and where each begins (blocks + 1)
    classes              (K,) of each column of T: how large its numbers are
    promise              (CLASSES,): 64 times the mean absolute number of the columns of a class
    frequencies          (CLASSES, 16): of the absolute numbers 0 … 14 and of an escape, in each context; they sum to 2¹⁴
    centres              (CLASSES, 4) int8: a number m stands for m − centre/128, by context and min(m, 3)
    about                step, rows_per_block, and weighting: a row i was multiplied by ((i + 10)/mean)^−weighting before

A value of T is sign·(m − centre)·step, divided by the row's weight. The last column is 1: its anchor is the vectors' mean.
"""

from collections.abc import Callable

import numpy as np

from antembed.files import JSON
from antembed.serving.entropy import DamagedError

CLASSES, LARGEST, PRECISION = 48, 15, 14
TOTAL, LOW, SHIFTS, UNIT, MOST = 1 << PRECISION, 1 << 23, 6, 64, 64
HEAD = 10  # added to a row's number before it is weighted
NORM_STEP = 1 / 8  # octaves between two norms


def row_weights(ids: np.ndarray, weighting: float, mean: float) -> np.ndarray:
    """What rows were multiplied by: more for those that come first, the frequent ones."""
    return (((ids + HEAD) / mean) ** -weighting).astype(np.float32)


class CodedRows:
    """ids (n,) → rows of T (n, K + 1)."""

    def __init__(self, arrays: dict[str, np.ndarray], about: JSON):
        self.payload, self.offsets = arrays["payload"], arrays["offsets"].astype(np.int64)
        self.classes, self.promise = arrays["classes"].astype(np.int64), arrays["promise"].astype(np.int64)
        self.shares = arrays["frequencies"].astype(np.int64)
        self.centres = arrays["centres"].astype(np.float32) / 128
        self.norms = arrays.get("norms")
        self.norm_base = float(about.get("norm_base", 1.0))
        self.total, self.per_block = int(about["objects"]), int(about["rows_per_block"])
        self.step, self.weighting, self.mean_place = float(about["step"]), float(about["weighting"]), float(about["mean_place"])
        self._check()
        self.firsts = np.cumsum(self.shares, 1) - self.shares
        self.symbols = np.repeat(np.tile(np.arange(LARGEST + 1), CLASSES), self.shares.reshape(-1)).reshape(CLASSES, TOTAL)
        self.symbols = self.symbols.astype(np.uint8)
        self.thresholds = np.array([round(1024 * 2 ** ((k + 0.5) / 4)) for k in range(-SHIFTS, SHIFTS)], np.int64)
        self.nnz = 0 if not len(self.payload) else -1  # counted when asked

    def _check(self) -> None:
        blocks = -(-self.total // max(self.per_block, 1))
        if self.shares.shape != (CLASSES, LARGEST + 1) or (self.shares.sum(1) != TOTAL).any() or (self.shares < 0).any():
            raise DamagedError("the frequencies do not sum to 2¹⁴ in every context")
        if self.per_block < 1 or len(self.offsets) != blocks + 1 or self.offsets[0] != 0 or (np.diff(self.offsets) < 4).any():
            raise DamagedError(f"{len(self.offsets)} offsets for {blocks} blocks, or they do not rise")
        if self.offsets[-1] != len(self.payload):
            raise DamagedError(f"the blocks end at {self.offsets[-1]} of {len(self.payload)} bytes")
        if len(self.classes) and not (self.classes.min() >= 0 and self.classes.max() < CLASSES):
            raise DamagedError(f"a column has class {self.classes.max()}, there are {CLASSES}")
        if self.centres.shape != (CLASSES, 4) or self.promise.shape != (CLASSES,) or not np.isfinite(self.step):
            raise DamagedError("centres, promise or step are not as they should be")
        if self.norms is not None and len(self.norms) != self.total:
            raise DamagedError(f"{len(self.norms)} norms for {self.total} rows")

    def numbers(self, ids: np.ndarray, compiled: bool = True) -> np.ndarray:
        """Whole numbers of these rows, (n, K)."""
        order = np.argsort(ids, kind="stable")
        wanted = ids[order]
        found = np.zeros((len(ids), len(self.classes)), np.int32)
        if compiled and (kernel := _kernel()) is not None:
            damaged = kernel(
                *(self.payload, self.offsets, wanted, self.per_block, self.total, self.classes, self.promise),
                *(self.shares, self.firsts, self.symbols, self.thresholds, found),
            )
            if damaged >= 0:
                raise DamagedError(f"block {damaged} ends too soon")
        else:
            for block in np.unique(wanted // self.per_block):
                rows = self._block(int(block))
                here = wanted // self.per_block == block
                found[here] = rows[wanted[here] - block * self.per_block]
        back = np.empty_like(found)
        back[order] = found
        return back

    def __call__(self, ids: np.ndarray) -> np.ndarray:
        distinct, where = np.unique(ids, return_inverse=True)
        q = self.numbers(distinct)
        contexts = self._contexts(q)
        m = np.abs(q)
        values = np.sign(q) * (m - self.centres[contexts, np.minimum(m, 3)]) * np.float32(self.step)
        values /= row_weights(distinct, self.weighting, self.mean_place)[:, None]
        last = np.ones((len(distinct), 1), np.float32)
        if self.norms is not None:
            scale = self.norm_base * 2.0 ** (self.norms[distinct].astype(np.float32) * NORM_STEP)
            values *= scale[:, None]
            last *= scale[:, None]
        return np.concatenate([values, last], 1).astype(np.float32)[where]

    def _contexts(self, q: np.ndarray) -> np.ndarray:
        """Contexts of numbers that are known: as the coder had them."""
        sizes = np.minimum(np.abs(q), MOST).astype(np.int64) * UNIT
        before = np.cumsum(sizes, 1) - sizes
        promised = np.cumsum(self.promise[self.classes]) - self.promise[self.classes]
        ratio = (before + 4 * UNIT) * 1024 // (promised + 4 * UNIT)
        moved = np.searchsorted(self.thresholds, ratio.reshape(-1), "right").reshape(ratio.shape)
        return np.clip(self.classes + moved - SHIFTS, 0, CLASSES - 1)

    def _block(self, block: int) -> np.ndarray:
        """All rows of a block, number by number: what the compiled decoder does."""
        data = self.payload[self.offsets[block] : self.offsets[block + 1]].tolist()
        state, at, half = int.from_bytes(bytes(data[:4]), "big"), 4, TOTAL >> 1

        def take(share: int, first: int) -> None:
            nonlocal state, at
            state = share * (state >> PRECISION) + (state & (TOTAL - 1)) - first
            while state < LOW:
                if at >= len(data):
                    raise DamagedError(f"block {block} ends too soon")
                state = state << 8 | data[at]
                at += 1

        def bit() -> int:
            found = (state & (TOTAL - 1)) // half
            take(half, found * half)
            return found

        rows = []
        for _ in range(min(self.per_block, self.total - block * self.per_block)):
            row: list[int] = []
            seen, promised = 0, 0
            for column in self.classes.tolist():
                ratio = (seen + 4 * UNIT) * 1024 // (promised + 4 * UNIT)
                c = min(max(column + sum(ratio >= limit for limit in self.thresholds.tolist()) - SHIFTS, 0), CLASSES - 1)
                m = int(self.symbols[c, state & (TOTAL - 1)])
                take(int(self.shares[c, m]), int(self.firsts[c, m]))
                if m == LARGEST:
                    length = sum(bit() << b for b in range(5))
                    m += (sum(bit() << b for b in range(length)) | 1 << length) - 1
                row.append(-m if m and bit() else m)
                seen += min(m, MOST) * UNIT
                promised += int(self.promise[column])
            rows.append(row)
        return np.array(rows, np.int32).reshape(len(rows), len(self.classes))


def _kernel() -> Callable[..., int] | None:
    """The compiled decoder, if Numba is installed."""
    try:
        from antembed.kernels.coded import decode_rows
    except ImportError:
        return None
    found: Callable[..., int] = decode_rows
    return found
