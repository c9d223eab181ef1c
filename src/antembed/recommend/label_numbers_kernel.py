"""Keys → numbers 0, 1, 2, … in the order of their first appearance: a hash table that grows with the stream."""

from typing import Any

import numpy as np

from antembed.native.compile import compile_kernel

EMPTY = -1
PIECE = 1 << 16
SPREAD = np.uint64(0x9E3779B97F4A7C15)  # 2⁶⁴ divided by the golden ratio: scatters neighbouring keys

compiled = compile_kernel(nogil=True)


@compiled
def _slot(key: Any, keys: Any, numbers: Any) -> Any:
    """The slot of the key, or the free slot for it."""
    mask = np.uint64(keys.shape[0] - 1)
    hashed = np.uint64(key) * SPREAD
    slot = (hashed ^ (hashed >> np.uint64(32))) & mask
    while numbers[slot] != EMPTY and keys[slot] != key:
        slot = (slot + np.uint64(1)) & mask
    return slot


@compiled
def _insert(stream: Any, keys: Any, numbers: Any, count: int, out: Any, firsts: Any) -> int:
    """out[p] = the number of stream[p]; firsts[j] = where the j-th new key first appeared; → the number of keys now."""
    new = 0
    for p in range(stream.shape[0]):
        slot = _slot(stream[p], keys, numbers)
        if numbers[slot] == EMPTY:
            keys[slot] = stream[p]
            numbers[slot] = count + new
            firsts[new] = p
            new += 1
        out[p] = numbers[slot]
    return count + new


@compiled
def _move(old_keys: Any, old_numbers: Any, keys: Any, numbers: Any) -> None:
    for old in range(old_keys.shape[0]):
        if old_numbers[old] != EMPTY:
            slot = _slot(old_keys[old], keys, numbers)
            keys[slot] = old_keys[old]
            numbers[slot] = old_numbers[old]


@compiled
def count_digits(numbers: Any) -> int:
    """The number of characters of all numbers in decimal."""
    total = 0
    for n in numbers:
        size, power = np.uint64(n if n >= 0 else -n), np.uint64(10)
        digits = 1
        while digits < 19 and size >= power:
            power *= np.uint64(10)
            digits += 1
        total += digits + (n < 0)
    return total


class Numbering:
    """int64 keys → int32 numbers. The table is at most half full, so that a look-up takes a step or two."""

    def __init__(self) -> None:
        self.count = 0
        self._keys, self._numbers = np.empty(1024, np.int64), np.full(1024, EMPTY, np.int32)

    def __call__(self, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The numbers of these keys, and the position of the first occurrence of each new one."""
        out, firsts, before = np.empty(len(keys), np.int32), np.empty(len(keys), np.int64), self.count
        for start in range(0, len(keys), PIECE):  # piece by piece: room is made for as many new keys as there are keys
            piece = slice(start, start + PIECE)
            self._make_room(len(keys[piece]))
            new = self.count - before
            self.count = _insert(keys[piece], self._keys, self._numbers, self.count, out[piece], firsts[new:])
            firsts[new : self.count - before] += start
        return out, firsts[: self.count - before]

    def _make_room(self, more: int) -> None:
        size = len(self._keys)
        while size < 2 * (self.count + more):
            size *= 2
        if size > len(self._keys):
            grown = np.empty(size, np.int64), np.full(size, EMPTY, np.int32)
            _move(self._keys, self._numbers, *grown)
            self._keys, self._numbers = grown
