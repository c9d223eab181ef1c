"""The vocabulary in a file: words sorted and compressed in blocks, found by binary search; no dictionary of all words is built.

    word_blocks    blocks of 256 sorted words, each compressed by zlib (raw deflate)
    word_ends      where each block begins, and the end of the last
    word_heads     the first word of each block, as a block
    word_rows      the row of each word, in as many bits as the largest needs, least significant bit first

In a block, a word is a mark byte (never in UTF-8: the length of the prefix shared with the previous word), then the rest.
"""

import re
import zlib
from bisect import bisect_right
from collections.abc import Sequence
from functools import cached_property, lru_cache

import numpy as np

from antembed.tables.container import DamagedError
from antembed.tables.number_formats import smallest_unsigned

BLOCK = 256  # words
KEPT = 256  # blocks that stay unpacked
LARGEST_BLOCK = 1 << 24  # bytes
PIECE = 1 << 16  # rows unpacked at a time; a multiple of 8
MARKS = bytes([0xC0, 0xC1, *range(0xF5, 0x100)])  # MARKS[n]: n bytes are as in the word before
SHARED = {mark: n for n, mark in enumerate(MARKS)}
LETTERS, ANY_MARK = bytes(set(range(256)) - set(MARKS)), re.compile(b"[" + MARKS + b"]")


def pack_words(words: Sequence[str]) -> dict[str, np.ndarray]:
    """The arrays of a file. Each word may occur at most once."""
    for row, word in enumerate(words):
        if not isinstance(word, str):
            given = f"word {row} is of type {type(word).__name__}, {word!r}"
            raise TypeError(f"{given}; words are strings: give [str(word) for word in vocabulary]")
    if len(set(words)) != len(words):
        raise ValueError(f"{len(words) - len(set(words))} words occur twice; a vocabulary has each word once")
    encoded = [word.encode() for word in words]
    order = np.array(sorted(range(len(encoded)), key=encoded.__getitem__), np.int64)
    blocks = [[encoded[n] for n in order[start : start + BLOCK]] for start in range(0, len(order), BLOCK)]
    parts = [_packed(block) for block in blocks]
    ends = np.cumsum([0, *map(len, parts)])
    bits, steps = np.arange(_bits(len(order))), range(0, len(order), PIECE)
    flat = [np.packbits((order[at : at + PIECE, None] >> bits) & 1, bitorder="little") for at in steps]
    return {
        "word_blocks": np.frombuffer(b"".join(parts), np.uint8),
        "word_ends": ends.astype(smallest_unsigned(int(ends[-1]))),
        "word_heads": np.frombuffer(_packed([block[0] for block in blocks]), np.uint8),
        "word_rows": np.concatenate([np.empty(0, np.uint8), *flat]),
    }


def _bits(rows: int) -> int:
    """Bits that hold a row's number."""
    return max((rows - 1).bit_length(), 1)


def _packed(words: list[bytes]) -> bytes:
    """A block."""
    out, before = [], b""
    for word in words:
        most = min(len(before), len(word), len(MARKS) - 1)
        same = next((n for n in range(most) if before[n] != word[n]), most)
        out.append(MARKS[same : same + 1] + word[same:])
        before = word
    plain = b"".join(out)
    if len(plain) > LARGEST_BLOCK:
        raise ValueError(f"{len(words)} words take {len(plain):,} bytes, at most {LARGEST_BLOCK:,} are allowed; shorten them")
    packer = zlib.compressobj(9, zlib.DEFLATED, -15, 9)
    return packer.compress(plain) + packer.flush()


def _unpacked(array: np.ndarray, count: int) -> list[bytes]:
    """The words of a block, sorted."""
    unpacker = zlib.decompressobj(-15)
    try:
        plain = unpacker.decompress(array.tobytes(), LARGEST_BLOCK + 1)
    except zlib.error as error:
        raise DamagedError(f"words cannot be decompressed ({error})") from None
    if not unpacker.eof or unpacker.unused_data:
        raise DamagedError("the bytes of a block of words do not end where they should")
    marks = plain.translate(None, LETTERS)
    if len(marks) != count or (plain and plain[0] != MARKS[0]):  # before they are split: a damaged block could have millions
        raise DamagedError(f"a block has {len(marks)} words, expected {count}")
    words, before = [], b""
    for mark, rest in zip(marks, ANY_MARK.split(plain)[1:], strict=True):
        before = before[: SHARED[mark]] + rest
        words.append(before)
    if sorted(set(words)) != words:
        raise DamagedError("the words of a block are not sorted")
    return words


class WordIndex:
    """word → row, row → word. Blocks and row numbers are checked when they are used."""

    def __init__(self, arrays: dict[str, np.ndarray], count: int):
        self.count, self.blocks, self.packed_rows = count, arrays["word_blocks"], arrays["word_rows"]
        self.bits, self.ends = _bits(count), arrays["word_ends"].astype(np.int64)
        blocks, size = -(-count // BLOCK), -(-count * self.bits // 8)
        if self.packed_rows.shape != (size,):
            raise DamagedError(f"row numbers of {count} words take {size} bytes, found {self.packed_rows.shape}")
        if len(self.ends) != blocks + 1 or self.ends[0] != 0 or (np.diff(self.ends) < 0).any():
            raise DamagedError(f"{len(self.ends)} ends for {blocks} blocks of words, or they do not rise")
        if self.ends[-1] != len(self.blocks):
            raise DamagedError(f"the words end at byte {self.ends[-1]} of {len(self.blocks)}")
        self._heads = arrays["word_heads"]
        self._cached_block = lru_cache(maxsize=KEPT)(self._read_block)

    def __len__(self) -> int:
        return self.count

    @cached_property
    def heads(self) -> list[bytes]:
        """The first word of each block."""
        return _unpacked(self._heads, len(self.ends) - 1)

    @cached_property
    def positions(self) -> np.ndarray:
        """The position of each row's word among the sorted ones."""
        positions = np.full(self.count, self.count, smallest_unsigned(self.count))
        for at in range(0, self.count, PIECE):
            rows = self._rows(at, min(at + PIECE, self.count))
            if len(rows) and int(rows.max()) >= self.count:
                raise DamagedError(f"a word has row {rows.max()} of {self.count}")
            positions[rows] = np.arange(at, at + len(rows))
        if len(positions) and int(positions.max()) == self.count:
            raise DamagedError("two words have the same row")
        return positions

    def _rows(self, start: int, stop: int) -> np.ndarray:
        """The rows of the sorted words `start` (a multiple of 8) to `stop`."""
        part = self.packed_rows[start * self.bits // 8 : -(-stop * self.bits // 8)]
        flat = np.unpackbits(part, count=(stop - start) * self.bits, bitorder="little").reshape(stop - start, self.bits)
        return flat @ (np.int64(1) << np.arange(self.bits))

    def _row(self, position: int) -> int:
        start = position * self.bits
        part = int.from_bytes(self.packed_rows[start // 8 : -(-(start + self.bits) // 8)].tobytes(), "little")
        row = part >> start % 8 & ((1 << self.bits) - 1)
        if row >= self.count:
            raise DamagedError(f"a word has row {row} of {self.count}")
        return row

    def _read_block(self, block: int) -> list[bytes]:
        part = self.blocks[self.ends[block] : self.ends[block + 1]]
        words = _unpacked(part, min(BLOCK, self.count - block * BLOCK))
        if words[0] != self.heads[block]:
            raise DamagedError(f"block {block} of the words begins with {words[0]!r}, expected {self.heads[block]!r}")
        return words

    def find(self, word: str) -> int | None:
        """The row of a word; None: it is unknown."""
        wanted = word.encode(errors="surrogatepass")
        block = bisect_right(self.heads, wanted) - 1
        if block < 0:
            return None
        known = self._cached_block(block)
        at = bisect_right(known, wanted) - 1
        return self._row(block * BLOCK + at) if known[at] == wanted else None

    def word(self, row: int) -> str:
        """The word of a row."""
        position = int(self.positions[row])
        return _text(self._cached_block(position // BLOCK)[position % BLOCK])

    def all(self) -> list[str]:
        """All words, in the order of their rows."""
        _ = self.positions  # checks the row numbers
        found = [""] * self.count
        for block in range(len(self.heads)):
            words = self._read_block(block)
            for row, word in zip(self._rows(block * BLOCK, block * BLOCK + len(words)).tolist(), words, strict=True):
                found[row] = _text(word)
        return found


def _text(word: bytes) -> str:
    try:
        return word.decode()
    except UnicodeDecodeError as error:
        raise DamagedError(f"a word is no UTF-8 ({error})") from None
