"""A text classifier of a few kilobytes: hashed n-grams, one anchor each, anchors that are class scores, and no words.

With a linear head, scores = mean(T·A)·W + b = mean(T·B) + b, where B = A·W has a row of class scores for each anchor; so only
T, B and b are stored. An object is a bucket of hashes; its row of T has one of a few values on one of the anchors.

    score of a document  =  scale · Σ over its objects j of  values[levels[j]]·B[anchors[j]]  +  b

Each object counts once in a document, or, with `repeats`, as often as it occurs.
"""

import json
import os
import struct
import zlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import pairwise
from pathlib import Path

import numpy as np

from antembed.files import JSON, write_atomically
from antembed.tables.container import DamagedError
from antembed.tables.number_formats import LARGEST_NUMBER

# Entropy coding of symbols by an asymmetric numeral system (rANS, byte by byte), and sorted sets coded by it.
#
# A symbol of frequency f of `TOTAL` takes log2(TOTAL/f) bits, fractions included; a Huffman code rounds to bits.
# Hashed n-grams: words, runs of words and beginnings of words, identified by a hash of their letters.
#
# A file that refers to hashes stores no words, and any word has a hash, also one that training has not seen. Two n-grams in one
# bucket are one object; training on buckets includes these collisions.

PRECISION = 14  # bits of a symbol's share, in the entropy coder
TOTAL = 1 << PRECISION
LOW = 1 << 23  # the state stays within [LOW, 256·LOW)
LONGEST = 31  # a longer gap takes several symbols


def weights_of(symbols: np.ndarray, alphabet: int) -> np.ndarray:
    """Relative frequencies of the symbols, a byte each, as stored in files: (alphabet,) uint8, 0 only for unused symbols."""
    counts = np.bincount(symbols, minlength=alphabet)
    # In integers, since 255.0…01 would become 256, that is 0.
    return (-(-counts * 255 // max(counts.max(initial=0), 1))).astype(np.uint8)


def frequencies(weights: np.ndarray) -> np.ndarray:
    """Integers proportional to the weights that sum to TOTAL, at least 1 for each symbol with a weight."""
    weights = weights.astype(np.int64)
    if not weights.any():
        raise DamagedError("no symbol has a weight")
    shares = np.maximum(weights * TOTAL // weights.sum(), weights > 0)
    shares[shares.argmax()] += TOTAL - shares.sum()
    return shares


def encode_symbols(symbols: np.ndarray, weights: np.ndarray) -> bytes:
    """The symbols as bytes, for `decode_symbols` with the same weights."""
    shares = frequencies(weights)
    f, first = shares.tolist(), (np.cumsum(shares) - shares).tolist()
    state, out = LOW, bytearray()
    for symbol in symbols[::-1].tolist():
        share = f[symbol]
        while state >= ((LOW >> PRECISION) << 8) * share:
            out.append(state & 255)
            state >>= 8
        state = (state // share << PRECISION) + state % share + first[symbol]
    return state.to_bytes(4, "little") + bytes(out[::-1])


def decode_symbols(data: bytes, count: int, weights: np.ndarray) -> np.ndarray:
    """The `count` symbols encoded in `data`: (count,) int64."""
    shares = frequencies(weights)
    f, first = shares.tolist(), (np.cumsum(shares) - shares).tolist()
    symbol_at = np.repeat(np.arange(len(shares)), shares).tolist()
    state, position, out = int.from_bytes(data[:4], "little"), 4, []
    try:
        for _ in range(count):
            slot = state & (TOTAL - 1)
            symbol = symbol_at[slot]
            out.append(symbol)
            state = f[symbol] * (state >> PRECISION) + slot - first[symbol]
            while state < LOW:
                state = state << 8 | data[position]
                position += 1
    except IndexError:
        raise DamagedError(f"{len(data)} bytes end after {len(out)} of {count} symbols") from None
    if state != LOW or position != len(data):
        raise DamagedError(f"{count} symbols took {position} of {len(data)} bytes")
    return np.array(out, np.int64)


def split_gaps(members: np.ndarray, size: int) -> tuple[int, np.ndarray, np.ndarray]:
    """A sorted set of numbers < size as gaps: the number of low bits stored as they are, these bits, and symbols for the rest.
    The low bits of a random set's gaps are uniform, and the rest is geometrically distributed, which entropy coding exploits.
    Of a rest ≥ LONGEST, each LONGEST is a symbol of its own."""
    gaps = np.diff(members, prepend=-1) - 1
    bits = max(int(np.log2(size / max(len(members), 1))) - 2, 0)
    high = gaps >> bits
    many = high // LONGEST
    symbols = np.full(len(members) + int(many.sum()), LONGEST)
    symbols[np.cumsum(many + 1) - 1] = high % LONGEST
    return bits, gaps & ((1 << bits) - 1), symbols


def join_gaps(bits: int, low: np.ndarray, symbols: np.ndarray) -> np.ndarray:
    """The inverse of `split_gaps`."""
    ends = np.flatnonzero(symbols != LONGEST)
    if len(ends) != len(low):
        raise DamagedError(f"it has {len(ends)} gaps, but the low bits of {len(low)}")
    high = symbols[ends] + LONGEST * np.diff(ends, prepend=-1) - LONGEST
    return np.cumsum((high << bits) + low + 1) - 1


def pack_bits(numbers: np.ndarray, bits: int) -> bytes:
    """Numbers < 2^bits, `bits` bits each."""
    return np.packbits((numbers[:, None] >> np.arange(bits)) & 1).tobytes()


def unpack_bits(data: bytes, count: int, bits: int) -> np.ndarray:
    """The inverse of `pack_bits`: (count,) int64."""
    if len(data) != -(-count * bits // 8):
        raise DamagedError(f"{count} numbers of {bits} bits are {-(-count * bits // 8)} bytes, {len(data)} were found")
    flat = np.unpackbits(np.frombuffer(data, np.uint8), count=count * bits)
    return (flat.reshape(count, bits).astype(np.int64) << np.arange(bits)).sum(1)


MOST_BITS = 24  # of a bucket's number: a look-up table of 2²⁴ two-byte rows is 32 MB


def hash_words(words: Sequence[str], prefix: int = 0) -> np.ndarray:
    """A 64-bit hash of each word's UTF-8 bytes: (V,) uint64. It must never change, since files refer to it. With a `prefix`,
    (V, 2): also one of the word's first `prefix` letters, 0 for words that are no longer than that."""
    hashes = _digests(word.encode() for word in words)
    if not prefix:
        return hashes
    longer = np.array([len(word) > prefix for word in words], bool)
    starts = _digests(f"{word[:prefix]}\0".encode() for word in words)  # no word has a NUL: another hash than the word's own
    return np.stack([hashes, np.where(longer, starts, np.uint64(0))], axis=1)


def _digests(texts: Iterable[bytes]) -> np.ndarray:
    return np.frombuffer(b"".join(blake2b(text, digest_size=8).digest() for text in texts), "<u8").astype(np.uint64)


def ngram_hashes(words: np.ndarray, starts: np.ndarray, orders: int) -> tuple[np.ndarray, np.ndarray]:
    """All n-grams of 1 … `orders` words within a document, and prefixes: their hashes and their documents, (objects,) each.
    words: (total,) or (total, 2) uint64, of hash_words; document n is words[starts[n]:starts[n + 1]]."""
    documents = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
    words, prefixes = (words, words[:0]) if words.ndim == 1 else (words[:, 0], words[:, 1])
    hashes, owners, run = [_mixed(words)], [documents], words
    for more in range(1, orders):
        run = _mixed(run[:-1] * np.uint64(0x9E3779B97F4A7C15) + words[more:])
        inside = documents[:-more] == documents[more:]
        hashes.append(run[inside])
        owners.append(documents[:-more][inside])
    prefixed = np.flatnonzero(prefixes)
    hashes.append(_mixed(prefixes[prefixed]))
    owners.append(documents[prefixed])
    return np.concatenate(hashes), np.concatenate(owners)


def buckets_of(hashes: np.ndarray, bits: int) -> np.ndarray:
    """The first `bits` bits of each hash: (objects,) int64 in 0 … 2^bits − 1."""
    return (hashes >> np.uint64(64 - bits)).astype(np.int64)


def document_scales(starts: np.ndarray, orders: int) -> np.ndarray:
    """1/√(number of n-grams) of each document (n,), the factor of the sum over its n-grams; 1 for empty documents. Prefixes are
    not counted."""
    lengths = np.diff(starts)
    runs = sum(np.maximum(lengths - more, 0) for more in range(orders))
    return 1 / np.sqrt(np.maximum(runs, 1))


def _mixed(bits: np.ndarray) -> np.ndarray:
    """Mix the bits so that each depends on all (the finalizer of MurmurHash3)."""
    bits = (bits ^ (bits >> np.uint64(33))) * np.uint64(0xFF51AFD7ED558CCD)
    bits = (bits ^ (bits >> np.uint64(33))) * np.uint64(0xC4CEB9FE1A85EC53)
    return bits ^ (bits >> np.uint64(33))


MAGIC, VERSION = b"antbag", 3  # 1: without repeats and prefixes, 2: without prefixes; still written for those
HEAD = struct.Struct("<6sHIII")  # magic, version, length of the rest, length of its description, checksum of the rest
PIECE = 1 << 21  # words scored at a time
LARGEST_DESCRIPTION, FREE_SYMBOLS = 1 << 22, 1 << 20  # of a file; more are damage
MOST_ORDERS = MOST_LETTERS = 1000  # of n-grams and prefixes; more are damage


class HashedNgramsError(ValueError):
    """A file that is no classifier of hashed n-grams, or one that this version cannot read."""


@dataclass(frozen=True)
class HashedNgrams:
    """The classifier."""

    objects: np.ndarray  # (n,) int64: buckets with a code, sorted
    anchors: np.ndarray  # (n,): the anchor of each
    levels: np.ndarray  # (n,): the index of its weight in `values`
    B: np.ndarray  # (K, C): class scores of the anchors
    bias: np.ndarray  # (C,)
    values: np.ndarray  # (Q,): the weights
    classes: list[str]
    bits: int  # of a bucket's number
    orders: int  # n-grams of up to so many words
    repeats: bool = False  # every occurrence counts, not only the first in a document
    prefix: int = 0  # longer words also count by their first letters, so many; 0: they do not
    _rows: np.ndarray = field(init=False, repr=False, compare=False)  # (2^bits,): 1 + code of each bucket, 0 for none
    _codes: np.ndarray = field(init=False, repr=False, compare=False)  # (1 + K·Q, C): scores of each code

    def __post_init__(self) -> None:
        K, Q = len(self.B), len(self.values)
        rows = np.zeros(1 << self.bits, np.uint16)
        rows[self.objects] = 1 + self.anchors * Q + self.levels
        codes = (self.B[:, None, :] * self.values[:, None]).reshape(K * Q, -1)
        object.__setattr__(self, "_rows", rows)
        object.__setattr__(self, "_codes", np.concatenate([np.zeros((1, codes.shape[1])), codes]))

    def scores(self, words: np.ndarray, starts: np.ndarray) -> np.ndarray:
        """Class scores of documents (n, C). words: hashes of their words, hash_words(…, self.prefix)."""
        if words.ndim != 1 + (self.prefix > 0):
            raise ValueError(f"hashes of words have {words.ndim} dimensions; make them with hash_words(words, {self.prefix})")
        if len(starts) == 0 or starts[-1] != len(words):
            raise ValueError(
                f"there are {len(words)} words, but the documents end at {starts[-1:].tolist()}; pass starts of shape (n + 1,)"
            )
        parts = np.searchsorted(starts, np.arange(0, max(len(words), 1), PIECE))
        cuts = [*np.unique(parts).tolist(), len(starts) - 1]
        out = [self._scores(words, starts[a : b + 1]) for a, b in pairwise(cuts) if b > a]
        return np.concatenate(out) if out else np.empty((0, len(self.bias)))

    def _scores(self, words: np.ndarray, starts: np.ndarray) -> np.ndarray:
        words, starts = words[starts[0] : starts[-1]], starts - starts[0]
        hashes, documents = ngram_hashes(words, starts, self.orders)
        buckets = buckets_of(hashes, self.bits)
        coded = np.flatnonzero(self._rows[buckets])
        pairs, times = np.unique((documents[coded] << self.bits) | buckets[coded], return_counts=True)
        codes, owners = self._rows[pairs & ((1 << self.bits) - 1)], pairs >> self.bits
        n = len(starts) - 1
        weights = times if self.repeats else np.ones(len(times))
        sums = [np.bincount(owners, weights=weights * self._codes[codes, c], minlength=n) for c in range(len(self.bias))]
        return np.stack(sums, axis=1) * document_scales(starts, self.orders)[:, None] + self.bias

    def coded(self, words: np.ndarray, starts: np.ndarray) -> np.ndarray:
        """Whether each document has an n-gram with a code (n,) bool; without one, its scores are the bias."""
        hashes, documents = ngram_hashes(words, starts, self.orders)
        return np.bincount(documents[self._rows[buckets_of(hashes, self.bits)] > 0], minlength=len(starts) - 1) > 0

    def predict(self, words: list[list[str]]) -> list[str]:
        """The class of each document, a list of its words."""
        starts = np.concatenate([[0], np.cumsum([len(document) for document in words])]).astype(np.int64)
        best = self.scores(hash_words([word for document in words for word in document], self.prefix), starts).argmax(1)
        return [self.classes[c] for c in best]

    def explain(self, words: list[str]) -> list[tuple[str, np.ndarray]]:
        """The n-grams of one document that have a code, and their contributions to its scores (C,)."""
        starts = np.array([0, len(words)])
        hashes, _ = ngram_hashes(hash_words(words, self.prefix), starts, self.orders)
        runs = [" ".join(words[at : at + n]) for n in range(1, self.orders + 1) for at in range(len(words) - n + 1)]
        runs += [f"{word[: self.prefix]}…" for word in words if 0 < self.prefix < len(word)]
        buckets = buckets_of(hashes, self.bits).tolist()
        first = dict(zip(buckets[::-1], runs[::-1], strict=True))
        scale, times = document_scales(starts, self.orders)[0], Counter(buckets) if self.repeats else Counter(first.keys())
        return [(run, scale * times[j] * self._codes[self._rows[j]]) for j, run in reversed(first.items()) if self._rows[j]]

    def object_scores(self) -> np.ndarray:
        """Class scores of each object less their mean, which changes no probability: (n, C)."""
        scores = self._codes[self._rows[self.objects]]
        return scores - scores.mean(1, keepdims=True)

    def to_bytes(self) -> bytes:
        """The contents of the file."""
        K, Q = len(self.B), len(self.values)
        gap_bits, low, gaps = split_gaps(self.objects, 1 << self.bits)
        codes = self.anchors * Q + self.levels
        gap_weights, code_weights = weights_of(gaps, LONGEST + 1), weights_of(codes, K * Q)
        streams = [
            encode_symbols(gaps, gap_weights) if len(gaps) else b"",
            pack_bits(low, gap_bits),
            encode_symbols(codes, code_weights) if len(codes) else b"",
            gap_weights.tobytes(),
            code_weights.tobytes(),
            self.B.astype("<f2").tobytes(),
            np.concatenate([self.bias, self.values]).astype("<f4").tobytes(),
        ]
        shape = [self.bits, self.orders, len(self.objects), K, Q, gap_bits, len(gaps), *map(len, streams[:3])]
        more = {"r": int(self.repeats), "p": self.prefix}
        facts = {"s": shape, "c": self.classes} | {name: value for name, value in more.items() if value}
        about = zlib.compress(json.dumps(facts, ensure_ascii=False).encode(), 9)
        body = about + b"".join(streams)
        version = 3 if self.prefix else 2 if self.repeats else 1
        return HEAD.pack(MAGIC, version, len(body), len(about), zlib.crc32(body)) + body

    def save(self, path: str | os.PathLike[str]) -> int:
        """Write the file; → its size in bytes."""
        data = self.to_bytes()
        write_atomically(path, data)
        return len(data)


def load_hashed_ngrams(path: str | os.PathLike[str]) -> HashedNgrams:
    """Load a file written by `HashedNgrams.save`."""
    path = Path(path)
    if path.is_dir():
        raise HashedNgramsError(f"{path} is a folder; name one of its files")
    return read_hashed_ngrams(path.read_bytes(), str(path))


def read_hashed_ngrams(data: bytes, path: str) -> HashedNgrams:
    """The classifier that these bytes hold; `path` is where they are from, for errors."""
    if data[:6] != MAGIC:
        raise HashedNgramsError(f"{path} is no hashed n-gram classifier: it starts with {data[:6]!r}, expected {MAGIC!r}")
    again = "copy it again or train it anew"
    if len(data) < HEAD.size:
        raise HashedNgramsError(f"{path} has {len(data)} bytes, its header alone has {HEAD.size}; {again}")
    _, version, length, about_length, checksum = HEAD.unpack_from(data)
    if not 1 <= version <= VERSION:
        raise HashedNgramsError(f"{path} has version {version}, this antembed reads up to {VERSION}; upgrade antembed")
    body = data[HEAD.size :]
    if len(body) != length:
        raise HashedNgramsError(f"{path} has {len(data)} bytes, {HEAD.size + length} are expected; {again}")
    if zlib.crc32(body) != checksum:
        raise HashedNgramsError(f"{path} is damaged: its checksum is {zlib.crc32(body)}, expected {checksum}; {again}")
    try:
        return _parsed(_description(body[:about_length]), body[about_length:])
    except (DamagedError, zlib.error, RecursionError, ValueError) as error:
        raise HashedNgramsError(f"{path} is damaged ({error}); train it anew") from error


def _description(packed: bytes) -> JSON:
    unpacker = zlib.decompressobj()
    about = json.loads(unpacker.decompress(packed, LARGEST_DESCRIPTION))
    if not unpacker.eof:
        raise DamagedError(f"its description ends too soon, or has more than {LARGEST_DESCRIPTION} bytes")
    if not isinstance(about, dict) or not isinstance(about.get("s"), list) or not isinstance(about.get("c"), list):
        raise DamagedError("it has no shape or no classes")
    if type(about.get("p", 0)) is not int or not 0 <= about.get("p", 0) <= MOST_LETTERS:
        raise DamagedError(f"its prefixes have {str(about['p'])[:80]} letters, expected a number up to {MOST_LETTERS}")
    return about


def _check(shape: list[int], classes: list[str], size: int) -> None:
    """Raise unless these can be the numbers of a file of `size` bytes: nothing is allocated or counted before."""
    if len(shape) != 10 or not all(type(number) is int and number >= 0 for number in shape):
        raise DamagedError(f"its shape is {str(shape)[:80]}, expected ten integers")
    if not classes or not all(isinstance(name, str) for name in classes):
        raise DamagedError("its classes are no names")
    bits, orders, n, K, Q, gap_bits, gaps, *_ = shape
    if not (1 <= bits <= MOST_BITS and 1 <= orders <= MOST_ORDERS and gap_bits <= bits):
        raise DamagedError(f"{bits} bits (up to {MOST_BITS}), {orders} words in a run (up to {MOST_ORDERS})")
    if not 1 <= K * Q < 1 << 16:
        raise DamagedError(f"{K} anchors with {Q} weights; their product is less than 65,536")
    if n > 1 << bits or max(n, gaps) > FREE_SYMBOLS + 16 * size:
        raise DamagedError(f"{n} objects in {gaps} symbols, {1 << bits} buckets and {size} bytes")


def _parsed(about: JSON, body: bytes) -> HashedNgrams:
    _check(about["s"], about["c"], len(body))
    bits, orders, n, K, Q, gap_bits, gaps, *lengths = about["s"]
    C = len(about["c"])
    sizes = [*lengths, LONGEST + 1, K * Q, 2 * K * C, 4 * (C + Q)]
    if len(body) != sum(sizes):
        raise DamagedError(f"its parts have {sum(sizes)} bytes, {len(body)} were found")
    ends = np.cumsum(sizes).tolist()
    parts = (body[end - size : end] for end, size in zip(ends, sizes, strict=True))
    high, low, codes, gap_weights, code_weights, B, rest = parts
    symbols = decode_symbols(high, gaps, np.frombuffer(gap_weights, np.uint8)) if n else np.empty(0, np.int64)
    code = decode_symbols(codes, n, np.frombuffer(code_weights, np.uint8)) if n else np.empty(0, np.int64)
    numbers = np.frombuffer(rest, "<f4").astype(np.float64)
    scores = np.frombuffer(B, "<f2").astype(np.float64).reshape(K, C)
    objects = join_gaps(gap_bits, unpack_bits(low, n, gap_bits), symbols)
    if n and objects[-1] >= 1 << bits:
        raise DamagedError(f"it has bucket {objects[-1]} of {1 << bits}")
    if not (np.isfinite(numbers).all() and np.isfinite(scores).all()):
        raise DamagedError("a score is not finite")
    reach = float(np.abs(scores).max(initial=0) * np.abs(numbers[C:]).max(initial=0))
    if reach > LARGEST_NUMBER:
        raise DamagedError(f"its scores multiply to {reach:.3g}, fp32 ends at {LARGEST_NUMBER:.3g}")
    classes, repeats, prefix = about["c"], bool(about.get("r", 0)), about.get("p", 0)
    bias, values = numbers[:C], numbers[C:]
    return HashedNgrams(objects, code // Q, code % Q, scores, bias, values, classes, bits, orders, repeats, prefix)
