"""Entropy-coded sparse rows: few non-negative weights a row, of many anchors, in blocks of rows that are read by themselves.

    payload, offsets     bytes of the blocks, and where each begins (blocks + 1)
    widths               (K,) uint16: how often each anchor is used
    groups               (K,) uint8: which frequencies its values have
    value_frequencies    (groups, 48) uint16: of the values 1 … 48; they sum to 2¹⁶
    norm_frequencies     (norms,) uint16, where lengths are stored apart: of base·2^(norm/4); they sum to 2¹⁶
    anchors              (K, d) int8, times anchor_scales (K,) fp16
    mean                 (d,) fp16
    about                step, rate, rows_per_block, and weighting as in entropy_rows.py

A row is its norm, then its anchors in ascending order, each with its value, then the end. Anchor k covers widths[k] positions
of a line; from each to the next a weight has the chance rate/2³⁰. Of 2¹⁶ slots, one for each anchor that may follow and one
for the end are set aside; of the others, the anchors up to a place take what `reached` says, and the end takes the rest
(tables/sparse_entropy_kernel.py, first_slot). The last column of T is 1: its anchor is the mean.
"""

from collections.abc import Callable
from functools import cached_property

import numpy as np

from antembed.files import JSON
from antembed.tables.container import DamagedError
from antembed.tables.entropy_rows import BlockReader, EntropyRows, Wanted
from antembed.tables.rows import kernels

PRECISION, VALUES, NORM_STEP = 16, 48, 1 / 4  # bits of a share, symbols of values, octaves between two norms
TOTAL = 1 << PRECISION
LONGEST = 1 << 16  # positions of the line, at most
UNIT = 30  # bits of a chance
GUESS = 4  # lower bits of a slot that a guess leaves out


def reached(positions: int, rate: int) -> np.ndarray:
    """(positions + 1,): the chance, of 2¹⁶, that a weight comes within so many positions. In integers: the same everywhere."""
    found, left = np.empty(positions + 1, np.int64), 1 << UNIT
    for place in range(positions + 1):
        found[place] = ((1 << UNIT) - left) >> (UNIT - PRECISION)
        left -= left * rate >> UNIT
    return found


def cumulative(frequencies: np.ndarray) -> np.ndarray:
    """(…, n) → (…, n + 1), beginning with 0."""
    summed = np.cumsum(frequencies.astype(np.int64), -1)
    return np.concatenate([np.zeros((*summed.shape[:-1], 1), np.int64), summed], -1)


class SparseCodedRows(EntropyRows):
    """Rows of few weights of many anchors (method="sparse"). Vectors are added up without the rows in full."""

    def __init__(self, arrays: dict[str, np.ndarray], about: JSON):
        super().__init__(arrays, about, len(arrays["groups"]))
        self.rate, self.group, K = int(about["rate"]), arrays["groups"].astype(np.int64), self.columns
        self.ends = cumulative(arrays["widths"])
        self.firsts = cumulative(arrays["value_frequencies"])
        self.norm_firsts = cumulative(arrays.get("norm_frequencies", np.empty(0, np.uint16)))
        if K >= TOTAL // 2 or (K and arrays["widths"].min() < 1) or self.ends[-1] > LONGEST:
            raise DamagedError(f"{K} anchors have {self.ends[-1]} positions; each has one or more, {LONGEST} at most")
        if self.rate > 1 << UNIT:
            raise DamagedError(f"rate is {self.rate}, at most {1 << UNIT}")
        if K and self.group.max() >= len(self.firsts):
            raise DamagedError(f"an anchor has the group {self.group.max()} of {len(self.firsts)}")
        tables = [self.firsts, self.norm_firsts[None]] if len(self.norm_firsts) > 1 else [self.firsts]
        if any((table[:, -1] != TOTAL).any() or (np.diff(table) < 1).any() for table in tables):
            raise DamagedError("frequencies do not sum to 2¹⁶, or one is 0")
        if "anchor_scales" not in arrays:
            raise DamagedError("it lacks 'anchor_scales'")
        self.reach = reached(int(self.ends[-1]), self.rate)
        norms = np.arange(max(len(self.norm_firsts) - 1, 1)) * NORM_STEP
        with np.errstate(over="ignore"):  # `largest` says so
            self.scales = (self.norm_base * 2.0**norms).astype(np.float32)

    @property
    def largest(self) -> np.ndarray:
        """A bound of |T| by column, (K + 1,)."""
        return self.bound(VALUES * float(self.step), float(self.scales[-1]))

    @cached_property
    def tables(self) -> tuple[np.ndarray, ...]:
        """What the compiled decoder reads: `ends` and `reach`; how many positions come before a slot, by its upper bits; the
        anchor of each place, K behind them; where an anchor's values begin in the last array, which has their first slots, by
        group, with 2¹⁶ behind them, in registers of 16. All of it in few bytes: it is to stay in the first cache."""
        positions = np.searchsorted(self.reach, np.arange(0, TOTAL + len(self.group), 1 << GUESS), "right") - 1
        anchors = np.append(np.repeat(np.arange(len(self.group)), np.diff(self.ends)), len(self.group))
        firsts = np.full((len(self.firsts), VALUES + 16), TOTAL, np.int32)
        firsts[:, : VALUES + 1] = self.firsts
        tables = (self.ends, self.reach, positions, anchors, self.group * firsts.shape[1])
        return *(table.astype(np.int32) for table in tables), firsts.reshape(-1)

    def compiled_decoder(self, wanted: Wanted, onto: np.ndarray | None, out: np.ndarray) -> Callable[[int, int], int] | None:
        kernel, (rows, weights, order, uses) = kernels("tables.sparse_entropy_kernel"), wanted
        if kernel is None:
            return None
        onto = np.eye(self.columns + 1, dtype=np.float32) if onto is None else np.ascontiguousarray(onto, np.float32)
        file, tables = (self.payload, self.offsets, self.per_block, self.entries), (*self.tables, self.norm_firsts)

        return lambda a, b: kernel.decode_sparse(
            file, tables, rows[a:b], weights[a:b], self.step, self.scales, onto, order, uses[a : b + 1], out
        )

    def decode_block(self, data: np.ndarray, block: int, rows: range) -> list[np.ndarray]:
        reader, K, found = BlockReader(data, block, PRECISION), self.columns, []

        def take(firsts: list[int]) -> int:
            symbol = max(n for n in range(len(firsts) - 1) if firsts[n] <= reader.slot)
            reader.take(firsts[symbol], firsts[symbol + 1] - firsts[symbol])
            return symbol

        for _ in rows:
            row, after = np.zeros(K + 1, np.float32), 0
            row[K] = self.scales[take(self.norm_firsts.tolist()) if len(self.norm_firsts) > 1 else 0]
            while True:
                reach = self.reach[self.ends[after:] - self.ends[after]]
                firsts = np.arange(K - after + 1) + ((TOTAL - (K - after) - 1) * reach >> PRECISION)
                k = after + take([*firsts.tolist(), TOTAL])
                if k == K:
                    break
                row[k] = np.float32(1 + take(self.firsts[self.group[k]].tolist())) * self.step
                after = k + 1
            found.append(row)
        return found
