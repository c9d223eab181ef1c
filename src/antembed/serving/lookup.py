"""Look-up in a loaded table, with NumPy alone."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from antembed.serving.biases import decode_bias
from antembed.serving.encodings import Rows, ScaledRows, SharedRows, decode
from antembed.serving.product import ProductRows


class Table:
    """Vectors by id: table[7] → (d,), table[ids] → (*ids.shape, d), table[2:5], len(table)."""

    def __init__(self, arrays: dict[str, np.ndarray], about: dict[str, Any], size: int):
        self.encoding, self.values, self.size = about["encoding"], about["values"], size
        self.num_embeddings, self.columns = about["objects"], about["columns"]
        self.embedding_dim = about["dimensions"]
        self.offset = about.get("offset", 0.0)  # older files have none
        anchors = arrays.get("anchors")
        self.anchors = None if anchors is None else anchors.astype(np.float32)
        self.bias = decode_bias(arrays, self.num_embeddings)
        self.rows: Rows
        if self.encoding == "product":
            product = ProductRows(arrays["codes"], arrays["books"], about["padding"])
            self.rows, self.nnz = product, product.numbers
        else:
            self.rows, self.nnz = decode(arrays, self.encoding, about.get("rows", self.num_embeddings), self.columns)
        if "scales" in arrays:
            self.rows = ScaledRows(self.rows, arrays["scales"])
        if "places" in arrays:
            self.rows = SharedRows(self.rows, arrays["places"])

    def __len__(self) -> int:
        return self.num_embeddings

    @property
    def shape(self) -> tuple[int, int]:
        return self.num_embeddings, self.embedding_dim

    @property
    def parameters(self) -> int:
        """nnz(T) + K·d, plus the non-zero biases and the offset."""
        anchored = 0 if self.anchors is None else self.anchors.size
        return self.nnz + anchored + (0 if self.bias is None else int(np.count_nonzero(self.bias))) + (self.offset != 0)

    def __getitem__(self, ids: slice | ArrayLike) -> np.ndarray:
        if isinstance(ids, slice):
            ids = np.arange(self.num_embeddings)[ids]
        ids = np.asarray(ids)
        flat = self._checked(ids)
        rows = self.rows(flat)
        vectors = rows if self.anchors is None else rows @ self.anchors
        return vectors.reshape(*ids.shape, self.embedding_dim)

    def bias_of(self, ids: ArrayLike) -> np.ndarray:
        """The biases of the objects, offset included; 0 if the file has none: (*ids.shape)."""
        ids = np.asarray(ids)
        flat = self._checked(ids)
        offset = np.float32(self.offset)
        if self.bias is None:
            return np.full(ids.shape, offset)
        own = np.broadcast_to(self.bias, (len(flat),)) if len(self.bias) == 1 else self.bias[flat]
        return (own + offset).reshape(ids.shape)

    def _checked(self, ids: np.ndarray) -> np.ndarray:
        if ids.size == 0:
            return np.empty(0, np.int64)
        if ids.dtype.kind not in "iu":
            raise TypeError(f"ids must be integers, got {ids.dtype}; convert them with astype(int)")
        flat = ids.reshape(-1).astype(np.int64)
        low, high = int(flat.min()), int(flat.max())
        if low < 0 or high >= self.num_embeddings:
            raise IndexError(
                f"id {low if low < 0 else high} is outside a table of {self.num_embeddings} rows "
                f"(0 to {self.num_embeddings - 1})"
            )
        return flat

    def __repr__(self) -> str:
        K = "no anchors" if self.anchors is None else f"{len(self.anchors)} anchors"
        return f"Table({self.num_embeddings} × {self.embedding_dim}, {K}, {self.encoding} {self.values}, {self.size} bytes)"
