"""Decodes `coded` rows (tables/entropy_kernel.py writes them), several at a time; tables/entropy_rows.py has the plain twin.

A symbol waits for the one before it, so one row alone leaves the processor idle: rows are decoded side by side, column by
column, in LANES. With AVX-512 (tables/entropy_avx512_kernel.py) 16 of them are one register; else each is decoded by itself,
without branches that depend on its numbers. Limits of `seen` take the place of the ratio of seen and promised, since what is
promised depends on the column and the row's class alone.

Arguments that belong together are one: `file` is data, offsets, positions, rows of a block and entries; `tables` are those of
tables/entropy_rows.py.
"""

from typing import Any

import numpy as np

from antembed.native.compile import compiled
from antembed.native.vector import VECTOR, fence, multiply, prefetch_near
from antembed.tables.entropy_avx512_kernel import columns_by_register
from antembed.tables.entropy_kernel import (
    AT,
    AVX512,
    BYTE,
    END,
    FIELDS,
    GOES,
    LANES,
    LEVEL,
    LINE,
    REACH,
    ROW,
    STATE,
    STOP,
    aligned,
    columns_by_number,
    last_entry,
    remember,
)
from antembed.tables.sparse_product_kernel import mix, streams

decode_columns = columns_by_register if AVX512 else columns_by_number


@compiled
def _level(row: int, positions: Any, levels: int) -> int:
    """How many of `positions`, which rise, are ≤ row; at most levels − 1. np.searchsorted takes a second to compile."""
    low, high = 0, len(positions)
    while low < high:
        middle = (low + high) >> 1
        if positions[middle] <= row:
            low = middle + 1
        else:
            high = middle
    return min(low, levels - 1)


@compiled
def _seek(lane: int, lanes: Any, file: Any, wanted: Any, levels: int) -> bool:
    """Begin where the next wanted row does, or as near before it as is known. → False: the block has no bytes."""
    data, offsets, positions, rows, entries = file
    row, byte, stop, state = last_entry(wanted[lanes[AT, lane]], rows, data, offsets, entries)
    lanes[ROW, lane], lanes[BYTE, lane], lanes[STOP, lane], lanes[STATE, lane] = row, byte, stop, state
    lanes[LEVEL, lane] = _level(row, positions, levels)
    return bool(stop >= 0)


@compiled
def _admit(active: int, at: int, lanes: Any, file: Any, wanted: Any, levels: int) -> tuple[int, int]:
    """Wanted rows from `at` on for the lanes that are free. A row that is found only by way of those before it goes into their
    lane. → active lanes, or −1 − the block that has no bytes; the next wanted row."""
    data, offsets, _, rows, entries = file
    while active < LANES and at < len(wanted):
        lanes[AT, active] = at
        block = wanted[at] // rows
        at += 1
        while at < len(wanted) and wanted[at] // rows == block and entries[wanted[at]] == 0:
            at += 1
        lanes[END, active] = at
        if not _seek(active, lanes, file, wanted, levels):
            return -1 - block, at
        active += 1
    for ahead in range(at, min(at + LANES, len(wanted))):  # which are next
        row = wanted[ahead]
        prefetch_near(entries, wanted[min(ahead + LANES, len(wanted) - 1)])
        byte = offsets[row // rows] + (entries[row] >> 32)
        if 0 <= byte < len(data) - LINE:
            prefetch_near(data, byte)
            prefetch_near(data, byte + LINE)
    return active, at


@compiled
def _choose(active: int, lanes: Any) -> int:
    """Which lanes take part: those of the lowest level, within reach of each other. → the level."""
    level, base = lanes[LEVEL, 0], np.int64(-1)
    for lane in range(active):
        level = min(level, lanes[LEVEL, lane])
    for lane in range(active):
        if lanes[LEVEL, lane] == level and (base < 0 or lanes[BYTE, lane] < base):
            base = lanes[BYTE, lane]
    for lane in range(active):
        lanes[GOES, lane] = lanes[LEVEL, lane] == level and lanes[BYTE, lane] - base < REACH
    return level


@compiled
def _decode(active: int, lanes: Any, file: Any, tables: Any, wanted: Any, factors: Any, own: Any, found: Any) -> int:
    """One row of each lane that takes part → found. → −1, or the block that is damaged. After it GOES says which of the lanes'
    rows are wanted ones."""
    data, offsets, _, rows, entries = file
    level = _choose(active, lanes)
    for lane in range(active):
        own[lane] = factors[lanes[AT, lane]]
    decode_columns(active, level, lanes, data, tables, own, found)
    for lane in range(active):
        if lanes[GOES, lane]:
            row = lanes[ROW, lane]
            if lanes[BYTE, lane] > lanes[STOP, lane]:
                return row // rows
            remember(row + 1, rows, offsets, lanes[BYTE, lane], lanes[STATE, lane], entries)
            lanes[GOES, lane] = wanted[lanes[AT, lane]] == row
            if lanes[GOES, lane] == 0:
                lanes[ROW, lane] = row + 1
    return -1


@compiled
def _advance(active: int, lanes: Any, file: Any, wanted: Any, levels: int) -> int:
    """Lanes whose row was wanted go on to the next, or are done. → how many lanes are left, or −1 − a block without bytes."""
    for lane in range(active - 1, -1, -1):
        if lanes[GOES, lane]:
            lanes[AT, lane] += 1
            if lanes[AT, lane] == lanes[END, lane]:
                active -= 1
                for field in range(FIELDS):
                    lanes[field, lane] = lanes[field, active]
            elif not _seek(lane, lanes, file, wanted, levels):
                return -1 - lanes[ROW, lane] // file[3]
        else:
            lanes[LEVEL, lane] = _level(lanes[ROW, lane], file[2], levels)
    return active


@compiled
def _to_front(active: int, lanes: Any, found: Any, done: Any) -> int:
    """Move the rows of those lanes whose rows are wanted to the front of `found`. → how many; `done`: which."""
    some = 0
    for lane in range(active):
        if lanes[GOES, lane]:
            if some < lane:
                for j in range(len(found)):
                    found[j, some] = found[j, lane]
            done[some] = lanes[AT, lane]
            some += 1
    return some


@compiled
def _multiply(some: int, columns: int, found: Any, onto: Any, vectors: Any) -> None:
    """The first rows of `found`, a column each, times `onto` → vectors; eight at a time, without the last lines that are 0."""
    stride = onto.shape[1]
    for first in range(0, some, VECTOR):
        used = len(onto)
        while used > 1 and not found[used - 1, first : first + VECTOR].any():
            used -= 1
        multiply(VECTOR, used, found, first, 1, LANES, columns, stride, onto, 0, vectors, first * stride)


@compiled
def decode(file: Any, tables: Any, wanted: Any, factors: Any, scales: Any, onto: Any, order: Any, uses: Any, out: Any) -> int:
    """The values of rows `wanted` (sorted, each once) times their `factors`, after their `scales`, times `onto` (of
    vector.spaced; without lines: as they are) → out[order[uses[i] : uses[i + 1]]]. → −1, or the block that is damaged.

    limits (levels, K, LIMITS), bases (levels·K): a row's level is how many of `positions` are ≤ its number."""
    levels, K = tables[0].shape[:2]
    lanes, found, own = np.zeros((FIELDS, LANES), np.int64), aligned(K + 1, LANES, np.float32), aligned(1, LANES, np.float32)[0]
    vectors, done = aligned(LANES, onto.shape[1], np.float32), np.empty(LANES, np.int64)
    k, t, streamed = np.zeros(1, np.int64), np.ones(1, np.float32), streams(out)
    columns = -(-out.shape[1] // VECTOR) * VECTOR
    active, at = _admit(0, 0, lanes, file, wanted, levels)
    while active > 0:
        damaged = _decode(active, lanes, file, tables, wanted, factors, own, found[1:])
        if damaged >= 0:
            return damaged
        some = _to_front(active, lanes, found, done)
        for n in range(some):
            found[0, n] = scales[done[n]]
        if len(onto):
            _multiply(some, columns, found, onto, vectors)
        for n in range(some):
            for use in range(uses[done[n]], uses[done[n] + 1]):
                if len(onto) == 0:
                    for j in range(K):
                        out[order[use], j] = found[j + 1, n]
                    out[order[use], K] = found[0, n]
                else:
                    k[0] = n
                    mix(0, 1, k, t, vectors, out, order[use], streamed)
        active = _advance(active, lanes, file, wanted, levels)
        if active >= 0:
            active, at = _admit(active, at, lanes, file, wanted, levels)
    fence()
    return -1 - active if active < 0 else -1
