"""The vocabulary in a file: words sorted and compressed in blocks, found by halving; no dictionary of all words is built."""

import zlib
from bisect import bisect_right
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from antembed.serving.container import DamagedError
from antembed.serving.encodings import smallest_unsigned

BLOCK = 512  # words
KEPT = 64  # blocks that stay unpacked
LARGEST_BLOCK = 1 << 26


def pack_words(words: Sequence[str]) -> dict[str, np.ndarray]:
    """The arrays of a file. A word may contain anything but a newline, and occur once."""
    if len(set(words)) != len(words):
        raise ValueError(f"{len(words) - len(set(words))} words occur twice; a vocabulary has each word once")
    encoded = [word.encode() for word in words]
    if any(b"\n" in word for word in encoded):
        raise ValueError("a word contains a newline; escape it before compressing")
    order = np.array(sorted(range(len(encoded)), key=encoded.__getitem__), np.int64)
    pieces, ends, firsts = [], [0], []
    for start in range(0, len(order), BLOCK):
        block = [encoded[n] for n in order[start : start + BLOCK]]
        firsts.append(block[0])
        pieces.append(zlib.compress(b"\n".join(block), 9))
        ends.append(ends[-1] + len(pieces[-1]))
    heads = zlib.compress(b"\n".join(firsts), 9)
    return {
        "word_blocks": np.frombuffer(b"".join(pieces), np.uint8),
        "word_ends": np.array(ends, np.uint64).astype(smallest_unsigned(ends[-1])),
        "word_heads": np.frombuffer(heads, np.uint8),
        "word_rows": order.astype("<u4").view(np.uint8).reshape(-1, 4)[:, : _bytes_of(len(order))],
    }


def _bytes_of(rows: int) -> int:
    """Bytes that hold a row's number."""
    return max((max(rows - 1, 1).bit_length() + 7) // 8, 1)


class WordIndex:
    """word → row, row → word."""

    def __init__(self, arrays: dict[str, np.ndarray]):
        self.blocks, self.ends = arrays["word_blocks"], arrays["word_ends"].astype(np.int64)
        packed = arrays["word_rows"]
        if packed.ndim != 2 or packed.shape[1] != _bytes_of(len(packed)):
            raise DamagedError(f"rows of words have the shape {packed.shape}")
        self.rows = np.zeros((len(packed), 4), np.uint8)
        self.rows[:, : packed.shape[1]] = packed
        self.rows = self.rows.view("<u4")[:, 0]
        if len(self.rows) and int(self.rows.max()) >= len(self.rows):
            raise DamagedError(f"a word has row {self.rows.max()} of {len(self.rows)}")
        self.heads = _inflated(arrays["word_heads"], LARGEST_BLOCK)
        if len(self.heads) != len(self.ends) - 1 or (np.diff(self.ends) < 0).any() or self.ends[-1] != len(self.blocks):
            raise DamagedError(f"{len(self.heads)} blocks of words, {len(self.ends) - 1} ends")
        self._place: np.ndarray | None = None
        self._block = lru_cache(maxsize=KEPT)(self._read)

    def __len__(self) -> int:
        return len(self.rows)

    def _read(self, block: int) -> list[bytes]:
        return _inflated(self.blocks[self.ends[block] : self.ends[block + 1]], LARGEST_BLOCK)

    def find(self, word: str) -> int | None:
        """The row of a word; None: it is unknown."""
        wanted = word.encode()
        block = bisect_right(self.heads, wanted) - 1
        if block < 0:
            return None
        known = self._block(block)
        at = bisect_right(known, wanted) - 1
        return int(self.rows[block * BLOCK + at]) if at >= 0 and known[at] == wanted else None

    def word(self, row: int) -> str:
        """The word of a row."""
        if self._place is None:
            self._place = np.empty(len(self.rows), self.rows.dtype)
            self._place[self.rows] = np.arange(len(self.rows))
        place = int(self._place[row])
        return self._block(place // BLOCK)[place % BLOCK].decode()

    def all(self) -> list[str]:
        """All words, in the order of their rows."""
        found = [""] * len(self.rows)
        for block in range(len(self.heads)):
            for n, word in enumerate(self._read(block)):
                found[int(self.rows[block * BLOCK + n])] = word.decode()
        return found


def _inflated(array: np.ndarray, most: int) -> list[bytes]:
    unpack = zlib.decompressobj()
    found = unpack.decompress(array.tobytes(), most)
    if unpack.unconsumed_tail:
        raise DamagedError(f"a block of words has more than {most} bytes")
    return found.split(b"\n")
