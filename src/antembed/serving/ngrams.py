"""The objects of a text without a list of them: words and word pairs, each known by a hash of its letters.

A file that names its objects by their hashes stores no words, and every text has objects, also of words never seen. Two objects
of one bucket are one object; whoever trains on buckets trains with these collisions.
"""

from collections.abc import Sequence
from hashlib import blake2b

import numpy as np

MOST_BITS = 24  # of a bucket's number: a look-up table of 2²⁴ two-byte rows is 32 MB


def hash_words(words: Sequence[str]) -> np.ndarray:
    """64 bits of each word's UTF-8 bytes: (V,) uint64. The same everywhere and for ever: they are what files refer to."""
    digests = b"".join(blake2b(word.encode(), digest_size=8).digest() for word in words)
    return np.frombuffer(digests, "<u8").astype(np.uint64)


def ngram_hashes(words: np.ndarray, starts: np.ndarray, orders: int) -> tuple[np.ndarray, np.ndarray]:
    """All runs of 1 … `orders` words that lie within a document: their hashes and their documents, (objects,) each.

    words: (total,) uint64, the hashes of the words; document n is words[starts[n]:starts[n + 1]].
    """
    documents = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
    hashes, owners, run = [_mixed(words)], [documents], words
    for more in range(1, orders):
        run = _mixed(run[:-1] * np.uint64(0x9E3779B97F4A7C15) + words[more:])
        inside = documents[:-more] == documents[more:]
        hashes.append(run[inside])
        owners.append(documents[:-more][inside])
    return np.concatenate(hashes), np.concatenate(owners)


def buckets_of(hashes: np.ndarray, bits: int) -> np.ndarray:
    """The first `bits` bits of each hash: (objects,) int64 in 0 … 2^bits − 1."""
    return (hashes >> np.uint64(64 - bits)).astype(np.int64)


def document_scales(starts: np.ndarray, orders: int) -> np.ndarray:
    """1/√(number of runs of words) of each document (n,): what the sum of its objects is multiplied by. 1 for empty ones."""
    lengths = np.diff(starts)
    runs = sum(np.maximum(lengths - more, 0) for more in range(orders))
    return 1 / np.sqrt(np.maximum(runs, 1))


def _mixed(bits: np.ndarray) -> np.ndarray:
    """Each bit of the answer depends on all bits (the end of MurmurHash3)."""
    bits = (bits ^ (bits >> np.uint64(33))) * np.uint64(0xFF51AFD7ED558CCD)
    bits = (bits ^ (bits >> np.uint64(33))) * np.uint64(0xC4CEB9FE1A85EC53)
    return bits ^ (bits >> np.uint64(33))
