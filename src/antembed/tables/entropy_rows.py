"""Entropy-coded rows: T in integers on one grid, context-coded (rANS), in blocks that are decoded independently.

    payload, offsets     bytes of the blocks, and where each begins (blocks + 1)
    classes              (K,) size class of each column of T: log2 of the magnitude, in steps of ¼
    promise              (48,) expected magnitude: 64 times the mean absolute number of the columns of a class
    frequencies          (96, 16): of the absolute numbers 0 … 14 and of an escape, in each context; they sum to 2¹⁴
    centres              (96, 4) int8, by context and min(m, 3)
    shift_places         ascending rows; from each on all classes are one less; row 0 has classes + first_shift
    norms                (V,) uint8: row i has norm norm_base·2^(norms[i]/8); absent: every row is multiplied by norm_base
    about                step, rows_per_block, and weighting: row i was multiplied by ((i + 10)/mean_place)^−weighting before

Numbers are trellis-coded with 8 states, and a row begins in state 0. In an even state a number m stands for 2m − centre/128
steps, in an odd one for 2m − 1 − centre/128 (0 for 0); MOVES[state][m mod 2] is the next state. A number's context is its
column's class plus −6 … 6 by how large the row has been so far (tables/entropy_kernel.py), plus 48 in odd states. The last
column of T is 1: its anchor is the vectors' mean.
"""

from collections.abc import Callable, Sequence
from functools import cached_property
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np

from antembed.files import JSON
from antembed.tables.container import DamagedError
from antembed.tables.rows import Rows, empty_rows, kernels, on_all_cores

CLASSES, LARGEST, PRECISION = 48, 15, 14  # as in entropy_kernel.py, which needs Numba
TOTAL, LOW = 1 << PRECISION, 1 << 23  # shares of a context; the coder's state is never below LOW
SHIFTS, UNIT, MOST = 6, 64, 64  # contexts up or down by the row's size; a number of 1; numbers count up to MOST
WEIGHT = 4 * UNIT  # prior weight of a row's size before its first number
HEAD = 10  # added to a row's number before it is weighted
LARGEST_BLOCK, LARGEST_SCALE, LARGEST_BASE = 1 << 24, 1e12, 1e20  # numbers of a block, step, unit of lengths; more are damage
LARGEST_VALUE = 2.0 * (LARGEST + (1 << 32))  # steps of a number with the longest escape
NORM_STEP = 1 / 8  # octaves between two norms
MOVES = np.array([[0, 1], [3, 2], [5, 4], [6, 7], [1, 0], [2, 3], [4, 5], [7, 6]], np.int64)  # next states


def row_weights(ids: np.ndarray, weighting: float, mean: float) -> np.ndarray:
    """What rows were multiplied by: more for those that come first, the frequent ones."""
    if weighting == 0:
        return np.ones(len(ids), np.float32)
    return (((ids + HEAD) / mean) ** -weighting).astype(np.float32)


class BlockReader:
    """Decodes the symbols of a block one by one (rANS): what the compiled decoders do, for installations without Numba."""

    def __init__(self, data: np.ndarray, block: int, precision: int):
        self.data, self.block, self.precision = data.tolist(), block, precision
        self.state, self.at = int.from_bytes(bytes(self.data[:4]), "big"), 4

    @property
    def slot(self) -> int:
        return self.state & (1 << self.precision) - 1

    def take(self, first: int, share: int) -> None:
        """Go on behind a symbol of `share` slots from `first` on."""
        self.state = share * (self.state >> self.precision) + self.slot - first
        while self.state < LOW:
            if self.at >= len(self.data):
                raise DamagedError(f"block {self.block} ends too soon")
            self.state = self.state << 8 | self.data[self.at]
            self.at += 1

    def bits(self, count: int) -> int:
        """So many bits, least significant first."""
        found, half = 0, 1 << self.precision - 1
        for b in range(count):
            bit = self.slot // half
            self.take(bit * half, half)
            found |= bit << b
        return found


class Wanted(NamedTuple):
    """Rows to be decoded, sorted and each once; what they were multiplied by; row i is copied to the positions
    order[uses[i] : uses[i + 1]]."""

    rows: np.ndarray
    weights: np.ndarray
    order: np.ndarray
    uses: np.ndarray


class EntropyRows(Rows):
    """ids (n,) → rows of T (n, K + 1), or their vectors; what the entropy-coded encodings have in common."""

    def __init__(self, arrays: dict[str, np.ndarray], about: JSON, columns: int):
        self.payload, self.offsets = arrays["payload"], arrays["offsets"].astype(np.int64)
        self.total, self.per_block, self.columns = int(about["objects"]), int(about["rows_per_block"]), columns
        self.step, self.norm_base = np.float32(about["step"]), float(about.get("norm_base", 1.0))
        self.weighting, self.mean_place = float(about["weighting"]), float(about["mean_place"])
        blocks = -(-self.total // max(self.per_block, 1))
        if not 1 <= self.per_block * max(columns, 1) <= LARGEST_BLOCK:
            raise DamagedError(f"blocks of {self.per_block} rows of {columns} numbers; at most {LARGEST_BLOCK} are read")
        if len(self.offsets) != blocks + 1 or self.offsets[0] != 0 or (np.diff(self.offsets) < 4).any():
            raise DamagedError(f"{len(self.offsets)} offsets for {blocks} blocks, or they do not rise")
        if self.offsets[-1] != len(self.payload):
            raise DamagedError(f"the blocks end at {self.offsets[-1]} of {len(self.payload)} bytes")
        limits = {"step": LARGEST_SCALE, "mean_place": LARGEST_SCALE, "norm_base": LARGEST_BASE}
        for name, most in limits.items():
            if not 0 < float(getattr(self, name)) < most:
                raise DamagedError(f"{name} is {getattr(self, name)}, not between 0 and {most:g}")
        if not 0 <= self.weighting <= 1:
            raise DamagedError(f"weighting is {self.weighting}, not between 0 and 1")

    @cached_property
    def entries(self) -> np.ndarray:
        """(V,): where a row begins: (byte in its block << 32) | state of the decoder; 0: not yet known. Look-ups fill it."""
        return np.zeros(self.total, np.int64)

    def bound(self, number: float, scale: float) -> np.ndarray:
        """A bound of |T| by column, (K + 1,), where numbers are at most `number` and scales of rows at most `scale`; the last
        column is the mean's."""
        ends = np.array([0, max(self.total - 1, 0)])
        with np.errstate(divide="ignore"):
            reach = number * np.float64(scale) / float(row_weights(ends, self.weighting, self.mean_place).min())
        return np.append(np.full(self.columns, reach), scale)

    def __call__(self, ids: np.ndarray) -> np.ndarray:
        return self.decode(ids, None)

    def vectors(self, ids: np.ndarray, anchors: np.ndarray) -> np.ndarray:
        return self.decode(ids, anchors)

    def decode(self, ids: np.ndarray, onto: np.ndarray | None) -> np.ndarray:
        """Rows, or rows times `onto` (K + 1, width). Each row is decoded and multiplied once. The compiled decoder
        multiplies a row while it is in the processor's cache."""
        out, order = empty_rows(len(ids), self.columns + 1 if onto is None else onto.shape[1]), np.argsort(ids)
        begins = np.flatnonzero(np.diff(ids[order], prepend=-1))  # of each row among those that are the same
        rows, uses = ids[order][begins], np.append(begins, len(ids))
        wanted = Wanted(rows, row_weights(rows, self.weighting, self.mean_place), order, uses)
        if (decode := self.compiled_decoder(wanted, onto, out)) is not None:

            def work(start: int, stop: int) -> None:
                if (block := decode(start, stop)) >= 0:
                    raise DamagedError(f"block {block} ends too soon")

            on_all_cores(work, len(rows), out.shape[1])
            return out
        for block in np.unique(rows // self.per_block).tolist():
            here = np.flatnonzero(rows // self.per_block == block)
            first = block * self.per_block
            data = self.payload[self.offsets[block] : self.offsets[block + 1]]
            plain = self.decode_block(data, block, range(first, min(first + self.per_block, self.total)))
            found = np.array([plain[row - first] for row in rows[here].tolist()], np.float32).reshape(len(here), -1)
            found[:, :-1] *= (found[:, -1] / wanted.weights[here])[:, None]
            for n, vector in zip(here.tolist(), found if onto is None else found @ onto, strict=True):
                out[order[uses[n] : uses[n + 1]]] = vector
        return out

    def compiled_decoder(self, wanted: Wanted, onto: np.ndarray | None, out: np.ndarray) -> Callable[[int, int], int] | None:
        """decode(start, stop) of the wanted rows into `out` → −1, or the block that is damaged; None: without Numba."""
        raise NotImplementedError

    def decode_block(self, data: np.ndarray, block: int, rows: range) -> Sequence[Sequence[np.float32] | np.ndarray]:
        """All rows of a block, number by number, without scales; the last number of each is its scale."""
        raise NotImplementedError


class CodedRows(EntropyRows):
    """Rows in integers on one grid (method="transform")."""

    def __init__(self, arrays: dict[str, np.ndarray], about: JSON):
        super().__init__(arrays, about, len(arrays["classes"]))
        self.classes, self.promise = arrays["classes"].astype(np.int64), arrays["promise"].astype(np.int64)
        self.shares = arrays["frequencies"].astype(np.int64)
        self.centres = arrays["centres"].astype(np.float32) / 128
        self.norms = arrays.get("norms")
        self.positions = arrays.get("shift_places", np.empty(0)).astype(np.int64)
        self.first_shift = int(about.get("first_shift", 0))
        self._last_onto: tuple[np.ndarray | None, np.ndarray] | None = None
        if (self.shares.sum(1) != TOTAL).any():
            raise DamagedError("the frequencies do not sum to 2¹⁴ in every context")
        if len(self.classes) and self.classes.max() >= CLASSES:
            raise DamagedError(f"a column has class {self.classes.max()}, there are {CLASSES}")
        if (np.diff(self.positions) < 0).any() or abs(self.first_shift) > CLASSES:
            raise DamagedError(f"the positions of shifts do not rise, or the first shift is {self.first_shift}")
        self.firsts = np.cumsum(self.shares, 1) - self.shares
        self.thresholds = np.array([round(1024 * 2 ** ((k + 0.5) / 4)) for k in range(-SHIFTS, SHIFTS)], np.int64)

    @cached_property
    def tables(self) -> tuple[Any, ...]:
        """What the compiled decoder reads: contexts of each level (shifts passed so far), numbers of each context.

        ratio ≥ threshold in integers: seen ≥ (threshold·(promised + WEIGHT)/1024 − WEIGHT)/UNIT, rounded up."""
        levels = min(len(self.positions), 2 * CLASSES + abs(self.first_shift)) + 1  # beyond, all classes are at their limits
        shifts = self.first_shift - np.arange(levels)
        classes = np.clip(self.classes + shifts[:, None], 0, CLASSES - 1)
        promised = np.cumsum(self.promise[classes], 1) - self.promise[classes]
        limits = empty_rows(classes.size, LARGEST + 1).view(np.int32).reshape(*classes.shape, LARGEST + 1)  # aligned
        limits[:] = np.iinfo(np.int32).max
        exact = np.maximum(-((WEIGHT * 1024 - self.thresholds * (promised[..., None] + WEIGHT)) // (UNIT * 1024)), 0)
        contexts = classes[..., None] - SHIFTS + np.arange(1, 2 * SHIFTS + 1)  # that are reached; only 0 … 47 exist
        limits[..., : 2 * SHIFTS] = np.where((contexts > 0) & (contexts < CLASSES), exact, limits[..., : 2 * SHIFTS])
        limits.sort(-1)
        m, odd = np.arange(LARGEST + 1), np.repeat([0, 1], CLASSES)[:, None]
        values = np.where(m > 0, (2 * m - odd).astype(np.float32) - self.centres[:, np.minimum(m, 3)], np.float32(0))
        flat = self.firsts.astype(np.int16).reshape(-1), self.shares.astype(np.int16).reshape(-1)
        step, centres = self.step, (self.centres * 128).astype(np.int64)
        registers = import_module("antembed.tables.entropy_avx512_kernel").column_tables(self.firsts, centres)
        bases = np.maximum(classes - SHIFTS, 0).reshape(-1)
        return limits, bases, *flat, (values * step).reshape(-1), self.centres, step, registers

    @property
    def largest(self) -> np.ndarray:
        """A bound of |T| by column, (K + 1,). Norms are read: most files have far smaller ones than a byte can say."""
        norm = 0 if self.norms is None else int(self.norms.max(initial=0))
        return self.bound(LARGEST_VALUE * float(self.step), self.norm_base * 2.0 ** (norm * NORM_STEP))

    def scales(self, rows: np.ndarray) -> np.ndarray:
        """What the last numbers of rows are; the others are multiplied by it."""
        norms = np.zeros(len(rows), np.float32) if self.norms is None else self.norms[rows].astype(np.float32)
        return (self.norm_base * 2.0 ** (norms * NORM_STEP)).astype(np.float32)

    def compiled_decoder(self, wanted: Wanted, onto: np.ndarray | None, out: np.ndarray) -> Callable[[int, int], int] | None:
        kernel, (rows, weights, order, uses) = kernels("tables.entropy_rows_kernel"), wanted
        if kernel is None:
            return None
        scales, known = self.scales(rows), self._last_onto
        file, tables = (self.payload, self.offsets, self.positions, self.per_block, self.entries), self.tables
        if known is None or known[0] is not onto:  # a table's anchors are always the same
            # The kernel takes the mean's anchor first.
            lines = np.empty((0, 8), np.float32) if onto is None else np.roll(onto, 1, axis=0)
            known = self._last_onto = onto, import_module("antembed.native.vector").spaced(np.asarray(lines, np.float32))
        lines, factors = known[1], scales / weights

        return lambda a, b: kernel.decode(
            file, tables, rows[a:b], factors[a:b], scales[a:b], lines, order, uses[a : b + 1], out
        )

    def decode_block(self, data: np.ndarray, block: int, rows: range) -> list[list[np.float32]]:
        reader, thresholds, found = BlockReader(data, block, PRECISION), self.thresholds.tolist(), []
        symbols = [np.repeat(np.arange(LARGEST + 1), shares) for shares in self.shares]  # the number of each slot
        for i, scale in zip(rows, self.scales(np.arange(rows.start, rows.stop)), strict=True):
            row: list[np.float32] = []
            seen, promised, s = 0, 0, 0
            shift = self.first_shift - int(np.searchsorted(self.positions, i, "right"))
            for column in np.clip(self.classes + shift, 0, CLASSES - 1).tolist():
                ratio = (seen + WEIGHT) * 1024 // (promised + WEIGHT)
                c = min(max(column + sum(ratio >= limit for limit in thresholds) - SHIFTS, 0), CLASSES - 1)
                c += (s & 1) * CLASSES
                m = int(symbols[c][reader.slot])
                reader.take(int(self.firsts[c, m]), int(self.shares[c, m]))
                if m == LARGEST:
                    length = reader.bits(5)
                    m += (reader.bits(length) | 1 << length) - 1
                sign = -1 if m and reader.bits(1) else 1
                value = np.float32(2 * m - (s & 1)) - self.centres[c, min(m, 3)] if m else np.float32(0)
                row.append(sign * value * self.step)
                s = int(MOVES[s, m & 1])
                seen += min(m, MOST) * UNIT
                promised += int(self.promise[column])
            found.append([*row, scale])
        return found
