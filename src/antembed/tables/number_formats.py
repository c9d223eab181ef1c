"""How numbers are stored: fp32, fp16, or integers with a scale for each column; the non-zeros of T; biases; compression.

int8, int6, int5 and int4 differ in how many numbers there are; all are stored as bytes, so only `packed` files get smaller.
Only zeros become zeros.
"""

import lzma
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from antembed.tables.container import DamagedError

Arrays = dict[str, np.ndarray]
ALWAYS_ALLOWED_BYTES, MAX_EXPANSION = 1 << 24, 512  # of what is decompressed: so many bytes, or times as many as are stored
BLOCK = 1 << 16  # rows that are dense at a time


def smallest_unsigned(largest: int) -> np.dtype:
    """The narrowest unsigned type that holds `largest`."""
    return next(np.dtype(kind) for kind in ("u1", "u2", "u4", "u8") if largest <= np.iinfo(kind).max)


@dataclass(frozen=True)
class Nonzeros:
    """A matrix (V, K): how many non-zeros each row has (V,), their columns (nnz,) and their values (nnz,). It is made and
    written block by block (container.Stream), so that a T which lies in several processes is never dense in one of them."""

    width: int  # K
    counts: np.ndarray
    columns: np.ndarray
    values: np.ndarray

    @classmethod
    def of(cls, T: np.ndarray) -> "Nonzeros":
        """Of a dense matrix (V, K)."""
        return cls.gathered((T[at : at + BLOCK] for at in range(0, len(T), BLOCK)), T.shape[1], T.dtype)

    @classmethod
    def gathered(cls, blocks: Iterable[np.ndarray], width: int, dtype: np.dtype) -> "Nonzeros":
        """Of dense blocks of rows, one after the other."""
        kind = smallest_unsigned(max(width - 1, 0))
        counts, columns, values = [np.empty(0, smallest_unsigned(width))], [np.empty(0, kind)], [np.empty(0, dtype)]
        for block in blocks:
            nonzero = block != 0
            counts.append(nonzero.sum(axis=1).astype(counts[0].dtype))
            columns.append(np.nonzero(nonzero)[1].astype(kind))
            values.append(block[nonzero])
        return cls(width, *(np.concatenate(parts) for parts in (counts, columns, values)))

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.counts), self.width

    @property
    def dtype(self) -> np.dtype:
        return self.values.dtype

    @property
    def nbytes(self) -> int:
        """Of the dense matrix."""
        return len(self) * self.width * self.dtype.itemsize

    def __len__(self) -> int:
        return len(self.counts)

    def by_column(self) -> np.ndarray:
        """How many non-zeros each column has, (K,)."""
        return np.bincount(self.columns, minlength=self.width)

    def narrowed(self, kept: np.ndarray) -> "Nonzeros":
        """Without those columns, all of them zero, that are not `kept` (K,)."""
        number = np.cumsum(kept) - 1
        width = int(kept.sum())
        return Nonzeros(width, self.counts, number.astype(smallest_unsigned(max(width - 1, 0)))[self.columns], self.values)

    def with_values(self, values: np.ndarray) -> "Nonzeros":
        """Other numbers in these positions; those that are zero now are left out."""
        if (values != 0).all():
            return Nonzeros(self.width, self.counts, self.columns, values)
        kept = values != 0
        ends = np.cumsum(self.counts, dtype=np.int64)
        before = np.concatenate([[0], np.cumsum(kept)])
        counts = before[ends] - before[ends - self.counts]
        return Nonzeros(self.width, counts.astype(self.counts.dtype), self.columns[kept], values[kept])

    def blocks(self) -> Iterator[np.ndarray]:
        """Dense blocks of rows."""
        if len(self.values) == len(self) * self.width:
            full = self.values.reshape(self.shape)
            yield from (full[at : at + BLOCK] for at in range(0, len(self), BLOCK))
            return
        end = 0
        for at in range(0, len(self.counts), BLOCK):
            counts = self.counts[at : at + BLOCK]
            begin, end = end, end + int(counts.sum(dtype=np.int64))
            dense = np.zeros((len(counts), self.width), self.values.dtype)
            dense[np.repeat(np.arange(len(counts)), counts), self.columns[begin:end]] = self.values[begin:end]
            yield dense


VALUES: dict[str, type[np.number]] = {"fp32": np.float32, "fp16": np.float16, "int8": np.int8}
LARGEST_CODES = {"int8": 127, "int6": 31, "int5": 15, "int4": 7}
VALUES |= dict.fromkeys(LARGEST_CODES, np.int8)


def quantize(x: np.ndarray, largest: int = 127) -> tuple[np.ndarray, np.ndarray]:
    """x (V, K) ≈ codes·scales: codes (V, K) in ±largest, scales (K,) in fp32. |x − codes·scale| ≤ scale/2, or ≤ scale where a
    number too small for its scale is stored as ±1, so that the number of non-zeros does not change."""
    scales = _scales(np.abs(x).max(axis=0, initial=0), largest)
    return _codes(x, scales, largest), scales


def quantize_nonzeros(T: Nonzeros, largest: int) -> tuple[Nonzeros, np.ndarray]:
    """The same of a matrix of which only the non-zeros are there."""
    most = np.zeros(T.width, T.values.dtype)
    np.maximum.at(most, T.columns, np.abs(T.values))
    scales = _scales(most, largest)
    return T.with_values(_codes(T.values, scales[T.columns], largest)), scales


def _scales(most: np.ndarray, largest: int) -> np.ndarray:
    """(K,) from the largest number of each column. A smaller, subnormal scale would lose precision."""
    return np.maximum(most / largest, np.finfo(np.float32).tiny).astype(np.float32)


def _codes(x: np.ndarray, scales: np.ndarray, largest: int) -> np.ndarray:
    codes = np.rint(x / scales.astype(np.float64))
    codes = np.where(codes == 0, np.sign(x), codes)
    return np.clip(codes, -largest, largest).astype(np.int8)


def anchors_as(values: str) -> type[np.number[Any]]:
    """The type of the anchors, never integers: they are few, and every vector is made of them."""
    return np.float16 if values in LARGEST_CODES else VALUES[values]


LARGEST_NUMBER = float(np.finfo(np.float32).max)


def largest(array: np.ndarray) -> float:
    """The largest absolute number; of integers and fp16, the largest that there can be: fp32 alone is read."""
    if array.dtype != np.float32:
        return float(np.finfo(np.float16).max) if array.dtype == np.float16 else float(-np.iinfo(array.dtype).min)
    return float(max(array.max(initial=0), -array.min(initial=0)))


def vector_bound(weights: np.ndarray, anchors: np.ndarray | None) -> float:
    """A bound of the numbers of T and of T·A, where |T| is at most `weights` (K,) by column; no row is read."""
    most = weights.astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        reach = 0.0 if anchors is None else float((most * np.abs(anchors).max(1, initial=0)).sum())
    return max(float(most.max(initial=0)), reach)


class RangeError(ValueError):
    """Numbers that a type cannot hold."""


def check_fits(name: str, array: np.ndarray, stored: type[np.number[Any]]) -> None:
    """Raise if a number is not finite, or out of the range of the stored type; int8 has scales in fp32."""
    largest = float(np.abs(array).max(initial=0.0))
    if not np.isfinite(largest):
        raise ValueError(f"{name} has a value of {largest}; training has diverged, lower the learning rate")
    kind = "fp16" if stored is np.float16 else "fp32"
    if largest > float(np.finfo(np.float16 if stored is np.float16 else np.float32).max):
        raise RangeError(f"{name} has a value of {largest:g}, beyond {kind}; take values='fp32'")


def stored_as(x: np.ndarray, values: str, largest: int = 0) -> np.ndarray:
    """x (V, K) as it is read back from a file with these values. `largest`: of integers, if there are to be more."""
    if values not in LARGEST_CODES:
        return x.astype(VALUES[values]).astype(np.float32)
    codes, scales = quantize(x, max(LARGEST_CODES[values], largest))
    return codes * scales


# Bits and codes have no repeats worth a dictionary: what counts is LZMA's adaptive arithmetic coder, without contexts.
FILTERS = [{"id": lzma.FILTER_LZMA1, "preset": 9, "lc": 0, "lp": 0, "pb": 0, "dict_size": 1 << 16}]


def compressed(array: np.ndarray) -> np.ndarray:
    """The bytes of the array, compressed."""
    packed = lzma.compress(np.ascontiguousarray(array).tobytes(), lzma.FORMAT_RAW, filters=FILTERS)
    return np.frombuffer(packed, np.uint8)


def decompressed(array: np.ndarray, size: int) -> np.ndarray:
    """The inverse of `compressed`: `size` bytes, or a DamagedError."""
    plausible = ALWAYS_ALLOWED_BYTES + MAX_EXPANSION * len(array)  # a few forged bytes must not fill the memory
    if size > plausible:
        raise DamagedError(f"{len(array)} bytes claim to be {size}, at most {plausible} are plausible")
    try:
        found = lzma.LZMADecompressor(lzma.FORMAT_RAW, filters=FILTERS).decompress(array.tobytes(), size + 1)
    except lzma.LZMAError as error:
        raise DamagedError(f"compressed bytes are damaged ({error})") from error
    if len(found) != size:
        raise DamagedError(f"compressed bytes hold {len(found)} bytes or more, {size} were expected")
    return np.frombuffer(found, np.uint8)


LEAST_CODES = 63  # a bias is in every prediction, and there is one for an object: it is never coarser than this
BIAS_ARRAYS = {"bias", "coded_bias", "bias_bits", "bias_scale"}
BITMAP_FROM = 1 / 3  # share of zeros from which a bitmap is used


def encode_bias(bias: np.ndarray, num_embeddings: int, values: str, pack: bool = False) -> Arrays:
    """bias (V,) or (1,) → the arrays of the file. `pack`: compress them if that makes them smaller."""
    bias = np.atleast_1d(bias)
    if bias.shape not in ((1,), (num_embeddings,)):
        given = f"bias has the shape {bias.shape} for {num_embeddings} objects"
        raise ValueError(f"{given}; give one number for each, or one for all")
    check_fits("bias", bias, VALUES[values])
    if len(bias) == 1:
        return {"bias": bias.astype(np.float32 if values in LARGEST_CODES else VALUES[values])}
    arrays: Arrays = {}
    if values in LARGEST_CODES:
        codes, arrays["bias_scale"] = quantize(bias[:, None], max(LARGEST_CODES[values], LEAST_CODES))
        stored = codes[:, 0]
    else:
        stored = bias.astype(VALUES[values])
    nonzero = stored != 0
    if nonzero.sum() <= (1 - BITMAP_FROM) * num_embeddings:
        arrays["bias_bits"] = np.packbits(nonzero, bitorder="little")
        stored = stored[nonzero]
    if pack and stored.dtype == np.int8 and len(smaller := compressed(stored)) < len(stored):
        return arrays | {"coded_bias": smaller}
    return arrays | {"bias": stored}


def decode_bias(arrays: Arrays, num_embeddings: int) -> np.ndarray | None:
    """The inverse of encode_bias, in fp32; None if the file has no biases."""
    if not arrays:
        return None
    nonzero, count = None, num_embeddings
    if "bias_bits" in arrays:
        nonzero = np.unpackbits(arrays["bias_bits"], bitorder="little").astype(bool)
        count = int(np.count_nonzero(nonzero))
        if nonzero[num_embeddings:].any():
            raise DamagedError(f"there are biases beyond the {num_embeddings} objects")
    if "coded_bias" in arrays:
        bias = decompressed(arrays["coded_bias"], count).view(np.int8).astype(np.float32)
    else:
        bias = arrays["bias"].astype(np.float32, copy=False)
    if len(bias) != count and (nonzero is not None or len(bias) != 1):
        raise DamagedError(f"{len(bias)} biases, {count} were expected")
    if "bias_scale" in arrays:
        bias = bias * arrays["bias_scale"]
    if not np.isfinite(bias).all():
        raise DamagedError("a bias is not finite")
    if nonzero is None:
        return bias
    full = np.zeros(num_embeddings, np.float32)
    full[nonzero[:num_embeddings]] = bias
    return full
