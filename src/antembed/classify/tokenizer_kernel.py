"""UTF-8 text → numbers of its words, in one pass over the bytes. classify/tokenizer.py defines a word, and has a plain version."""

from typing import Any

import numpy as np

from antembed.native.compile import compile_kernel

UNKNOWN = 1
SHORT = 8  # bytes that fit into a key
FNV, PRIME = np.uint64(0xCBF29CE484222325), np.uint64(0x100000001B3)
SPREAD = np.uint64(0x9E3779B97F4A7C15)
ALONE = 2  # the kind of a character that is a word by itself
DOTTED_I = 0x130  # the only letter with two characters in lower case: i and a dot above

compiled: Any = compile_kernel(nogil=True)
# Without reference counting, which took as long as the work. These functions must not create arrays.
BARE: dict[str, Any] = {"nogil": True, "_nrt": False}
bare: Any = compile_kernel(**BARE)
inlined: Any = compile_kernel(forceinline=True, **BARE)


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
    """Write the character's bytes to out[n]; → the position after them."""
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
    """The size of s, t, d, m, re, ve or ll at p, if the word ends there, else 0."""
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
    """Write the word that starts at p, in lower case, to `out`; → (its end in the text, its size)."""
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
        if not kind[character] or (kind[character] == ALONE and n > 0):
            break
        n = _encode(lower[character], out, n)
        if kind[character] == ALONE:
            return p + size, n
        if character == DOTTED_I:
            n = _encode(0x307, out, n)
        p += size
    return p, n


@inlined
def _key(word: Any, n: int) -> Any:
    """Up to eight bytes themselves (no word has a byte 0); a hash of more."""
    key = np.uint64(0)
    if n <= SHORT:
        for k in range(n):
            key = key << np.uint64(8) | np.uint64(word[k])
        return key
    key = FNV
    for k in range(n):
        key = (key ^ np.uint64(word[k])) * PRIME
    return key


@inlined
def _first_slot(key: Any, table: Any) -> Any:
    return np.int64(((key * SPREAD) >> np.uint64(32)) & np.uint64(table.shape[0] - 1))


@inlined
def _number(word: Any, n: int, grow: bool, table: Any, begins: Any, pool: Any, count: int) -> Any:
    """The word's number; a new word gets the next one, `count`, or UNKNOWN if the lexicon is fixed.

    A row of the table is (key, size, number + 1 or 0, count): one memory access for a short word.
    """
    key, mask = _key(word, n), table.shape[0] - 1
    slot = _first_slot(key, table)
    while table[slot, 2]:
        if table[slot, 0] == key and table[slot, 1] == n:
            number = np.int64(table[slot, 2]) - 1
            k = 0 if n > SHORT else n
            while k < n and pool[begins[number] + k] == word[k]:
                k += 1
            if k == n:
                if grow:  # a fixed table is shared by threads, which would contend for the cache line
                    table[slot, 3] += np.uint64(1)
                return number
        slot = (slot + 1) & mask
    if not grow:
        return UNKNOWN
    table[slot, 0], table[slot, 1], table[slot, 2], table[slot, 3] = key, n, count + 1, 1
    begin = begins[count]
    for k in range(n):
        pool[begin + k] = word[k]
    begins[count + 1] = begin + n
    return count


@inlined
def _full(new: int, size: int, table: Any, begins: Any, pool: Any, count: int) -> bool:
    """Whether there may be no room for `new` more words of `size` bytes together."""
    return count + new >= begins.shape[0] or 2 * (count + new) > table.shape[0] or begins[count] + size > pool.shape[0]


@bare
def _scan(
    text: Any, starts: Any, first: int, last: int, length: int, grow: bool, kind: Any, lower: Any,
    table: Any, begins: Any, pool: Any, count: int, out: Any, written: int, sizes: Any, scratch: Any,
) -> Any:  # fmt: skip
    """Number the words of documents first … last − 1, at most `length` of each, until there is no room for the next document.

    → (the first document that is not done, the number of words in the table, the number of tokens in `out`)
    """
    for document in range(first, last):
        p, stop = starts[document], starts[document + 1]
        if grow and _full(min(length, most_words(stop - p)), lowered_size(stop - p), table, begins, pool, count):
            return document, count, written
        begun = written
        while p < stop and written - begun < length:
            byte = text[p]
            if byte == 32:
                p += 1
                continue
            quote = 0 if byte < 0x80 and kind[byte] else _apostrophe(text, p, stop)
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
            elif byte == 35:
                p += max(_reference(text, p, stop), 1)
                continue
            elif byte == 92 and p + 1 < stop and text[p + 1] == 110 and not (p + 2 < stop and 97 <= text[p + 2] <= 122):
                p += 2  # a line end, written \n
                continue
            else:
                character, size = _decode(text, p)
                if not kind[character]:
                    p += size
                    continue
                p, n = _word(text, p, stop, kind, lower, scratch)
                if p < stop and text[p] == 59 and _entity(scratch, n):
                    continue
            number = _number(scratch, n, grow, table, begins, pool, count)
            count += number == count and grow
            out[written] = number
            written += 1
        sizes[document] = written - begun
    return last, count, written


@compiled
def _insert(text: Any, starts: Any, table: Any, begins: Any, pool: Any) -> None:
    """Number the given words 0, 1, 2, …"""
    for number in range(starts.shape[0] - 1):
        word = text[starts[number] : starts[number + 1]]
        _number(word, word.shape[0], True, table, begins, pool, number)


@compiled
def _move(old: Any, table: Any) -> None:
    for row in range(old.shape[0]):
        if old[row, 2]:
            slot = _first_slot(old[row, 0], table)
            while table[slot, 2]:
                slot = (slot + 1) & (table.shape[0] - 1)
            table[slot] = old[row]


@compiled
def _counts(table: Any, out: Any) -> None:
    for row in range(table.shape[0]):
        if table[row, 2]:
            out[np.int64(table[row, 2]) - 1] = table[row, 3]


@inlined
def most_words(size: int) -> int:
    """The largest number of words in `size` bytes: there is a byte between two words, and a clitic has two bytes."""
    return (size + 1) // 2


@inlined
def lowered_size(size: int) -> int:
    """The largest size of `size` bytes in lower case: Ⱥ and İ have two bytes, ⱥ and i̇ three."""
    return size + size // 2 + 4


@compiled
def count_words(tokens: Any, starts: Any, counts: Any, document_counts: Any) -> None:
    """Add the occurrences of each word to `counts`, and the number of documents with it to `document_counts`."""
    last = np.full(counts.shape[0], -1, np.int64)
    for document in range(starts.shape[0] - 1):
        for p in range(starts[document], starts[document + 1]):
            word = tokens[p]
            counts[word] += 1
            if last[word] != document:
                last[word] = document
                document_counts[word] += 1


class Lexicon:
    """Words, numbered in the order of their appearance; or fixed `words`, where all others have the number 1."""

    def __init__(self, kind: np.ndarray, lower: np.ndarray, words: list[str] | None = None):
        self.kind, self.lower, self.grow, self.count = kind, lower, words is None, 0
        encoded = [word.encode() for word in words or ()]
        self._table, self._begins, self._pool = np.zeros((0, 4), np.uint64), np.zeros(1, np.int64), np.empty(0, np.uint8)
        self._make_room(max(len(encoded), 1 << 10), max(sum(map(len, encoded)), 1 << 13))
        if words is not None:
            starts = np.concatenate([[0], np.cumsum([len(word) for word in encoded], dtype=np.int64)])
            self.count = len(encoded)
            _insert(np.frombuffer(b"".join(encoded), np.uint8), starts, self._table, self._begins, self._pool)

    @property
    def counts(self) -> np.ndarray:
        """The count of each word (count,)."""
        found = np.zeros(self.count, np.int64)
        _counts(self._table, found)
        return found

    @property
    def words(self) -> list[str]:
        """In the order of their numbers."""
        pool, begins = self._pool[: self._begins[self.count]].tobytes(), self._begins[: self.count + 1].tolist()
        return [pool[begins[n] : begins[n + 1]].decode() for n in range(self.count)]

    def number(self, text: np.ndarray, starts: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
        """Texts text[starts[n]:starts[n + 1]] → numbers of the first `length` words of each, and how many each has."""
        n, size = len(starts) - 1, int(starts[-1] - starts[0])
        out, sizes = np.empty(min(n * length, most_words(size) + n), np.int32), np.empty(n, np.int64)
        scratch = np.empty(lowered_size(int(np.diff(starts).max(initial=0))), np.uint8)
        document = written = 0
        while True:
            document, self.count, written = _scan(
                text, starts, document, n, length, self.grow, self.kind, self.lower,
                self._table, self._begins, self._pool, self.count, out, written, sizes, scratch,
            )  # fmt: skip
            if document == n:
                return out[:written], sizes
            size = int(starts[document + 1] - starts[document])
            self._make_room(min(length, most_words(size)), lowered_size(size))

    def _make_room(self, words: int, size: int) -> None:
        """Make room for `words` more words of `size` bytes together, and for twice the present ones."""
        used = int(self._begins[self.count])
        self._begins = _longer(self._begins, self.count + max(words, self.count) + 2)
        self._pool = _longer(self._pool, used + max(size, used))
        slots = 1 << (2 * (self.count + words)).bit_length()
        if slots > len(self._table):
            old, self._table = self._table, np.zeros((slots, 4), np.uint64)
            _move(old, self._table)


def _longer(array: np.ndarray, size: int) -> np.ndarray:
    """The same array with room for `size` elements."""
    if size <= len(array):
        return array
    grown = np.empty(size, array.dtype)
    grown[: len(array)] = array
    return grown
