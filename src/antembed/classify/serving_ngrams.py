"""Hashed n-grams: words, runs of words and beginnings of words, identified by a hash of their letters.

A file that refers to hashes stores no words, and any word has a hash, also one that training has not seen. Two n-grams in one
bucket are one object; training on buckets includes these collisions.
"""

from collections.abc import Iterable, Sequence
from hashlib import blake2b

import numpy as np

MOST_BITS = 24  # of a bucket's number: a look-up table of 2²⁴ two-byte rows is 32 MB


def hash_words(words: Sequence[str], prefix: int = 0) -> np.ndarray:
    """A 64-bit hash of each word's UTF-8 bytes: (V,) uint64. It must never change, since files refer to it.

    With a `prefix`, (V, 2): also one of the word's first `prefix` letters, 0 for words that are no longer than that.
    """
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

    words: (total,) or (total, 2) uint64, of hash_words; document n is words[starts[n]:starts[n + 1]].
    """
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
