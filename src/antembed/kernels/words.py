"""UTF-8 text → numbers of its words, in one pass over the bytes. data/words.py says what a word is, and has the plain twin."""

from typing import Any

import numpy as np
from numba import njit

EMPTY = -1
UNKNOWN = 1
FNV, PRIME = np.uint64(0xCBF29CE484222325), np.uint64(0x100000001B3)
SPREAD = np.uint64(0x9E3779B97F4A7C15)
DOTTED_I = 0x130  # the one letter that two stand for in lower case: i and a dot above

compiled: Any = njit(nogil=True, cache=True)
# Else every call would count references to its arrays, which takes longer than the work.
inlined: Any = njit(nogil=True, cache=True, forceinline=True)


@inlined
def _decode(text: Any, p: int) -> Any:
    """The character at p of valid UTF-8, and its size in bytes."""
    first = np.int64(text[p])
    if first < 0x80:
        return first, 1
    second = np.int64(text[p + 1]) & 63
    if first < 0xE0:
        return (first & 31) << 6 | second, 2
    third = np.int64(text[p + 2]) & 63
    if first < 0xF0:
        return (first & 15) << 12 | second << 6 | third, 3
    return (first & 7) << 18 | second << 12 | third << 6 | np.int64(text[p + 3]) & 63, 4


@inlined
def _encode(character: int, out: Any, n: int) -> int:
    """Put the character's bytes at out[n]; → where the next goes."""
    if character < 0x80:
        out[n] = character
        return n + 1
    if character < 0x800:
        out[n] = 0xC0 | character >> 6
        out[n + 1] = 0x80 | character & 63
        return n + 2
    if character < 0x10000:
        out[n] = 0xE0 | character >> 12
        out[n + 1] = 0x80 | character >> 6 & 63
        out[n + 2] = 0x80 | character & 63
        return n + 3
    out[n] = 0xF0 | character >> 18
    out[n + 1] = 0x80 | character >> 12 & 63
    out[n + 2] = 0x80 | character >> 6 & 63
    out[n + 3] = 0x80 | character & 63
    return n + 4


@inlined
def _digit(byte: int) -> bool:
    return 48 <= byte <= 57


@inlined
def _reference(text: Any, p: int, stop: int) -> int:
    """The size of #123; or #x1f; at p, else 0."""
    q = p + 1
    hexadecimal = q < stop and text[q] | 32 == 120
    if hexadecimal:
        q += 1
    first = q
    while q < stop and (_digit(text[q]) or (hexadecimal and 97 <= text[q] | 32 <= 102)):
        q += 1
    return q + 1 - p if first < q < stop and text[q] == 59 else 0


@inlined
def _apostrophe(text: Any, p: int, stop: int) -> int:
    """The size of an apostrophe at p: ', ’, #39; or #x27;, else 0."""
    byte, left = text[p], stop - p
    if byte == 39:
        return 1
    if byte == 0xE2 and text[p + 1] == 0x80 and text[p + 2] == 0x99:
        return 3
    if byte == 35 and left >= 4 and text[p + 1] == 51 and text[p + 2] == 57 and text[p + 3] == 59:
        return 4
    if byte == 35 and left >= 5 and text[p + 1] | 32 == 120 and text[p + 2] == 50 and text[p + 3] == 55 and text[p + 4] == 59:
        return 5
    return 0


@inlined
def _clitic(text: Any, p: int, stop: int, kind: Any) -> int:
    """The size of s, t, d, m, re, ve or ll at p, with no more of a word behind it, else 0."""
    size = 0
    if p < stop:
        a = text[p] | 32
        b = text[p + 1] | 32 if p + 1 < stop else 0
        if a == 115 or a == 116 or a == 100 or a == 109:
            size = 1
        elif ((a == 114 or a == 118) and b == 101) or (a == 108 and b == 108):
            size = 2
    if size and p + size < stop and kind[_decode(text, p + size)[0]]:
        return 0
    return size


@inlined
def _entity(word: Any, n: int) -> bool:
    """Whether it is quot, amp, lt, gt, nbsp or apos."""
    if n == 2:
        return word[1] == 116 and (word[0] == 108 or word[0] == 103)
    if n == 3:
        return word[0] == 97 and word[1] == 109 and word[2] == 112
    if n != 4:
        return False
    a, b, c, d = word[0], word[1], word[2], word[3]
    return (
        (a == 113 and b == 117 and c == 111 and d == 116)
        or (a == 110 and b == 98 and c == 115 and d == 112)
        or (a == 97 and b == 112 and c == 111 and d == 115)
    )


@inlined
def _word(text: Any, p: int, stop: int, kind: Any, lower: Any, out: Any) -> Any:
    """The word that begins at p, in lower case, into `out`; → (where it ends in the text, its size)."""
    n = 0
    while p < stop:
        byte = np.int64(text[p])
        if byte < 0x80:
            if kind[byte]:
                out[n] = lower[byte]
            elif (byte == 46 or byte == 44) and p + 1 < stop and _digit(text[p - 1]) and _digit(text[p + 1]):
                out[n] = byte  # 2,000 and 3.5 are one word each
            else:
                break
            n += 1
            p += 1
            continue
        character, size = _decode(text, p)
        if not kind[character]:
            break
        n = _encode(lower[character], out, n)
        if character == DOTTED_I:
            n = _encode(0x307, out, n)
        p += size
    return p, n


@inlined
def _slot(word: Any, n: int, slots: Any, hashes: Any, begins: Any, pool: Any) -> Any:
    """Where the word is in the table, or where it would go; and its hash."""
    hashed = FNV
    for k in range(n):
        hashed = (hashed ^ np.uint64(word[k])) * PRIME
    mask = np.uint64(slots.shape[0] - 1)
    slot = ((hashed * SPREAD) >> np.uint64(32)) & mask
    while slots[slot] != EMPTY:
        number = slots[slot]
        if hashes[number] == hashed and begins[number + 1] - begins[number] == n:
            begin, k = begins[number], 0
            while k < n and pool[begin + k] == word[k]:
                k += 1
            if k == n:
                break
        slot = (slot + np.uint64(1)) & mask
    return slot, hashed


@inlined
def _number(word: Any, n: int, grow: bool, slots: Any, hashes: Any, begins: Any, pool: Any, counts: Any, count: int) -> int:
    """The word's number; a new one has the next, `count`, or where there is no growing UNKNOWN."""
    slot, hashed = _slot(word, n, slots, hashes, begins, pool)
    number = slots[slot]
    if number == EMPTY:
        if not grow:
            return UNKNOWN
        number = count
        slots[slot], hashes[number], counts[number] = number, hashed, 0
        pool[begins[number] : begins[number] + n] = word[:n]
        begins[number + 1] = begins[number] + n
    counts[number] += 1
    return number


@inlined
def _full(new: int, size: int, slots: Any, begins: Any, pool: Any, count: int) -> bool:
    """Whether there may be no room for so many more words of so many bytes together."""
    return count + new >= begins.shape[0] or 2 * (count + new) > slots.shape[0] or begins[count] + size > pool.shape[0]


@compiled
def _scan(
    text: Any, starts: Any, first: int, last: int, length: int, grow: bool, kind: Any, lower: Any,
    slots: Any, hashes: Any, begins: Any, pool: Any, counts: Any, count: int, out: Any, written: int, sizes: Any,
) -> Any:  # fmt: skip
    """Number the words of documents first … last − 1, at most `length` of each, until the table is too full for the next.

    → (the first that is not done, how many words there are in the table, and in `out`)
    """
    scratch = np.empty(0, np.uint8)
    for document in range(first, last):
        p, stop = starts[document], starts[document + 1]
        if grow and _full(min(length, most_words(stop - p)), lowered_size(stop - p), slots, begins, pool, count):
            return document, count, written
        if scratch.shape[0] < lowered_size(stop - p):
            scratch = np.empty(2 * lowered_size(stop - p), np.uint8)
        begun = written
        while p < stop and written - begun < length:
            n = 0
            quote = _apostrophe(text, p, stop)
            if quote:
                p += quote
                n = _clitic(text, p, stop, kind)
                if n == 0:
                    continue
                scratch[0] = 39
                for k in range(n):
                    scratch[k + 1] = text[p + k] | 32
                p += n
                n += 1
            elif text[p] == 35:
                p += max(_reference(text, p, stop), 1)
                continue
            elif text[p] == 92 and p + 1 < stop and text[p + 1] == 110 and not (p + 2 < stop and 97 <= text[p + 2] <= 122):
                p += 2  # a line's end, written \n
                continue
            else:
                character, size = _decode(text, p)
                if not kind[character]:
                    p += size
                    continue
                p, n = _word(text, p, stop, kind, lower, scratch)
                if p < stop and text[p] == 59 and _entity(scratch, n):
                    continue
            number = _number(scratch, n, grow, slots, hashes, begins, pool, counts, count)
            count += number == count and grow
            out[written] = number
            written += 1
        sizes[document] = written - begun
    return last, count, written


@compiled
def _insert(text: Any, starts: Any, slots: Any, hashes: Any, begins: Any, pool: Any, counts: Any) -> None:
    """Number words as they stand: 0, 1, 2, …"""
    for number in range(starts.shape[0] - 1):
        word = text[starts[number] : starts[number + 1]]
        _number(word, word.shape[0], True, slots, hashes, begins, pool, counts, number)


@compiled
def _refill(slots: Any, hashes: Any, count: int) -> None:
    mask = np.uint64(slots.shape[0] - 1)
    for number in range(count):
        slot = ((hashes[number] * SPREAD) >> np.uint64(32)) & mask
        while slots[slot] != EMPTY:
            slot = (slot + np.uint64(1)) & mask
        slots[slot] = number


@inlined
def most_words(size: int) -> int:
    """How many words so many bytes of text can have: between two there is a byte, and an apostrophe's word has two."""
    return (size + 1) // 2


@inlined
def lowered_size(size: int) -> int:
    """How many bytes so many can become in lower case: Ⱥ and İ have two, ⱥ and i̇ three."""
    return size + size // 2 + 4


@compiled
def count_words(tokens: Any, starts: Any, counts: Any, document_counts: Any) -> None:
    """How often each word is there, and in how many documents: added to both."""
    last = np.full(counts.shape[0], -1, np.int64)
    for document in range(starts.shape[0] - 1):
        for p in range(starts[document], starts[document + 1]):
            word = tokens[p]
            counts[word] += 1
            if last[word] != document:
                last[word] = document
                document_counts[word] += 1


class Lexicon:
    """Words, numbered as they come; or, if it is given some, these alone, all others having the number 1."""

    def __init__(self, kind: np.ndarray, lower: np.ndarray, words: list[str] | None = None):
        self.kind, self.lower, self.grow, self.count = kind, lower, words is None, 0
        encoded = [word.encode() for word in words or ()]
        self._begins, self._hashes = np.zeros(1, np.int64), np.empty(0, np.uint64)
        self._counts, self._pool, self._slots = np.empty(0, np.int64), np.empty(0, np.uint8), np.empty(0, np.int32)
        self._make_room(max(len(encoded), 1 << 12), max(sum(map(len, encoded)), 1 << 16))
        if words is not None:
            starts = np.concatenate([[0], np.cumsum([len(word) for word in encoded], dtype=np.int64)])
            self.count = len(encoded)
            _insert(np.frombuffer(b"".join(encoded), np.uint8), starts, *self._tables)

    @property
    def _tables(self) -> tuple[np.ndarray, ...]:
        return self._slots, self._hashes, self._begins, self._pool, self._counts

    @property
    def counts(self) -> np.ndarray:
        """How often each was seen (count,)."""
        return self._counts[: self.count]

    @property
    def words(self) -> list[str]:
        """In the order of their numbers."""
        pool, begins = self._pool[: self._begins[self.count]].tobytes(), self._begins[: self.count + 1].tolist()
        return [pool[begins[n] : begins[n + 1]].decode() for n in range(self.count)]

    def number(self, text: np.ndarray, starts: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
        """Text n is text[starts[n]:starts[n + 1]] → numbers of their first `length` words each, and how many each has."""
        n, size = len(starts) - 1, int(starts[-1] - starts[0])
        out, sizes = np.empty(min(n * length, most_words(size) + n), np.int32), np.empty(n, np.int64)
        document = written = 0
        while True:
            document, self.count, written = _scan(
                text, starts, document, n, length, self.grow, self.kind, self.lower,
                *self._tables, self.count, out, written, sizes,
            )  # fmt: skip
            if document == n:
                return out[:written], sizes
            size = int(starts[document + 1] - starts[document])
            self._make_room(min(length, most_words(size)), lowered_size(size))

    def _make_room(self, words: int, size: int) -> None:
        """For so many more words of so many bytes together, and twice as many as there are."""
        words, size = self.count + max(words, self.count), int(self._begins[self.count]) + size
        self._begins = _longer(self._begins, words + 2)
        self._hashes, self._counts = _longer(self._hashes, words + 1), _longer(self._counts, words + 1)
        self._pool = _longer(self._pool, max(size, 2 * int(self._begins[self.count])))
        slots = 1 << (2 * words).bit_length()
        if slots > len(self._slots):
            self._slots = np.full(slots, EMPTY, np.int32)
            _refill(self._slots, self._hashes, self.count)


def _longer(array: np.ndarray, size: int) -> np.ndarray:
    """The same with more room behind it."""
    if size <= len(array):
        return array
    grown = np.empty(size, array.dtype)
    grown[: len(array)] = array
    return grown
