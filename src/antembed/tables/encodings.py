"""T as arrays in the file: plain (every weight), bitmap (a bit per weight, then the non-zeros), CSR (columns and non-zeros),
and packed (a compressed bitmap, then the non-zeros).

Which is smallest depends on K and on the sparsity of T. `encode` chooses the smallest of the first three by default; packed
must be requested, since loading it takes time and the memory of a bitmap.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from types import ModuleType

import numpy as np

from antembed.files import JSON
from antembed.tables.container import DamagedError, pack
from antembed.tables.number_formats import Nonzeros, compressed, decompressed, smallest_unsigned
from antembed.tables.rows import Rows, empty_rows, kernels, on_all_cores

Arrays = dict[str, np.ndarray]
Stored = dict[str, np.ndarray | Nonzeros]
PIECE = 1 << 16  # rows at a time
COMPILED_FROM = 1 << 25  # products of weights and anchors' numbers, zeros counted; for fewer it does not pay to import Numba


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


def decode(arrays: Arrays, about: JSON) -> tuple[Rows, int]:
    """The row look-up, and nnz(T)."""
    encoding, columns = about["encoding"], about["columns"]
    if encoding == "plain":
        nnz = about["nonzeros"] if "nonzeros" in about else int(np.count_nonzero(arrays["weights"]))  # older files have none
        return PlainRows(arrays["weights"]), nnz
    if encoding == "packed":
        rows, wide = about["rows"] if "rows" in about else about["objects"], -(-columns // 8)
        plain = decompressed(arrays["coded_bits"], rows * wide)
        nnz = int(np.bitwise_count(plain).sum(dtype=np.int64))
        values = decompressed(arrays["coded_values"], nnz).view(np.int8) if "coded_values" in arrays else arrays["values"]
        return PackedRows(plain.reshape(wide, rows).T, values, arrays["order"]), len(values)
    values = arrays["values"]
    if encoding == "bitmap":
        return BitmapRows(arrays["bits"], values, columns), len(values)
    return CsrRows(arrays["counts"], arrays["columns"], values, columns), len(values)


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
    "plain": lambda T: {"weights": T},
    "bitmap": lambda T: {"bits": _bits(T), "values": T.values},
    "csr": lambda T: {
        "counts": T.counts.astype(smallest_unsigned(int(T.counts.max(initial=0)))),
        "columns": T.columns.astype(smallest_unsigned(max(T.width - 1, 0)), copy=False),
        "values": T.values,
    },
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
    """→ the encoding's name and its arrays; "auto" takes the smallest of plain, bitmap and csr."""
    if encoding == "auto":
        sizes = encoded_sizes(T, T.values.dtype.itemsize)
        encoding = min(sizes, key=lambda name: sizes[name])
    if encoding not in ENCODERS:
        raise ValueError(f"unknown encoding {encoding!r}; there are: auto, {', '.join(ENCODERS)}")
    return encoding, ENCODERS[encoding](T)


# Product-quantized tables: every vector is cut into parts, and a part is the index of its nearest codebook entry. As many parts
# as dimensions with 16 entries each are 4-bit numbers, with levels of their own for each column.

NIBBLE = 16  # values of four bits


def pack_codes(codes: np.ndarray, entries: int) -> np.ndarray:
    """codes (V, parts) → bytes (V, parts), or two codes per byte, (V, ⌈parts/2⌉), if there are at most 16 entries."""
    if entries > NIBBLE:
        return codes.astype(np.uint8)
    even = np.pad(codes, ((0, 0), (0, codes.shape[1] % 2))).astype(np.uint8)
    return even[:, ::2] | (even[:, 1::2] << 4)


def unpack_codes(stored: np.ndarray, parts: int, entries: int) -> np.ndarray:
    """The inverse of `pack_codes`, for some rows."""
    if entries > NIBBLE:
        return stored
    return np.stack([stored & 15, stored >> 4], axis=-1).reshape(len(stored), 2 * stored.shape[1])[:, :parts]


@dataclass(frozen=True)
class ProductRows(Rows):
    """Row look-up: ids (n,) → (n, d); padding is the zero vector."""

    stored: np.ndarray
    books: np.ndarray  # (parts, entries, d/parts)
    padding: int | None

    def __call__(self, ids: np.ndarray) -> np.ndarray:
        parts, entries, width = self.books.shape
        codes = unpack_codes(self.stored[ids], parts, entries)
        rows = self.books[np.arange(parts), codes].reshape(len(ids), parts * width).astype(np.float32, copy=False)
        if self.padding is not None:
            rows[ids == self.padding] = 0
        return rows

    @property
    def numbers(self) -> int:
        """Codes and codebook entries, counted as parameters."""
        return len(self.stored) * len(self.books) + self.books.size


def serialize_product(codes: np.ndarray, books: np.ndarray, padding: int | None, values: str = "fp32") -> bytes:
    """codes (V, parts), books (parts, entries, d/parts) → the bytes of the file; codebooks in fp32 or fp16."""
    kinds: dict[str, type[np.floating]] = {"fp32": np.float32, "fp16": np.float16}
    if values not in kinds:
        raise ValueError(f"the codebooks' values are one of {', '.join(kinds)}, not {values!r}")
    parts, entries, width = books.shape
    about = {"encoding": "product", "values": values, "objects": len(codes), "padding": padding}
    about |= {"columns": parts * width, "dimensions": parts * width}
    return pack({"codes": pack_codes(codes, entries), "books": books.astype(kinds[values])}, about)
