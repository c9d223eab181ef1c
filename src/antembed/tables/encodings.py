"""T as arrays in the file: plain (every weight), bitmap (a bit per weight, then the non-zeros), CSR (columns and non-zeros),
and packed (a compressed bitmap, then the non-zeros).

Which is smallest depends on K and on the sparsity of T. `encode` chooses the smallest of the first three by default; packed
must be requested, since loading it takes time and the memory of a bitmap.
"""

import lzma
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from types import ModuleType

import numpy as np

from antembed.files import JSON
from antembed.tables.container import DamagedError
from antembed.tables.nonzeros import Dense, Nonzeros, smallest_unsigned
from antembed.tables.optional_kernels import empty_rows, kernels, on_all_cores

Arrays = dict[str, np.ndarray]
Stored = dict[str, np.ndarray | Dense]
FREE, MOST_TIMES = 1 << 24, 512  # what may be decompressed: so many bytes, and so many times as many as are stored
PIECE = 1 << 16  # rows at a time
COMPILED_FROM = 1 << 25  # products of weights and anchors' numbers, zeros counted; for fewer it does not pay to import Numba


def encode_plain(T: Nonzeros) -> Stored:
    return {"weights": Dense(T)}


def encode_bitmap(T: Nonzeros) -> Stored:
    return {"bits": _bits(T), "values": T.values}


def encode_csr(T: Nonzeros) -> Stored:
    return {
        "counts": T.counts.astype(smallest_unsigned(int(T.counts.max(initial=0)))),
        "columns": T.columns.astype(smallest_unsigned(max(T.width - 1, 0)), copy=False),
        "values": T.values,
    }


def encode_packed(T: Nonzeros) -> Stored:
    # The most used columns first, and the first bytes of all rows before the second ones: that compresses better.
    order = np.argsort(-T.by_column(), kind="stable")
    ordered = Nonzeros.gathered((block[:, order] for block in T.blocks()), T.width, T.values.dtype)
    arrays: Stored = {"coded_bits": compressed(_bits(ordered).T)}
    if ordered.values.dtype == np.int8 and len(smaller := compressed(ordered.values)) < len(ordered.values):
        arrays["coded_values"] = smaller
    else:
        arrays["values"] = ordered.values
    return arrays | {"order": order.astype(smallest_unsigned(max(T.width - 1, 0)))}


def _bits(T: Nonzeros) -> np.ndarray:
    """A bit per weight, (V, ⌈K/8⌉)."""
    packed = [np.packbits(block != 0, axis=1, bitorder="little") for block in T.blocks()]
    return np.concatenate([np.empty((0, -(-T.width // 8)), np.uint8), *packed])


# Bits and codes have no repeats worth a dictionary: what counts is LZMA's adaptive arithmetic coder, without contexts.
FILTERS = [{"id": lzma.FILTER_LZMA1, "preset": 9, "lc": 0, "lp": 0, "pb": 0, "dict_size": 1 << 16}]


def compressed(array: np.ndarray) -> np.ndarray:
    """The bytes of the array, compressed."""
    packed = lzma.compress(np.ascontiguousarray(array).tobytes(), lzma.FORMAT_RAW, filters=FILTERS)
    return np.frombuffer(packed, np.uint8)


def decompressed(array: np.ndarray, size: int) -> np.ndarray:
    """The inverse of `compressed`: `size` bytes, or a DamagedError."""
    _check_ratio(len(array), size)
    try:
        found = lzma.LZMADecompressor(lzma.FORMAT_RAW, filters=FILTERS).decompress(array.tobytes(), size + 1)
    except lzma.LZMAError as error:
        raise DamagedError(f"compressed bytes are damaged ({error})") from error
    if len(found) != size:
        raise DamagedError(f"compressed bytes hold {len(found)} bytes or more, {size} were expected")
    return np.frombuffer(found, np.uint8)


def inflated(array: np.ndarray, size: int) -> np.ndarray:
    """zlib's bytes, as older files have them."""
    _check_ratio(len(array), size)
    try:
        found = zlib.decompressobj().decompress(array.tobytes(), size + 1)
    except zlib.error as error:
        raise DamagedError(f"compressed bytes are damaged ({error})") from error
    if len(found) != size:
        raise DamagedError(f"compressed bytes hold {len(found)} bytes or more, {size} were expected")
    return np.frombuffer(found, np.uint8)


def _check_ratio(stored: int, size: int) -> None:
    """No table is so empty that it shrinks by more: a few forged bytes must not fill the memory."""
    if size > FREE + MOST_TIMES * stored:
        raise DamagedError(f"{stored} bytes claim to be {size}, at most {FREE + MOST_TIMES * stored} are plausible")


class Rows:
    """Row look-up: ids (n,) → rows of T (n, K) in fp32."""

    def __call__(self, ids: np.ndarray) -> np.ndarray:
        raise NotImplementedError

    def vectors(self, ids: np.ndarray, anchors: np.ndarray) -> np.ndarray:
        """Rows times `anchors` (K, d): (n, d)."""
        found: np.ndarray = self(ids) @ anchors
        return found


class SparseRows(Rows):
    """Rows whose vectors are added up from the non-zeros, compiled, where there are many to look up."""

    def vectors(self, ids: np.ndarray, anchors: np.ndarray) -> np.ndarray:
        if len(ids) * anchors.size < COMPILED_FROM or (found := kernels("tables.sparse_product_kernel")) is None:
            return super().vectors(ids, anchors)
        out = empty_rows(len(ids), anchors.shape[1])
        on_all_cores(self._mixer(found, ids, np.ascontiguousarray(anchors, np.float32), out), *out.shape)
        return out

    def _mixer(self, kernel: ModuleType, ids: np.ndarray, anchors: np.ndarray, out: np.ndarray) -> Callable[[int, int], None]:
        """What fills out[a:b]."""
        raise NotImplementedError


@dataclass(frozen=True)
class PlainRows(Rows):
    """Row look-up in `plain`."""

    weights: np.ndarray  # (V, K)

    def __call__(self, ids: np.ndarray) -> np.ndarray:
        return self.weights[ids].astype(np.float32, copy=False)


class BitmapRows(SparseRows):
    """Row look-up in `bitmap`: the start of each row's values is computed once, on the first look-up."""

    def __init__(self, bits: np.ndarray, values: np.ndarray, columns: int):
        self.bits, self.values, self.columns = bits, values, columns

    @cached_property
    def starts(self) -> np.ndarray:
        """The start of each row's values."""
        parts = [self.bits[at : at + PIECE] for at in range(0, len(self.bits), PIECE)]
        if self.columns % 8 and any((part[:, -1] >> self.columns % 8).any() for part in parts):
            raise DamagedError(f"a row has weights beyond its {self.columns} columns")
        counts = [np.bitwise_count(part).sum(axis=1, dtype=np.uint32) for part in parts]
        return starts_of(np.concatenate([np.empty(0, np.uint32), *counts]), len(self.values))

    def __call__(self, ids: np.ndarray) -> np.ndarray:
        nonzero = np.unpackbits(self.bits[ids], axis=1, count=self.columns, bitorder="little").astype(bool)
        rows = np.zeros((len(ids), self.columns), np.float32)
        rows[nonzero] = self.values[spans(self.starts, ids)]
        return rows

    def _mixer(self, kernel: ModuleType, ids: np.ndarray, anchors: np.ndarray, out: np.ndarray) -> Callable[[int, int], None]:
        which, starts, values = _numbers(self.starts, self.values, ids)
        bits = self.bits if which is ids else self.bits[ids]
        return lambda a, b: kernel.mix_bitmap(a, b, which, starts, bits, values, anchors, out)


class CsrRows(SparseRows):
    """Row look-up in `csr`."""

    def __init__(self, counts: np.ndarray, columns: np.ndarray, values: np.ndarray, width: int):
        self.counts, self.indices, self.values, self.columns = counts, columns, values, width

    @cached_property
    def starts(self) -> np.ndarray:
        """The start of each row's values."""
        return starts_of(self.counts, len(self.values))

    def __call__(self, ids: np.ndarray) -> np.ndarray:
        where = spans(self.starts, ids)
        rows = np.zeros((len(ids), self.columns), np.float32)
        rows[np.repeat(np.arange(len(ids)), self.counts[ids]), self.indices[where]] = self.values[where]
        return rows

    def _mixer(self, kernel: ModuleType, ids: np.ndarray, anchors: np.ndarray, out: np.ndarray) -> Callable[[int, int], None]:
        which, starts, values = _numbers(self.starts, self.values, ids)
        columns = self.indices if which is ids else self.indices[spans(self.starts, ids)]

        def work(a: int, b: int) -> None:
            damaged = np.full(1, -1, np.int64)
            kernel.mix_csr(a, b, which, starts, columns, values, anchors, out, damaged)
            if damaged[0] >= 0:
                raise DamagedError(f"row {damaged[0]} has an anchor that is none of the {self.columns}")

        return work


def _numbers(starts: np.ndarray, values: np.ndarray, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """ids, starts and values for a kernel, which knows no fp16: only what is looked up is converted."""
    if values.dtype != np.float16:
        return ids, starts, values
    where = spans(starts, ids)
    counts = (starts[ids + 1] - starts[ids]).astype(np.int64)
    return np.arange(len(ids)), np.concatenate([[0], np.cumsum(counts)]), values[where].astype(np.float32)


class PackedRows(Rows):
    """Row look-up in `packed`: a bitmap after decompression, with its columns in another order."""

    def __init__(self, bits: np.ndarray, values: np.ndarray, order: np.ndarray):
        self.inner, self.columns = BitmapRows(np.ascontiguousarray(bits), values, len(order)), np.argsort(order)
        self.order = order
        _ = self.inner.starts  # checks the bits

    def __call__(self, ids: np.ndarray) -> np.ndarray:
        return self.inner(ids)[:, self.columns]

    def vectors(self, ids: np.ndarray, anchors: np.ndarray) -> np.ndarray:
        return self.inner.vectors(ids, anchors[self.order])


@dataclass(frozen=True)
class ScaledRows(Rows):
    """Row look-up in int8: codes times the scales of their columns."""

    inner: Rows
    scales: np.ndarray  # (K,)

    def __call__(self, ids: np.ndarray) -> np.ndarray:
        return self.inner(ids) * self.scales

    def vectors(self, ids: np.ndarray, anchors: np.ndarray) -> np.ndarray:
        return self.inner.vectors(ids, anchors * self.scales[:, None])


@dataclass(frozen=True)
class SharedRows(Rows):
    """Row look-up where objects share rows."""

    inner: Rows
    row_index: np.ndarray  # (V,)

    def __call__(self, ids: np.ndarray) -> np.ndarray:
        return self.inner(self.row_index[ids].astype(np.int64))

    def vectors(self, ids: np.ndarray, anchors: np.ndarray) -> np.ndarray:
        return self.inner.vectors(self.row_index[ids].astype(np.int64), anchors)


@dataclass(frozen=True)
class UncheckedRows(Rows):
    """Row look-up in a file that is too large to be checked when it is opened: what is wrong is found when it is used."""

    inner: Rows

    def __call__(self, ids: np.ndarray) -> np.ndarray:
        with self._explained():
            return self.inner(ids)

    def vectors(self, ids: np.ndarray, anchors: np.ndarray) -> np.ndarray:
        with self._explained():
            return self.inner.vectors(ids, anchors)

    @staticmethod
    @contextmanager
    def _explained() -> Iterator[None]:
        try:
            yield
        except IndexError as error:
            raise DamagedError(f"a row is damaged ({error}); load the file with verify=True, and copy it again") from None


def decode(arrays: Arrays, about: JSON) -> tuple[Rows, int]:
    """The row look-up, and nnz(T)."""
    encoding, columns = about["encoding"], about["columns"]
    if encoding == "plain":
        nnz = about["nonzeros"] if "nonzeros" in about else int(np.count_nonzero(arrays["weights"]))  # older files have none
        return PlainRows(arrays["weights"]), nnz
    if encoding == "packed":
        return _decode_packed(arrays, about["rows"] if "rows" in about else about["objects"], columns)
    values = arrays["values"]
    if encoding == "bitmap":
        return BitmapRows(arrays["bits"], values, columns), len(values)
    return CsrRows(arrays["counts"], arrays["columns"], values, columns), len(values)


def _decode_packed(arrays: Arrays, rows: int, columns: int) -> tuple[Rows, int]:
    wide = -(-columns // 8)
    old, bits_size = "packed_bits" in arrays, rows * wide
    plain = inflated(arrays["packed_bits"], bits_size) if old else decompressed(arrays["coded_bits"], bits_size)
    bits = plain.reshape(wide, rows).T
    nnz = int(np.bitwise_count(plain).sum(dtype=np.int64))
    if "coded_values" in arrays:
        values = decompressed(arrays["coded_values"], nnz).view(np.int8)
    else:
        values = inflated(arrays["packed_values"], nnz).view(np.int8) if "packed_values" in arrays else arrays["values"]
    return PackedRows(bits, values, arrays["order"]), len(values)


def starts_of(counts: np.ndarray, total: int) -> np.ndarray:
    """The start of each row, and the end of the last: (V + 1,). There are `total` numbers."""
    starts = np.zeros(len(counts) + 1, np.uint32 if total < 1 << 32 else np.uint64)
    np.cumsum(counts, dtype=starts.dtype, out=starts[1:])
    if int(starts[-1]) != total or int(counts.sum(dtype=np.uint64)) != total:
        raise DamagedError(f"the rows have {int(counts.sum(dtype=np.uint64))} numbers, {total} were found")
    return starts


def spans(starts: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """Positions starts[i]…starts[i+1] for every i of ids, concatenated."""
    begin = starts[ids].astype(np.int64)
    counts = starts[ids + 1].astype(np.int64) - begin
    first = np.cumsum(counts) - counts
    return np.arange(counts.sum()) + np.repeat(begin - first, counts)


ENCODERS: dict[str, Callable[[Nonzeros], Stored]] = {
    "plain": encode_plain,
    "bitmap": encode_bitmap,
    "csr": encode_csr,
    "packed": encode_packed,
}


def encoded_sizes(T: Nonzeros, bytes_per_value: int) -> dict[str, int]:
    """Bytes of T's arrays in each encoding without compression, computed without encoding."""
    V, K = T.shape
    nnz, most = len(T.values), int(T.counts.max(initial=0))
    return {
        "plain": V * K * bytes_per_value,
        "bitmap": V * -(-K // 8) + nnz * bytes_per_value,
        "csr": V * smallest_unsigned(most).itemsize + nnz * (smallest_unsigned(max(K - 1, 0)).itemsize + bytes_per_value),
    }


def encode(T: Nonzeros, encoding: str) -> tuple[str, Stored]:
    """→ the encoding's name and its arrays; "auto" takes the smallest."""
    if encoding == "auto":
        sizes = encoded_sizes(T, T.values.dtype.itemsize)
        encoding = min(sizes, key=lambda name: sizes[name])
    if encoding not in ENCODERS:
        raise ValueError(f"unknown encoding {encoding!r}; there are: auto, {', '.join(ENCODERS)}")
    return encoding, ENCODERS[encoding](T)
