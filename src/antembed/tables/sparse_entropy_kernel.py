"""Encodes and decodes sparse rows: which anchors, and how much of each; tables/sparse_entropy_rows.py describes the format and
has the plain decoder."""

from typing import Any

import numpy as np

from antembed.native.compile import compiled
from antembed.native.vector import LIMITS, count_reached, fence
from antembed.tables.entropy_kernel import LOW, encode_symbols, last_entry, next_bytes, remember
from antembed.tables.sparse_product_kernel import mix, streams

PRECISION = 16  # bits of a symbol's share
TOTAL = 1 << PRECISION
GUESS = 4  # lower bits of a slot that a guess leaves out
LANES, TOGETHER = 4, 16  # rows that are decoded side by side, and before they are added up


@compiled
def first_slot(after: int, anchor: int, ends: Any, reach: Any) -> int:
    """Where the slots of `anchor` (K: no further one) begin, if the row's anchors so far are below `after`."""
    K = len(ends) - 1
    return anchor - after + ((TOTAL - (K - after) - 1) * reach[ends[anchor] - ends[after]] >> PRECISION)


@compiled
def encode_sparse(
    index: Any, value: Any, count: Any, norms: Any, ends: Any, reach: Any, group: Any, firsts: Any, norm_firsts: Any, rows: int,
    out: Any, offsets: Any,
) -> int:  # fmt: skip
    """Rows of ascending anchors → bytes in `out`, blocks of `rows` rows; offsets (blocks + 1,). `firsts` (groups, values + 1)
    and `norm_firsts` (norms + 1) are cumulative frequencies; len(norms) is 0 where lengths are not apart. → how many bytes, or
    −1 if `out` is too small."""
    n, most = index.shape
    K = len(ends) - 1
    starts, sizes = np.empty(rows * (2 * most + 2), np.int64), np.empty(rows * (2 * most + 2), np.int64)
    end = 0
    for block in range((n + rows - 1) // rows):
        symbols = 0
        for i in range(block * rows, min((block + 1) * rows, n)):
            if len(norms):
                starts[symbols] = norm_firsts[norms[i]]
                sizes[symbols] = norm_firsts[norms[i] + 1] - starts[symbols]
                symbols += 1
            after = 0
            for s in range(count[i] + 1):
                k = index[i, s] if s < count[i] else K
                starts[symbols] = first_slot(after, k, ends, reach)
                sizes[symbols] = (first_slot(after, k + 1, ends, reach) if k < K else TOTAL) - starts[symbols]
                symbols += 1
                if k < K:
                    starts[symbols] = firsts[group[k], value[i, s] - 1]
                    sizes[symbols] = firsts[group[k], value[i, s]] - starts[symbols]
                    symbols += 1
                    after = k + 1
        end = encode_symbols(starts, sizes, symbols, PRECISION, out, end)
        if end < 0:
            return -1
        offsets[block + 1] = end
    return end


@compiled
def _found(firsts: Any, slot: int) -> int:
    """The symbol whose slots hold this one."""
    low, high = 0, len(firsts) - 1
    while high - low > 1:
        middle = (low + high) >> 1
        if firsts[middle] <= slot:
            low = middle
        else:
            high = middle
    return low


@compiled
def _at(table: Any, place: int) -> Any:
    """table[place], place ≥ 0: unsigned, or each use asks whether it is below 0."""
    return np.int64(table[np.uint64(place)])


@compiled
def _next_anchor(after: int, slot: int, ends: Any, reach: Any, positions: Any, anchors: Any) -> tuple[int, int, int]:
    """The anchor (K: no further one) whose slots hold this one, and the first of its slots and of those behind. `positions` and
    `anchors` say which it is, or nearly."""
    K: Any = len(ends) - 1
    begin, end, may_follow = _at(ends, after), _at(ends, K), K - after
    rest = TOTAL - may_follow - 1
    guess = _at(anchors, min(begin + _at(positions, slot + (slot * may_follow >> PRECISION) >> GUESS), end))
    left = max(slot - (guess - after), 0)  # without what is set aside for those before it
    k = _at(anchors, min(begin + _at(positions, left + (left * may_follow >> PRECISION) >> GUESS), end))
    first = k - after + (rest * _at(reach, _at(ends, k) - begin) >> PRECISION)  # first_slot
    behind = k + 1 - after + (rest * _at(reach, _at(ends, k + 1) - begin) >> PRECISION) if k < K else TOTAL
    while first > slot:
        k -= 1
        first, behind = k - after + (rest * _at(reach, _at(ends, k) - begin) >> PRECISION), first
    while behind <= slot:
        k += 1
        following = k + 1 - after + (rest * _at(reach, _at(ends, k + 1) - begin) >> PRECISION) if k < K else TOTAL
        first, behind = behind, following
    return k, first, behind


@compiled
def _taken(state: int, first: int, behind: int, byte: int, data: Any) -> tuple[int, int]:
    """State and next byte after a symbol of the slots [first, behind)."""
    state = (behind - first) * (state >> PRECISION) + (state & (TOTAL - 1)) - first
    need: Any = np.int64(state < LOW) + np.int64(state < LOW >> 8)
    return state << 8 * need | next_bytes(data, byte) >> 32 - 8 * need, byte + need


@compiled
def _decode_rows(
    rows: int, states: Any, at_bytes: Any, data: Any, tables: Any, norms: Any, counts: Any, after: Any, k: Any, t: Any
) -> None:
    """Rows that begin at `states` and `at_bytes`, which become those of the rows behind them: their norms, counts[i] anchors
    and values, k and t from i·(K + 1) on. `group`: where an anchor's values begin in `firsts`. A symbol waits for the one
    before it, so several rows are decoded side by side."""
    ends, reach, positions, anchors, group, firsts, norm_firsts = tables
    K, active, waiting = len(ends) - 1, min(rows, LANES), min(rows, LANES)
    lanes = np.arange(LANES)
    for row in range(rows):
        norms[row], counts[row], after[row] = 0, 0, 0
        if len(norm_firsts) > 1:
            norms[row] = _found(norm_firsts, states[row] & (TOTAL - 1))
            taken = norm_firsts[norms[row]], norm_firsts[norms[row] + 1]
            states[row], at_bytes[row] = _taken(states[row], *taken, at_bytes[row], data)
    while active > 0:
        lane = 0
        while lane < active:
            i: Any = np.uint64(lanes[np.uint64(lane)])
            state, byte = states[i], at_bytes[i]
            now, first, behind = _next_anchor(after[i], state & (TOTAL - 1), ends, reach, positions, anchors)
            state, byte = _taken(state, first, behind, byte, data)
            if now < K:
                own, slot = _at(group, now), state & (TOTAL - 1)
                reached = count_reached(firsts, own, slot)
                behind = own + reached
                while reached == LIMITS:  # all of them; a group's last numbers are 2¹⁶, more than any slot
                    reached = count_reached(firsts, behind, slot)
                    behind += reached
                state, byte = _taken(state, _at(firsts, behind - 1), _at(firsts, behind), byte, data)
                place: Any = i * np.uint64(K + 1) + np.uint64(counts[i])
                k[place], t[place] = now, np.float32(behind - own)
                counts[i], after[i] = counts[i] + 1, now + 1
            elif waiting < rows:
                lanes[lane] = waiting
                waiting += 1
            else:
                active -= 1
                lanes[lane] = lanes[active]
            states[i], at_bytes[i] = state, byte
            lane += 1


@compiled
def decode_sparse(
    file: Any, tables: Any, wanted: Any, weights: Any, step: Any, scales: Any, onto: Any, order: Any, uses: Any, out: Any
) -> int:
    """Rows `wanted` (sorted, each once), divided by `weights`, times `onto` (K + 1, width) → out[order[uses[i] : uses[i + 1]]].
    → −1, or the block that is damaged. `file` and `tables` are those of tables/sparse_entropy_rows.py."""
    data, offsets, rows, entries = file
    K, streamed = len(tables[0]) - 1, streams(out)
    states, at_bytes, stops = np.empty(TOGETHER, np.int64), np.empty(TOGETHER, np.int64), np.empty(TOGETHER, np.int64)
    one_state, one_byte = np.empty(1, np.int64), np.empty(1, np.int64)
    norms, counts, after = np.empty(TOGETHER, np.int64), np.empty(TOGETHER, np.int64), np.empty(TOGETHER, np.int64)
    k, t, vector = np.empty(TOGETHER * (K + 1), np.int64), np.empty(TOGETHER * (K + 1), np.float32), np.empty_like(onto[:1])
    for start in range(0, len(wanted), TOGETHER):
        some = min(TOGETHER, len(wanted) - start)
        for i in range(some):
            row, byte, stops[i], state = last_entry(wanted[start + i], rows, data, offsets, entries)
            if stops[i] < 0:
                return row // rows
            while row < wanted[start + i]:  # where it begins is not yet known
                one_state[0], one_byte[0] = state, byte
                _decode_rows(1, one_state, one_byte, data, tables, norms, counts, after, k, t)
                state, byte = one_state[0], one_byte[0]
                if byte > stops[i]:
                    return row // rows
                row += 1
                remember(row, rows, offsets, byte, state, entries)
            states[i], at_bytes[i] = state, byte
        _decode_rows(some, states, at_bytes, data, tables, norms, counts, after, k, t)
        for i in range(some):
            at, first, n = start + i, i * (K + 1), counts[i]
            if at_bytes[i] > stops[i]:
                return wanted[at] // rows
            remember(wanted[at] + 1, rows, offsets, at_bytes[i], states[i], entries)
            factor = scales[norms[i]] / weights[at]
            for j in range(n):
                t[first + j] = t[first + j] * step * factor
            k[first + n], t[first + n] = K, scales[norms[i]]
            if uses[at] + 1 == uses[at + 1]:
                mix(first, n + 1, k, t, onto, out, order[uses[at]], streamed)
                continue
            mix(first, n + 1, k, t, onto, vector, 0, False)  # added up once
            k[first], t[first] = 0, 1
            for use in range(uses[at], uses[at + 1]):
                mix(first, 1, k, t, vector, out, order[use], streamed)
    fence()
    return -1
