"""T as arrays in the file: plain (every weight), bitmap (a bit per weight, then the non-zeros), CSR (columns and non-zeros),
and packed (a compressed bitmap, then the non-zeros).

Which is smallest depends on K and on the sparsity of T. `encode` chooses the smallest of the first three by default; packed
must be requested, since loading it takes time and the memory of a bitmap.
"""

import lzma
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from antembed.serving.container import DamagedError

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


def encode_packed(T: np.ndarray) -> Arrays:
    # The most used columns first, and the first bytes of all rows before the second ones: that compresses better.
    order = np.argsort(-np.count_nonzero(T, axis=0), kind="stable")
    arrays = encode_bitmap(T[:, order])
    arrays["coded_bits"] = compressed(arrays.pop("bits").T)
    if T.dtype == np.int8 and len(smaller := compressed(arrays["values"])) < len(arrays["values"]):
        del arrays["values"]
        arrays["coded_values"] = smaller
    return arrays | {"order": order.astype(smallest_unsigned(max(T.shape[1] - 1, 0)))}


# Bits and codes have no repeats worth a dictionary: what counts is LZMA's adaptive arithmetic coder, without contexts.
FILTERS = [{"id": lzma.FILTER_LZMA1, "preset": 9, "lc": 0, "lp": 0, "pb": 0, "dict_size": 1 << 16}]


def compressed(array: np.ndarray) -> np.ndarray:
    """The bytes of the array, compressed."""
    packed = lzma.compress(np.ascontiguousarray(array).tobytes(), lzma.FORMAT_RAW, filters=FILTERS)
    return np.frombuffer(packed, np.uint8)


def decompressed(array: np.ndarray, size: int) -> np.ndarray:
    """The inverse of `compressed`: `size` bytes, or a DamagedError."""
    try:
        found = lzma.LZMADecompressor(lzma.FORMAT_RAW, filters=FILTERS).decompress(array.tobytes(), size + 1)
    except lzma.LZMAError as error:
        raise DamagedError(f"compressed bytes are damaged ({error})") from error
    if len(found) != size:
        raise DamagedError(f"compressed bytes hold {len(found)} bytes or more, {size} were expected")
    return np.frombuffer(found, np.uint8)


def inflated(array: np.ndarray) -> np.ndarray:
    """zlib's bytes, as older files have them."""
    return np.frombuffer(zlib.decompress(array.tobytes()), np.uint8)


class Rows(Protocol):
    """Row look-up: ids (n,) → rows of T (n, K) in fp32."""

    def __call__(self, ids: np.ndarray) -> np.ndarray: ...


@dataclass(frozen=True)
class PlainRows:
    """Row look-up in `plain`."""

    weights: np.ndarray  # (V, K)

    def __call__(self, ids: np.ndarray) -> np.ndarray:
        return self.weights[ids].astype(np.float32, copy=False)


class BitmapRows:
    """Row look-up in `bitmap`: the start of each row's values is computed once, on loading."""

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


class PackedRows:
    """Row look-up in `packed`: a bitmap after decompression, with its columns in another order."""

    def __init__(self, bits: np.ndarray, values: np.ndarray, order: np.ndarray):
        self.inner, self.columns = BitmapRows(np.ascontiguousarray(bits), values, len(order)), np.argsort(order)

    def __call__(self, ids: np.ndarray) -> np.ndarray:
        return self.inner(ids)[:, self.columns]


@dataclass(frozen=True)
class ScaledRows:
    """Row look-up in int8: codes times the scales of their columns."""

    inner: Rows
    scales: np.ndarray  # (K,)

    def __call__(self, ids: np.ndarray) -> np.ndarray:
        return self.inner(ids) * self.scales


@dataclass(frozen=True)
class SharedRows:
    """Row look-up where objects share rows."""

    inner: Rows
    row_index: np.ndarray  # (V,)

    def __call__(self, ids: np.ndarray) -> np.ndarray:
        return self.inner(self.row_index[ids].astype(np.int64))


def decode(arrays: Arrays, encoding: str, rows: int, columns: int) -> tuple[Rows, int]:
    """The row look-up, and nnz(T)."""
    if encoding == "plain":
        return PlainRows(arrays["weights"]), int(np.count_nonzero(arrays["weights"]))
    if encoding == "packed":
        return _decode_packed(arrays, rows, columns)
    values = arrays["values"]
    if encoding == "bitmap":
        return BitmapRows(arrays["bits"], values, columns), len(values)
    return CsrRows(arrays["counts"], arrays["columns"], values, columns), len(values)


def _decode_packed(arrays: Arrays, rows: int, columns: int) -> tuple[Rows, int]:
    wide = -(-columns // 8)
    plain = inflated(arrays["packed_bits"]) if "packed_bits" in arrays else decompressed(arrays["coded_bits"], rows * wide)
    bits = plain.reshape(wide, rows).T
    if "coded_values" in arrays:
        values = decompressed(arrays["coded_values"], int(np.bitwise_count(bits).sum(dtype=np.int64))).view(np.int8)
    else:
        values = inflated(arrays["packed_values"]).view(np.int8) if "packed_values" in arrays else arrays["values"]
    return PackedRows(bits, values, arrays["order"]), len(values)


def starts_of(counts: np.ndarray) -> np.ndarray:
    """The start of each row, and the end of the last: (V + 1,)."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64)])


def spans(starts: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """Positions starts[i]…starts[i+1] for every i of ids, concatenated."""
    counts = starts[ids + 1] - starts[ids]
    first = np.cumsum(counts) - counts
    return np.arange(counts.sum()) + np.repeat(starts[ids] - first, counts)


ENCODERS: dict[str, Callable[[np.ndarray], Arrays]] = {
    "plain": encode_plain,
    "bitmap": encode_bitmap,
    "csr": encode_csr,
    "packed": encode_packed,
}


def encoded_sizes(T: np.ndarray, bytes_per_value: int) -> dict[str, int]:
    """Bytes of T's arrays in each encoding without compression, computed without encoding."""
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
