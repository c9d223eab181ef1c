"""Entropy-coded sparse rows: few non-negative weights a row, of many anchors, in blocks of rows that are read by themselves.

    payload, offsets     bytes of the blocks, and where each begins (blocks + 1)
    widths               (K,) uint16: how often each anchor is used
    groups               (K,) uint8: which frequencies its values have
    value_frequencies    (groups, 48) uint16: of the values 1 … 48; they sum to 2¹⁶
    norm_frequencies     (norms,) uint16, where lengths are stored apart: of base·2^(norm/4); they sum to 2¹⁶
    anchors              (K, d) int8, times anchor_scales (K,) fp16
    mean                 (d,) fp16
    about                step, rate, rows_per_block, and weighting as in coded.py

A row is its norm, then its anchors in ascending order, each with its value, then the end. Anchor k covers widths[k] places of
a line; from place to place the next weight has the chance rate/2³⁰. Of 2¹⁶ slots, one for each anchor that may follow and one
for the end are set aside; of the others, the anchors up to a place take what `reached` says, and the end takes the rest
(tables/sparse_entropy_kernel.py, first_slot). The last column of T is 1: its anchor is the mean.
"""

from functools import cached_property

import numpy as np

from antembed.files import JSON
from antembed.tables.container import DamagedError
from antembed.tables.encodings import Rows
from antembed.tables.entropy_rows import LARGEST_BLOCK, check_scales, largest_rows, row_weights
from antembed.tables.optional_kernels import decode_on_all_cores, empty_rows, kernels

PRECISION, VALUES, NORM_STEP = 16, 48, 1 / 4
TOTAL, LOW = 1 << PRECISION, 1 << 23
LONGEST = 1 << 16  # places of the line, at most
UNIT = 30  # bits of a chance
GUESS = 4  # lower bits of a slot that a guess leaves out


def reached(places: int, rate: int) -> np.ndarray:
    """(places + 1,): the chance, of 2¹⁶, that a weight comes within so many places. In whole numbers: the same everywhere."""
    found, left = np.empty(places + 1, np.int64), 1 << UNIT
    for place in range(places + 1):
        found[place] = ((1 << UNIT) - left) >> (UNIT - PRECISION)
        left -= left * rate >> UNIT
    return found


def cumulative(frequencies: np.ndarray) -> np.ndarray:
    """(…, n) → (…, n + 1), beginning with 0."""
    summed = np.cumsum(frequencies.astype(np.int64), -1)
    return np.concatenate([np.zeros((*summed.shape[:-1], 1), np.int64), summed], -1)


class SparseCodedRows(Rows):
    """ids (n,) → rows of T (n, K + 1), or their vectors."""

    def __init__(self, arrays: dict[str, np.ndarray], about: JSON):
        self.payload, self.offsets = arrays["payload"], arrays["offsets"].astype(np.int64)
        self.total, self.per_block, self.rate = int(about["objects"]), int(about["rows_per_block"]), int(about["rate"])
        self.step, self.norm_base = np.float32(about["step"]), float(about.get("norm_base", 1.0))
        self.weighting, self.mean_place = float(about["weighting"]), float(about["mean_place"])
        self.group = arrays["groups"].astype(np.int64)
        self.ends = cumulative(arrays["widths"])
        self.firsts = cumulative(arrays["value_frequencies"])
        self.norm_firsts = cumulative(arrays.get("norm_frequencies", np.empty(0, np.uint16)))
        self._check(arrays)
        self.reach = reached(int(self.ends[-1]), self.rate)
        norms = np.arange(max(len(self.norm_firsts) - 1, 1)) * NORM_STEP
        with np.errstate(over="ignore"):  # `largest` says so
            self.scales = (self.norm_base * 2.0**norms).astype(np.float32)

    def _check(self, arrays: dict[str, np.ndarray]) -> None:
        """Contents; checks.py has checked types and shapes."""
        blocks, K = -(-self.total // max(self.per_block, 1)), len(self.group)
        if not 1 <= self.per_block * max(K, 1) <= LARGEST_BLOCK:
            raise DamagedError(f"blocks of {self.per_block} rows of {K} numbers; at most {LARGEST_BLOCK} are read")
        if len(self.offsets) != blocks + 1 or self.offsets[0] != 0 or (np.diff(self.offsets) < 4).any():
            raise DamagedError(f"{len(self.offsets)} offsets for {blocks} blocks, or they do not rise")
        if self.offsets[-1] != len(self.payload):
            raise DamagedError(f"the blocks end at {self.offsets[-1]} of {len(self.payload)} bytes")
        widths = arrays["widths"]
        if K >= TOTAL // 2 or (K and widths.min() < 1) or self.ends[-1] > LONGEST:
            raise DamagedError(f"{K} anchors have {self.ends[-1]} places; each has one or more, {LONGEST} at most")
        if self.rate > 1 << UNIT:
            raise DamagedError(f"rate is {self.rate}, at most {1 << UNIT}")
        check_scales(float(self.step), self.mean_place, self.norm_base)
        if not 0 <= self.weighting <= 1:
            raise DamagedError(f"weighting is {self.weighting}, not between 0 and 1")
        if K and self.group.max() >= len(self.firsts):
            raise DamagedError(f"an anchor has the group {self.group.max()} of {len(self.firsts)}")
        tables = [self.firsts, self.norm_firsts[None]] if len(self.norm_firsts) > 1 else [self.firsts]
        if any((table[:, -1] != TOTAL).any() or (np.diff(table) < 1).any() for table in tables):
            raise DamagedError("frequencies do not sum to 2¹⁶, or one is 0")
        if "anchor_scales" not in arrays:
            raise DamagedError("it lacks 'anchor_scales'")

    @property
    def largest(self) -> np.ndarray:
        """A bound of |T| by column, (K + 1,)."""
        lightest = float(row_weights(np.array([0, max(self.total - 1, 0)]), self.weighting, self.mean_place).min())
        return largest_rows(VALUES * float(self.step), len(self.group), float(self.scales[-1]), lightest)

    @cached_property
    def entries(self) -> np.ndarray:
        """(V,): where rows begin, as in coded.py."""
        return np.zeros(self.total, np.int64)

    @cached_property
    def _compiled(self) -> tuple[np.ndarray, ...]:
        """What the compiled decoder reads: `ends` and `reach`; how many places come before a slot, by its upper bits; the
        anchor of each place, K behind them; where an anchor's values begin in the last array, which has their first slots, by
        group, with 2¹⁶ behind them, in registers of 16. All of it in few bytes: it is to stay in the first cache."""
        places = np.searchsorted(self.reach, np.arange(0, TOTAL + len(self.group), 1 << GUESS), "right") - 1
        anchors = np.append(np.repeat(np.arange(len(self.group)), np.diff(self.ends)), len(self.group))
        firsts = np.full((len(self.firsts), VALUES + 16), TOTAL, np.int32)
        firsts[:, : VALUES + 1] = self.firsts
        tables = (self.ends, self.reach, places, anchors, self.group * firsts.shape[1])
        return *(table.astype(np.int32) for table in tables), firsts.reshape(-1)

    def mixed(self, ids: np.ndarray, onto: np.ndarray, compiled: bool = True) -> np.ndarray:
        """Rows of T times `onto` (K + 1, width): (n, width)."""
        out, order = empty_rows(len(ids), onto.shape[1]), np.argsort(ids)
        begins = np.flatnonzero(np.diff(ids[order], prepend=-1))  # of each row among those that are the same
        wanted, uses = ids[order][begins], np.append(begins, len(ids))
        weights = row_weights(wanted, self.weighting, self.mean_place)
        if compiled and (kernel := kernels("tables.sparse_entropy_kernel")) is not None:
            onto = np.ascontiguousarray(onto, np.float32)
            known, entries = self._compiled, self.entries  # made here, once, and not by every thread

            def decode(a: int, b: int) -> int:
                damaged: int = kernel.decode_sparse(
                    *(self.payload, self.offsets, wanted[a:b], self.per_block, *known),
                    *(self.norm_firsts, self.step, self.scales, weights[a:b], entries, onto, order),
                    *(uses[a : b + 1], out),
                )
                return damaged

            decode_on_all_cores(decode, len(wanted), onto.shape[1])
            return out
        for block in np.unique(wanted // self.per_block).tolist():
            rows = self._block(block)
            for n in np.flatnonzero(wanted // self.per_block == block):
                norm, chosen = rows[wanted[n] - block * self.per_block]
                vector = self.scales[norm] * onto[-1]
                for k, value in chosen:
                    vector += np.float32(value) * self.step * (self.scales[norm] / weights[n]) * onto[k]
                out[order[uses[n] : uses[n + 1]]] = vector
        return out

    def __call__(self, ids: np.ndarray) -> np.ndarray:
        return self.mixed(ids, np.eye(len(self.group) + 1, dtype=np.float32))

    def vectors(self, ids: np.ndarray, anchors: np.ndarray) -> np.ndarray:
        """Rows times `anchors` (K + 1, d), without the rows in full."""
        return self.mixed(ids, anchors)

    def _block(self, block: int) -> list[tuple[int, list[tuple[int, int]]]]:
        """All rows of a block, symbol by symbol: what the compiled decoder does. A row: its norm, and (anchor, value)s."""
        data = self.payload[self.offsets[block] : self.offsets[block + 1]].tolist()
        state, at, K = int.from_bytes(bytes(data[:4]), "big"), 4, len(self.group)

        def take(firsts: list[int]) -> int:
            nonlocal state, at
            slot = state & (TOTAL - 1)
            symbol = max(n for n in range(len(firsts) - 1) if firsts[n] <= slot)
            state = (firsts[symbol + 1] - firsts[symbol]) * (state >> PRECISION) + slot - firsts[symbol]
            while state < LOW:
                if at >= len(data):
                    raise DamagedError(f"block {block} ends too soon")
                state = state << 8 | data[at]
                at += 1
            return symbol

        rows = []
        for _ in range(min(self.per_block, self.total - block * self.per_block)):
            norm = take(self.norm_firsts.tolist()) if len(self.norm_firsts) > 1 else 0
            weights: list[tuple[int, int]] = []
            after = 0
            while True:
                reach = self.reach[self.ends[after:] - self.ends[after]]
                firsts = np.arange(K - after + 1) + ((TOTAL - (K - after) - 1) * reach >> PRECISION)
                k = after + take([*firsts.tolist(), TOTAL])
                if k == K:
                    break
                weights.append((k, 1 + take(self.firsts[self.group[k]].tolist())))
                after = k + 1
            rows.append((norm, weights))
        return rows
