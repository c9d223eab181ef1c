"""Entropy-coded rows: T in whole numbers on one grid, coded by contexts in blocks of rows that are read by themselves.

    payload, offsets     bytes of the blocks, and where each begins (blocks + 1)
    classes              (K,) of each column of T: how large its numbers are, in quarter octaves
    promise              (48,): 64 times the mean absolute number of the columns of a class
    frequencies          (96, 16): of the absolute numbers 0 … 14 and of an escape, in each context; they sum to 2¹⁴
    centres              (96, 4) int8, by context and min(m, 3)
    shift_places         rows from which on all classes are one less; row 0 has classes + first_shift (none: rows are alike)
    norms                (V,) uint8, where lengths are stored apart: base·2^(norm/8)
    about                step, rows_per_block, and weighting: row i was multiplied by ((i + 10)/mean_place)^−weighting before

A row begins in state 0. In an even state a number m stands for 2m − centre/128 steps, in an odd one for 2m − 1 − centre/128 (0
for 0); MOVES[state][m mod 2] is the next state. A number's context is its column's class, shifted and moved by the row
(kernels/coded.py), plus 48 in odd states. The last column of T is 1: its anchor is the vectors' mean.
"""

import numpy as np

from antembed.files import JSON
from antembed.serving.compiled import decode_on_all_cores, kernels
from antembed.serving.container import DamagedError
from antembed.serving.encodings import Rows

CLASSES, LARGEST, PRECISION = 48, 15, 14
TOTAL, LOW, SHIFTS, UNIT, MOST = 1 << PRECISION, 1 << 23, 6, 64, 64
HEAD = 10  # added to a row's number before it is weighted
LARGEST_BLOCK, LARGEST_SCALE = 1 << 24, 1e12  # numbers of a block, step and lengths; more are damage
NORM_STEP = 1 / 8  # octaves between two norms
MOVES = np.array([[0, 1], [3, 2], [5, 4], [6, 7], [1, 0], [2, 3], [4, 5], [7, 6]], np.int64)


def row_weights(ids: np.ndarray, weighting: float, mean: float) -> np.ndarray:
    """What rows were multiplied by: more for those that come first, the frequent ones."""
    return (((ids + HEAD) / mean) ** -weighting).astype(np.float32)


class CodedRows(Rows):
    """ids (n,) → rows of T (n, K + 1)."""

    def __init__(self, arrays: dict[str, np.ndarray], about: JSON):
        self.payload, self.offsets = arrays["payload"], arrays["offsets"].astype(np.int64)
        self.classes, self.promise = arrays["classes"].astype(np.int64), arrays["promise"].astype(np.int64)
        self.shares = arrays["frequencies"].astype(np.int64)
        self.centres = arrays["centres"].astype(np.float32) / 128
        self.norms = arrays.get("norms")
        self.places = arrays.get("shift_places", np.empty(0)).astype(np.int64)
        self.first_shift = int(about.get("first_shift", 0))
        self.norm_base = float(about.get("norm_base", 1.0))
        self.total, self.per_block = int(about["objects"]), int(about["rows_per_block"])
        self.step, self.weighting, self.mean_place = float(about["step"]), float(about["weighting"]), float(about["mean_place"])
        self._check()
        self.firsts = np.cumsum(self.shares, 1) - self.shares
        self.symbols = np.repeat(np.tile(np.arange(LARGEST + 1), 2 * CLASSES), self.shares.reshape(-1)).reshape(-1, TOTAL)
        self.symbols = self.symbols.astype(np.uint8)
        self.thresholds = np.array([round(1024 * 2 ** ((k + 0.5) / 4)) for k in range(-SHIFTS, SHIFTS)], np.int64)

    def _check(self) -> None:
        """Contents; checks.py has checked types and shapes."""
        blocks = -(-self.total // max(self.per_block, 1))
        if (self.shares.sum(1) != TOTAL).any():
            raise DamagedError("the frequencies do not sum to 2¹⁴ in every context")
        if self.per_block < 1 or self.per_block * max(len(self.classes), 1) > LARGEST_BLOCK:
            raise DamagedError(
                f"blocks of {self.per_block} rows of {len(self.classes)} numbers; at most {LARGEST_BLOCK} are read"
            )
        if len(self.offsets) != blocks + 1 or self.offsets[0] != 0 or (np.diff(self.offsets) < 4).any():
            raise DamagedError(f"{len(self.offsets)} offsets for {blocks} blocks, or they do not rise")
        if self.offsets[-1] != len(self.payload):
            raise DamagedError(f"the blocks end at {self.offsets[-1]} of {len(self.payload)} bytes")
        if len(self.classes) and self.classes.max() >= CLASSES:
            raise DamagedError(f"a column has class {self.classes.max()}, there are {CLASSES}")
        for name, number in (("step", self.step), ("mean_place", self.mean_place), ("norm_base", self.norm_base)):
            if not 0 < number < LARGEST_SCALE:
                raise DamagedError(f"{name} is {number}, not between 0 and {LARGEST_SCALE:g}")
        if not 0 <= self.weighting <= 1:
            raise DamagedError(f"weighting is {self.weighting}, not between 0 and 1")
        if (np.diff(self.places) < 0).any() or abs(self.first_shift) > CLASSES:
            raise DamagedError(f"the places of shifts do not rise, or the first shift is {self.first_shift}")

    def values(self, ids: np.ndarray, compiled: bool = True) -> np.ndarray:
        """What the numbers of these rows stand for, (n, K)."""
        order = np.argsort(ids, kind="stable")
        wanted = ids[order]
        found = np.zeros((len(ids), len(self.classes)), np.float32)
        if compiled and (kernel := kernels("coded")) is not None:

            def decode(start: int, stop: int) -> int:
                damaged: int = kernel.decode_rows(
                    *(self.payload, self.offsets, wanted[start:stop], self.first_shift, self.places),
                    *(self.per_block, self.total, self.classes, self.promise, self.shares, self.firsts, self.symbols),
                    *(self.thresholds, MOVES, self.centres, np.float32(self.step), found[start:stop]),
                )
                return damaged

            decode_on_all_cores(decode, *found.shape)
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
        values = self.values(distinct)
        values /= row_weights(distinct, self.weighting, self.mean_place)[:, None]
        last = np.ones((len(distinct), 1), np.float32)
        if self.norms is not None:
            scale = self.norm_base * 2.0 ** (self.norms[distinct].astype(np.float32) * NORM_STEP)
            values *= scale[:, None]
            last *= scale[:, None]
        return np.concatenate([values, last], 1).astype(np.float32)[where]

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
        for i in range(block * self.per_block, min((block + 1) * self.per_block, self.total)):
            row: list[np.float32] = []
            seen, promised, s = 0, 0, 0
            shift = self.first_shift - int(np.searchsorted(self.places, i, "right"))
            for column in np.clip(self.classes + shift, 0, CLASSES - 1).tolist():
                ratio = (seen + 4 * UNIT) * 1024 // (promised + 4 * UNIT)
                c = min(max(column + sum(ratio >= limit for limit in self.thresholds.tolist()) - SHIFTS, 0), CLASSES - 1)
                c += (s & 1) * CLASSES
                m = int(self.symbols[c, state & (TOTAL - 1)])
                take(int(self.shares[c, m]), int(self.firsts[c, m]))
                if m == LARGEST:
                    length = sum(bit() << b for b in range(5))
                    m += (sum(bit() << b for b in range(length)) | 1 << length) - 1
                sign = -1 if m and bit() else 1
                value = np.float32(2 * m - (s & 1)) - self.centres[c, min(m, 3)] if m else np.float32(0)
                row.append(sign * value * np.float32(self.step))
                s = int(MOVES[s, m & 1])
                seen += min(m, MOST) * UNIT
                promised += int(self.promise[column])
            rows.append(row)
        return np.array(rows, np.float32).reshape(len(rows), len(self.classes))
