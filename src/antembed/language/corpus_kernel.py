"""Bytes → numbers of the tokens between white space, in one pass; new tokens are numbered as they come.

`language/corpus.py` reads files with it; `str.split` is its plain twin.
"""

from typing import Any

import numpy as np

from antembed.native.compile import compile_kernel

FNV, PRIME = np.uint64(0xCBF29CE484222325), np.uint64(0x100000001B3)
SPREAD = np.uint64(0x9E3779B97F4A7C15)
NEWLINE, SPACE = 10, 32
DONE, TABLE_FULL, BYTES_FULL, OUT_FULL = 0, 1, 2, 3
EMPTY = -1


@compile_kernel(nogil=True)
def _find(text: Any, start: int, stop: int, mix: Any, slots: Any, hashes: Any, letters: Any, ends: Any) -> Any:
    """The slot of text[start:stop], or the free one where it belongs."""
    mask = len(slots) - 1
    slot = np.int64((mix * SPREAD) >> np.uint64(33)) & mask
    while slots[slot] != EMPTY:
        number = slots[slot]
        if hashes[slot] == mix:
            first = ends[number - 1] if number else 0
            if ends[number] - first == stop - start:
                same = True
                for i in range(stop - start):
                    if letters[first + i] != text[start + i]:
                        same = False
                        break
                if same:
                    return slot
        slot = (slot + 1) & mask
    return slot


@compile_kernel(nogil=True)
def number_tokens(
    text: Any, start: int, line_end: int, slots: Any, hashes: Any, letters: Any, ends: Any, counts: Any, known: int, out: Any
) -> Any:
    """Number the tokens of text[start:], which ends with white space; `line_end` ≥ 0 is put for each newline.

    → (position, tokens written, tokens known, why it stopped). What is full is to be made larger; then go on from there.
    """
    p, n, written = start, len(text), 0
    while p < n:
        if written == len(out):
            return p, written, known, OUT_FULL
        if text[p] <= SPACE:
            if text[p] == NEWLINE and line_end >= 0:
                out[written] = line_end
                counts[line_end] += 1
                written += 1
            p += 1
            continue
        q, mix = p, FNV
        while q < n and text[q] > SPACE:
            mix = (mix ^ np.uint64(text[q])) * PRIME
            q += 1
        slot = _find(text, p, q, mix, slots, hashes, letters, ends)
        number = slots[slot]
        if number == EMPTY:
            if 2 * known >= len(slots) or known == len(ends):
                return p, written, known, TABLE_FULL
            first = ends[known - 1] if known else 0
            if first + q - p > len(letters):
                return p, written, known, BYTES_FULL
            for i in range(q - p):
                letters[first + i] = text[p + i]
            number = known
            ends[known] = first + q - p
            slots[slot], hashes[slot] = number, mix
            known += 1
        out[written] = number
        counts[number] += 1
        written += 1
        p = q
    return p, written, known, DONE


@compile_kernel(nogil=True)
def rehash(old_slots: Any, old_hashes: Any, slots: Any, hashes: Any) -> None:
    """Put all entries into a larger table."""
    mask = len(slots) - 1
    for i in range(len(old_slots)):
        if old_slots[i] == EMPTY:
            continue
        slot = np.int64((old_hashes[i] * SPREAD) >> np.uint64(33)) & mask
        while slots[slot] != EMPTY:
            slot = (slot + 1) & mask
        slots[slot], hashes[slot] = old_slots[i], old_hashes[i]


class TokenTable:
    """Tokens and their counts, numbered in the order in which they came."""

    def __init__(self, first: tuple[bytes, ...] = ()):
        self.slots = np.full(1 << 12, EMPTY, np.int32)
        self.hashes = np.zeros(1 << 12, np.uint64)
        self.letters, self.ends = np.empty(1 << 14, np.uint8), np.empty(1 << 11, np.int64)
        self.counts, self.known = np.zeros(1 << 11, np.int64), 0
        if first:
            self.number(b" ".join(first) + b" ", None)
            self.counts[:] = 0

    def number(self, text: bytes, line_end: int | None) -> np.ndarray:
        """The numbers of the tokens of a text that ends with white space; `line_end` is the number put for each newline."""
        data = np.frombuffer(text, np.uint8)
        out = np.empty(len(data) // 2 + 1 + text.count(b"\n"), np.int32)
        position, total = 0, 0
        while True:
            position, written, self.known, why = number_tokens(
                *(data, position, -1 if line_end is None else line_end, self.slots, self.hashes, self.letters, self.ends),
                *(self.counts, self.known, out[total:]),
            )
            total += written
            if why in (DONE, OUT_FULL):
                return out[:total]
            self._grow(why, len(data))

    def _grow(self, why: int, room: int) -> None:
        if why == BYTES_FULL:
            self.letters = np.concatenate([self.letters, np.empty(max(len(self.letters), room), np.uint8)])
            return
        slots, hashes = np.full(2 * len(self.slots), EMPTY, np.int32), np.zeros(2 * len(self.slots), np.uint64)
        rehash(self.slots, self.hashes, slots, hashes)
        self.slots, self.hashes = slots, hashes
        self.ends = np.concatenate([self.ends, np.empty(len(self.ends), np.int64)])
        self.counts = np.concatenate([self.counts, np.zeros(len(self.counts), np.int64)])

    def tokens(self) -> list[bytes]:
        """All of them, in the order of their numbers."""
        ends = self.ends[: self.known].tolist()
        letters = self.letters[: ends[-1] if ends else 0].tobytes()
        return [letters[a:b] for a, b in zip([0, *ends], ends, strict=False)]
