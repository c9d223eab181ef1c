"""Look-up in a loaded table, with NumPy alone."""

import os
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from antembed.files import write_atomically
from antembed.serving.biases import BIAS_ARRAYS, decode_bias
from antembed.serving.checks import check_table
from antembed.serving.coded import CodedRows
from antembed.serving.encodings import Rows, ScaledRows, SharedRows, UncheckedRows, decode
from antembed.serving.product import ProductRows
from antembed.serving.words import WordIndex

PIECE = 1 << 16  # rows at a time


class Table:
    """Vectors by id: table[7] → (d,), table[ids] → (*ids.shape, d), table[2:5], len(table); where the file has words also by
    these: table["stock"], table[["stock", "bond"]], "stock" in table, table.most_similar("stock")."""

    checksums = "none"  # what is known of those in the file: "right", "not all compared", or it is older and has none

    def __init__(
        self,
        arrays: dict[str, np.ndarray],
        about: dict[str, Any],
        size: int,
        contents: bytes | None = None,
        *,
        scan: bool = True,
    ):
        check_table(arrays, about, scan)
        self._contents = contents
        self._bytes = {name: array.nbytes for name, array in arrays.items()}
        self.encoding, self.values, self.size = about["encoding"], about["values"], size
        self.num_embeddings, self.columns = about["objects"], about["columns"]
        self.embedding_dim = about["dimensions"]
        self.offset = about.get("offset", 0.0)  # older files have none
        anchors = arrays.get("anchors")
        self.anchors = None if anchors is None else anchors.astype(np.float32)
        self._bias = {name: arrays[name] for name in BIAS_ARRAYS & arrays.keys()}
        if scan:
            _ = self.bias
        self.rows: Rows
        self.words = WordIndex(arrays, self.num_embeddings) if "word_rows" in arrays else None
        if self.encoding == "coded":
            coded = CodedRows(arrays, about)
            self.rows, self.nnz = coded, int(about.get("nonzeros", 0))
        elif self.encoding == "product":
            product = ProductRows(arrays["codes"], arrays["books"], about["padding"])
            self.rows, self.nnz = product, product.numbers
        else:
            self.rows, self.nnz = decode(arrays, about)
        if not scan:
            self.rows = UncheckedRows(self.rows)
        if "scales" in arrays:
            self.rows = ScaledRows(self.rows, arrays["scales"])
        if "places" in arrays:
            self.rows = SharedRows(self.rows, arrays["places"])

    @cached_property
    def bias(self) -> np.ndarray | None:
        """(V,), or (1,) for all, in fp32; None: the file has none."""
        return decode_bias(self._bias, self.num_embeddings)

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
            ids = np.arange(*ids.indices(self.num_embeddings))
        ids = np.asarray(ids)
        if ids.dtype.kind in "UO":
            ids = self.ids(ids)
        flat = self._checked(ids)
        rows = self.rows(flat)
        vectors = rows if self.anchors is None else rows @ self.anchors
        return vectors.reshape(*ids.shape, self.embedding_dim)

    def ids(self, words: ArrayLike) -> np.ndarray:
        """The ids of words; a KeyError names the first that is unknown."""
        given = np.asarray(words)
        if self.words is None:
            raise KeyError(f"{given.reshape(-1)[0]!r}: this file has no words, look vectors up by their ids")
        found = np.empty(given.size, np.int64)
        for n, word in enumerate(given.reshape(-1).tolist()):
            row = self.words.find(str(word))
            if row is None:
                raise KeyError(f"{word!r} is none of the {len(self.words)} words; ask `word in table` before")
            found[n] = row
        return found.reshape(given.shape)

    def __contains__(self, word: object) -> bool:
        return isinstance(word, str) and self.words is not None and self.words.find(word) is not None

    def most_similar(self, query: str | ArrayLike, k: int = 10) -> list[tuple[str | int, float]]:
        """The k objects nearest by cosine to a word, or to a vector: (word or id, cosine). The word itself is left out."""
        own = int(self.ids(query)) if isinstance(query, str) else -1
        vector = self[own] if own >= 0 else np.asarray(query, np.float32)
        if vector.shape != (self.embedding_dim,):
            raise ValueError(f"a query has {vector.shape} numbers, vectors here have {self.embedding_dim}")
        scores = np.empty(self.num_embeddings, np.float32)
        for start in range(0, self.num_embeddings, PIECE):
            some = self[start : start + PIECE]
            lengths = np.linalg.norm(some, axis=1) * np.linalg.norm(vector)
            scores[start : start + PIECE] = (some @ vector) / np.maximum(lengths, 1e-12)
        if own >= 0:
            scores[own] = -np.inf
        k = min(k, self.num_embeddings - (own >= 0))
        best = np.argpartition(-scores, k - 1)[:k] if k else np.empty(0, np.int64)
        best = best[np.argsort(-scores[best], kind="stable")]
        return [(self.words.word(int(n)) if self.words is not None else int(n), float(scores[n])) for n in best]

    def sizes(self) -> dict[str, int]:
        """Bytes of the file by what they are for: rows, anchors, words, and the rest."""
        words = sum(size for name, size in self._bytes.items() if name.startswith("word_"))
        anchors = self._bytes.get("anchors", 0)
        rest = self.size - sum(self._bytes.values())
        return {"rows": self.size - words - anchors - rest, "anchors": anchors, "words": words, "header": rest}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the file of a table that was made in memory (antembed.compress)."""
        if self._contents is None:
            raise ValueError("this table was read from a file; copy that")
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(target, self._contents)

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
