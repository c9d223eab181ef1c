"""Entropy-coded rows: T in whole numbers on one grid, coded by contexts in blocks of rows that are read by themselves.

    payload, offsets     bytes of the blocks, and where each begins (blocks + 1)
    classes              (K,) of each column of T: how large its numbers are, in quarter octaves
    promise              (48,): 64 times the mean absolute number of the columns of a class
    frequencies          (96, 16): of the absolute numbers 0 … 14 and of an escape, in each context; they sum to 2¹⁴
    centres              (96, 4) int8, by context and min(m, 3)
    shift_places         rows from which on all classes are one less; row 0 has classes + first_shift (none: rows are alike)
    norms                (V,) uint8, where lengths are stored apart: norm_base·2^(norm/8); else all rows are times norm_base
    about                step, rows_per_block, and weighting: row i was multiplied by ((i + 10)/mean_place)^−weighting before

A row begins in state 0. In an even state a number m stands for 2m − centre/128 steps, in an odd one for 2m − 1 − centre/128 (0
for 0); MOVES[state][m mod 2] is the next state. A number's context is its column's class, shifted and moved by the row
(tables/entropy_kernel.py), plus 48 in odd states. The last column of T is 1: its anchor is the vectors' mean.
"""

from functools import cached_property
from importlib import import_module
from typing import Any

import numpy as np

from antembed.files import JSON
from antembed.tables.container import DamagedError
from antembed.tables.encodings import Rows
from antembed.tables.optional_kernels import decode_on_all_cores, empty_rows, kernels, take_rows

CLASSES, LARGEST, PRECISION = 48, 15, 14
TOTAL, LOW, SHIFTS, UNIT, MOST = 1 << PRECISION, 1 << 23, 6, 64, 64
WEIGHT = 4 * UNIT  # how much is assumed of a row before its first number
HEAD = 10  # added to a row's number before it is weighted
LARGEST_BLOCK, LARGEST_SCALE, LARGEST_BASE = 1 << 24, 1e12, 1e20  # numbers of a block, step, unit of lengths; more are damage
LARGEST_VALUE = 2.0 * (LARGEST + (1 << 32))  # steps of a number with the longest escape
NORM_STEP = 1 / 8  # octaves between two norms
MOVES = np.array([[0, 1], [3, 2], [5, 4], [6, 7], [1, 0], [2, 3], [4, 5], [7, 6]], np.int64)


def row_weights(ids: np.ndarray, weighting: float, mean: float) -> np.ndarray:
    """What rows were multiplied by: more for those that come first, the frequent ones."""
    if weighting == 0:
        return np.ones(len(ids), np.float32)
    return (((ids + HEAD) / mean) ** -weighting).astype(np.float32)


def largest_rows(number: float, K: int, scales: float, lightest: float) -> np.ndarray:
    """A bound of |T|, (K + 1,): numbers up to `number` times scales over the lightest row's weight; the last is the mean's."""
    with np.errstate(divide="ignore"):
        return np.append(np.full(K, number * np.float64(scales) / lightest), scales)


def check_scales(step: float, mean_place: float, norm_base: float) -> None:
    """Raise if the numbers that rows are multiplied by cannot be."""
    for name, number, most in (
        ("step", step, LARGEST_SCALE),
        ("mean_place", mean_place, LARGEST_SCALE),
        ("norm_base", norm_base, LARGEST_BASE),
    ):
        if not 0 < number < most:
            raise DamagedError(f"{name} is {number}, not between 0 and {most:g}")


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
        self._last_packed = np.empty((0, 0)), np.empty((0, 0))
        self._check()
        self.firsts = np.cumsum(self.shares, 1) - self.shares
        self.thresholds = np.array([round(1024 * 2 ** ((k + 0.5) / 4)) for k in range(-SHIFTS, SHIFTS)], np.int64)

    @cached_property
    def symbols(self) -> np.ndarray:
        """(96, 2¹⁴): the number of each slot."""
        symbols = np.repeat(np.tile(np.arange(LARGEST + 1), 2 * CLASSES), self.shares.reshape(-1))
        return symbols.reshape(-1, TOTAL).astype(np.uint8)

    @cached_property
    def entries(self) -> np.ndarray:
        """(V,): where a row begins, byte of its block · 2³² + state; 0: not yet known. Look-ups fill it."""
        return np.zeros(self.total, np.int64)

    @cached_property
    def _compiled(self) -> tuple[Any, ...]:
        """What the compiled decoder reads: contexts of each level (how many shifts there were), numbers of each context.

        ratio ≥ threshold in whole numbers: seen ≥ (threshold·(promised + WEIGHT)/1024 − WEIGHT)/UNIT, rounded up."""
        levels = min(len(self.places), 2 * CLASSES + abs(self.first_shift)) + 1  # beyond, all classes are at their limits
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
        step, centres = np.float32(self.step), (self.centres * 128).astype(np.int64)
        registers = import_module("antembed.tables.entropy_avx512_kernel").column_tables(self.firsts, centres)
        bases = np.maximum(classes - SHIFTS, 0).reshape(-1)
        return limits, bases, *flat, (values * step).reshape(-1), self.centres, step, registers

    @property
    def largest(self) -> np.ndarray:
        """A bound of |T| by column, (K + 1,). Norms are read: most files have far smaller ones than a byte can say."""
        norm = 0 if self.norms is None else int(self.norms.max(initial=0))
        lightest = float(row_weights(np.array([0, max(self.total - 1, 0)]), self.weighting, self.mean_place).min())
        return largest_rows(LARGEST_VALUE * self.step, len(self.classes), self.norm_base * 2.0 ** (norm * NORM_STEP), lightest)

    @property
    def _file(self) -> tuple[Any, ...]:
        """What the compiled decoder reads besides."""
        return self.payload, self.offsets, self.places, self.per_block, self.entries

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
        check_scales(self.step, self.mean_place, self.norm_base)
        if not 0 <= self.weighting <= 1:
            raise DamagedError(f"weighting is {self.weighting}, not between 0 and 1")
        if (np.diff(self.places) < 0).any() or abs(self.first_shift) > CLASSES:
            raise DamagedError(f"the places of shifts do not rise, or the first shift is {self.first_shift}")

    def values(self, ids: np.ndarray, compiled: bool = True) -> np.ndarray:
        """What the numbers of these rows stand for, (n, K)."""
        distinct, where = np.unique(ids, return_inverse=True)
        found = np.empty((len(distinct), len(self.classes)), np.float32)
        self._decode(distinct, np.ones(len(distinct), np.float32), found, compiled)
        return found[where]

    def _decode(self, wanted: np.ndarray, factors: np.ndarray, out: np.ndarray, compiled: bool = True) -> None:
        """The values of rows `wanted` (sorted, each once) times `factors` → the first K columns of out."""
        if compiled and (kernel := kernels("tables.entropy_rows_kernel")) is not None:
            file, tables = self._file, self._compiled  # made here, once, and not by every thread

            def decode(a: int, b: int) -> int:
                damaged: int = kernel.decode_rows(file, tables, wanted[a:b], factors[a:b], out[a:b])
                return damaged

            decode_on_all_cores(decode, *out.shape)
            return
        for block in np.unique(wanted // self.per_block):
            rows = self._block(int(block))
            here = wanted // self.per_block == block
            out[here, : len(self.classes)] = rows[wanted[here] - block * self.per_block] * factors[here, None]

    def _scales(self, wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """What the last numbers of rows are, and what the others are multiplied by."""
        scales = np.full(len(wanted), self.norm_base, np.float32)
        if self.norms is not None:
            scales = (self.norm_base * 2.0 ** (self.norms[wanted].astype(np.float32) * NORM_STEP)).astype(np.float32)
        return scales, scales / row_weights(wanted, self.weighting, self.mean_place)

    def _distinct(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The rows of these ids, each once, and where each id is among them."""
        distinct, where = np.unique(ids, return_inverse=True)
        scales, factors = self._scales(distinct)
        rows = np.empty((len(distinct), len(self.classes) + 1), np.float32)
        rows[:, -1] = scales
        self._decode(distinct, factors, rows)
        return rows, where

    def __call__(self, ids: np.ndarray) -> np.ndarray:
        rows, where = self._distinct(ids)
        return take_rows(rows, where)

    def vectors(self, ids: np.ndarray, anchors: np.ndarray) -> np.ndarray:
        """Each row is multiplied once; compiled, while it is in the cache."""
        if (kernel := kernels("tables.entropy_rows_kernel")) is None:
            rows, where = self._distinct(ids)
            return take_rows(rows @ anchors, where)
        out, order = empty_rows(len(ids), anchors.shape[1]), np.argsort(ids)
        begins = np.flatnonzero(np.diff(ids[order], prepend=-1))  # of each row among those that are the same
        wanted, uses = ids[order][begins], np.append(begins, len(ids))
        scales, factors = self._scales(wanted)
        file, tables, onto = self._file, self._compiled, self._packed(anchors)

        def decode(a: int, b: int) -> int:
            some = wanted[a:b], factors[a:b], scales[a:b]
            damaged: int = kernel.decode_vectors(file, tables, *some, onto, order, uses[a : b + 1], out)
            return damaged

        decode_on_all_cores(decode, len(wanted), anchors.shape[1])
        return out

    def _packed(self, anchors: np.ndarray) -> np.ndarray:
        """As the compiled code reads them. A table's anchors are always the same: the last ones are kept."""
        given, packed = self._last_packed
        if given is not anchors:
            kernel = kernels("tables.entropy_avx512_kernel")
            assert kernel is not None
            packed = kernel.packed(anchors)
            self._last_packed = anchors, packed
        return packed

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
                ratio = (seen + WEIGHT) * 1024 // (promised + WEIGHT)
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
