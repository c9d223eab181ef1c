"""Number formats of the file: fp32, fp16, or whole numbers with a scale for each column, in which only zeros become zeros.

int8, int6, int5 and int4 differ in how many numbers there are; all are stored as bytes, so only `packed` files get smaller.
"""

from typing import Any

import numpy as np

from antembed.tables.nonzeros import Nonzeros

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
    """The type of the anchors, never whole numbers: they are few, and every vector is made of them."""
    return np.float16 if values in LARGEST_CODES else VALUES[values]


LARGEST_NUMBER = float(np.finfo(np.float32).max)


def largest(array: np.ndarray) -> float:
    """The largest absolute number; of whole numbers and fp16, the largest that there can be: fp32 alone is read."""
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
    """x (V, K) as it is read back from a file with these values. `largest`: of whole numbers, if there are to be more."""
    if values not in LARGEST_CODES:
        return x.astype(VALUES[values]).astype(np.float32)
    codes, scales = quantize(x, max(LARGEST_CODES[values], largest))
    return codes * scales
