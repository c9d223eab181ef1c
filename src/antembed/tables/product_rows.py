"""Product-quantized tables: every vector is cut into parts, and a part is the index of its nearest codebook entry.

As many parts as dimensions with 16 entries each are 4-bit numbers, with levels of their own for each column.
"""

from dataclasses import dataclass

import numpy as np

from antembed.tables.container import pack
from antembed.tables.encodings import Rows

NIBBLE = 16


def packed(codes: np.ndarray, entries: int) -> np.ndarray:
    """codes (V, parts) → bytes (V, parts), or two codes per byte, (V, ⌈parts/2⌉), if there are at most 16 entries."""
    if entries > NIBBLE:
        return codes.astype(np.uint8)
    even = np.pad(codes, ((0, 0), (0, codes.shape[1] % 2))).astype(np.uint8)
    return even[:, ::2] | (even[:, 1::2] << 4)


def unpacked(stored: np.ndarray, parts: int, entries: int) -> np.ndarray:
    """The inverse of `packed`, for some rows."""
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
        codes = unpacked(self.stored[ids], parts, entries)
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
    about = {
        "encoding": "product",
        "values": values,
        "objects": len(codes),
        "columns": parts * width,
        "dimensions": parts * width,
        "padding": padding,
    }
    arrays = {"codes": packed(codes, entries), "books": books.astype(kinds[values])}
    return pack(arrays, about)
