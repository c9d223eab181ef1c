"""T as arrays on disk: plain (every weight), bitmap (a bit a weight, then the non-zeros), CSR (columns and non-zeros).

Which is smallest depends on K and on how sparse T is: `encode` writes the smallest unless told otherwise.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

Arrays = dict[str, np.ndarray]


def smallest_unsigned(largest: int) -> np.dtype:
    """The narrowest unsigned type that holds `largest`."""
    return next(np.dtype(kind) for kind in ("u1", "u2", "u4", "u8") if largest <= np.iinfo(kind).max)


def encode_plain(T: np.ndarray) -> Arrays:
    return {"weights": T}


def encode_bitmap(T: np.ndarray) -> Arrays:
    nonzero = T != 0
    return {"bits": np.packbits(nonzero, axis=1, bitorder="little"), "values": T[nonzero]}


def encode_csr(T: np.ndarray) -> Arrays:
    nonzero = T != 0
    counts = nonzero.sum(axis=1)
    columns = np.nonzero(nonzero)[1]
    return {
        "counts": counts.astype(smallest_unsigned(int(counts.max(initial=0)))),
        "columns": columns.astype(smallest_unsigned(max(T.shape[1] - 1, 0))),
        "values": T[nonzero],
    }


@dataclass(frozen=True)
class PlainRows:
    """Row look-up in `plain`."""

    weights: np.ndarray  # (V, K)

    def __call__(self, ids: np.ndarray) -> np.ndarray:
        return self.weights[ids].astype(np.float32, copy=False)


class BitmapRows:
    """Row look-up in `bitmap`: where a row's values start is counted once, when the file is opened."""

    def __init__(self, bits: np.ndarray, values: np.ndarray, columns: int):
        self.bits, self.values, self.columns = bits, values, columns
        self.starts = starts_of(np.bitwise_count(bits).sum(axis=1, dtype=np.int64))

    def __call__(self, ids: np.ndarray) -> np.ndarray:
        nonzero = np.unpackbits(self.bits[ids], axis=1, count=self.columns, bitorder="little").astype(bool)
        rows = np.zeros((len(ids), self.columns), np.float32)
        rows[nonzero] = self.values[spans(self.starts, ids)]
        return rows


class CsrRows:
    """Row look-up in `csr`."""

    def __init__(self, counts: np.ndarray, columns: np.ndarray, values: np.ndarray, width: int):
        self.indices, self.values, self.columns = columns, values, width
        self.starts = starts_of(counts.astype(np.int64))

    def __call__(self, ids: np.ndarray) -> np.ndarray:
        where = spans(self.starts, ids)
        rows = np.zeros((len(ids), self.columns), np.float32)
        rows[np.repeat(np.arange(len(ids)), self.starts[ids + 1] - self.starts[ids]), self.indices[where]] = self.values[where]
        return rows


def starts_of(counts: np.ndarray) -> np.ndarray:
    """Where each row starts, and the end: (V + 1,)."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64)])


def spans(starts: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """Positions starts[i]…starts[i+1] for every i of ids, one after another."""
    counts = starts[ids + 1] - starts[ids]
    first = np.cumsum(counts) - counts
    return np.arange(counts.sum()) + np.repeat(starts[ids] - first, counts)


ENCODERS: dict[str, Callable[[np.ndarray], Arrays]] = {
    "plain": encode_plain,
    "bitmap": encode_bitmap,
    "csr": encode_csr,
}


def encoded_sizes(T: np.ndarray, bytes_per_value: int) -> dict[str, int]:
    """Bytes of T's arrays in each encoding, without encoding."""
    V, K = T.shape
    counts = np.count_nonzero(T, axis=1)
    nnz, most = int(counts.sum()), int(counts.max(initial=0))
    return {
        "plain": V * K * bytes_per_value,
        "bitmap": V * -(-K // 8) + nnz * bytes_per_value,
        "csr": V * smallest_unsigned(most).itemsize + nnz * (smallest_unsigned(max(K - 1, 0)).itemsize + bytes_per_value),
    }


def encode(T: np.ndarray, encoding: str) -> tuple[str, Arrays]:
    """→ the encoding's name and its arrays; "auto" takes the smallest."""
    if encoding == "auto":
        sizes = encoded_sizes(T, T.dtype.itemsize)
        encoding = min(sizes, key=lambda name: sizes[name])
    if encoding not in ENCODERS:
        raise ValueError(f"unknown encoding {encoding!r}; there are: auto, {', '.join(ENCODERS)}")
    return encoding, ENCODERS[encoding](T)
