"""Where rows begin within blocks of entropy-coded rows.

Rows of a block follow each other, so a row is found by decoding those before it: once. `entries` (V,) int64 remembers where
rows begin, byte of the block · 2³² + state of the decoder; 0: not yet known. Look-ups fill it. Threads that write the same
entry write the same number.
"""

from typing import Any

from antembed.kernels.compiled import compile_kernel
from antembed.kernels.vector import four_bytes

compiled: Any = compile_kernel(nogil=True, error_model="numpy")


@compiled
def last_entry(row: int, rows: int, data: Any, offsets: Any, entries: Any) -> tuple[int, int, int, int]:
    """The last known entry up to a row: its row, next byte, end of the block, state. A block without bytes ends at −1."""
    first, begin, stop = row // rows * rows, offsets[row // rows], offsets[row // rows + 1]
    if begin < 0 or stop - begin < 4 or stop > len(data):
        return row, 0, -1, 0
    while row > first and entries[row] == 0:
        row -= 1
    if row > first:
        return row, begin + (entries[row] >> 32), stop, entries[row] & 0xFFFFFFFF
    return row, begin + 4, stop, four_bytes(data, begin)


@compiled
def remember(row: int, rows: int, offsets: Any, byte: int, state: int, entries: Any) -> None:
    """Where this row begins; the first of a block needs no entry."""
    if row < len(entries) and row % rows:
        entries[row] = byte - offsets[row // rows] << 32 | state


@compiled
def next_bytes(data: Any, byte: int) -> int:
    """Four bytes from this one on as a number, most significant first; behind the data they are 0."""
    held = min(byte, len(data) - 4)
    return four_bytes(data, held) << 8 * min(byte - held, 4) & 0xFFFFFFFF
