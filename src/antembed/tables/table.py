"""Look-up in a loaded table, with NumPy alone."""

import os
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from antembed.files import JSON, write_atomically
from antembed.tables import neighbours as products
from antembed.tables.checks import check_table, check_vectors, largest_weights
from antembed.tables.container import DamagedError
from antembed.tables.encodings import ProductRows, decode
from antembed.tables.entropy_rows import CodedRows
from antembed.tables.neighbours import best
from antembed.tables.number_formats import BIAS_ARRAYS, decode_bias
from antembed.tables.rows import Cache, Decode, Rows, ScaledRows, SharedRows, UncheckedRows
from antembed.tables.sparse_entropy_rows import SparseCodedRows
from antembed.tables.word_index import WordIndex


def anchors_of(arrays: dict[str, np.ndarray]) -> np.ndarray | None:
    """A in float32: int8 anchors times their scales, and the mean behind them, where a file has these."""
    if "anchors" not in arrays:
        return None
    anchors: np.ndarray = arrays["anchors"].astype(np.float32)
    if "anchor_scales" in arrays:
        scales, mean = arrays["anchor_scales"], arrays["mean"]
        anchors = np.concatenate([anchors * scales.astype(np.float32)[:, None], mean[None].astype(np.float32)])
    return anchors


def read_only(array: np.ndarray) -> np.ndarray:
    """As arrays of files that are mapped are: kernels compile once for both."""
    found = array.view()
    found.flags.writeable = False
    return found


class Table:
    """Vectors by id: table[7] → (d,), table[ids] → (*ids.shape, d), table[2:5], len(table); where the file has words also by
    these: table["stock"], table[["stock", "bond"]], "stock" in table, table.most_similar("stock")."""

    checksums = "none"  # what is known of those in the file: "right", "not all compared", or it is older and has none

    def __init__(
        self, arrays: dict[str, np.ndarray], about: JSON, size: int, contents: bytes | None = None, *, scan: bool = True
    ):
        check_table(arrays, about, scan)
        arrays = {name: read_only(array) for name, array in arrays.items()}
        self._contents = contents
        self._cache: Cache | None = None
        self._bytes = {name: array.nbytes for name, array in arrays.items()}
        self.encoding, self.values, self.size = about["encoding"], about["values"], size
        self.num_embeddings, self.columns, self.embedding_dim = about["objects"], about["columns"], about["dimensions"]
        self.offset = about.get("offset", 0.0)  # older files have none
        self.anchors = anchors_of(arrays)
        self._bias = {name: arrays[name] for name in BIAS_ARRAYS & arrays.keys()}
        if scan:
            _ = self.bias
        self.rows: Rows
        self.words = WordIndex(arrays, self.num_embeddings) if "word_rows" in arrays else None
        self.tokens = {name: array for name, array in arrays.items() if name.startswith("token")}  # static_model.py
        if self.encoding in ("coded", "sparse"):
            coded = CodedRows if self.encoding == "coded" else SparseCodedRows
            self.rows, self.nnz = coded(arrays, about), int(about.get("nonzeros", 0))
        elif self.encoding == "product":
            product = ProductRows(arrays["codes"], arrays["books"], about.get("padding"))
            self.rows, self.nnz = product, product.numbers
        else:
            self.rows, self.nnz = decode(arrays, about)
        token_weights = self.tokens.get("token_weights")
        self._scanned = scan or self.encoding in ("coded", "sparse")  # which check what they decode
        if isinstance(self.rows, CodedRows | SparseCodedRows):
            check_vectors(self.rows.largest, self.anchors, token_weights)
        elif scan and self.encoding != "product":  # whose vectors are stored as they are
            check_vectors(largest_weights(arrays, self.columns), self.anchors, token_weights)
        if not self._scanned:
            self.rows = UncheckedRows(self.rows)
        if "scales" in arrays:
            self.rows = ScaledRows(self.rows, arrays["scales"])
        if "places" in arrays:
            self.rows = SharedRows(self.rows, arrays["places"])

    @cached_property
    def bias(self) -> np.ndarray | None:
        """(V,), or (1,) for all, in fp32; None: the file has none."""
        return decode_bias(self._bias, self.num_embeddings)

    @property
    def has_bias(self) -> bool:
        return self.bias is not None or self.offset != 0

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
        vectors = self._vectors(flat) if self._cache is None else self._cache(flat)
        return vectors.reshape(*ids.shape, self.embedding_dim)

    def ids(self, words: ArrayLike) -> np.ndarray:
        """The ids of words; a KeyError names the first that is unknown."""
        given = np.asarray(words)
        if self.words is None:
            raise KeyError(f"{str(given.reshape(-1)[0])!r}: this file has no words, look vectors up by their ids")
        found = np.empty(given.size, np.int64)
        for n, word in enumerate(given.reshape(-1).tolist()):
            row = self.words.find(str(word))
            if row is None:
                raise KeyError(f"{word!r} is none of the {len(self.words)} words; ask `word in table` before")
            found[n] = row
        return found.reshape(given.shape)

    def __contains__(self, word: object) -> bool:
        return isinstance(word, str) and self.words is not None and self.words.find(word) is not None

    def bag(
        self, ids: ArrayLike, offsets: ArrayLike | None = None, mode: str = "mean", weights: ArrayLike | None = None
    ) -> np.ndarray:
        """Means or sums of vectors, as of nn.EmbeddingBag: ids or words (n,) and where each bag begins (B,), or ids (B, n) →
        (B, d). An empty bag is 0. `weights`: of each id, for mode="sum"."""
        if mode not in ("mean", "sum"):
            raise ValueError(f"unknown mode {mode!r}; there are: mean, sum")
        if weights is not None and mode == "mean":
            raise ValueError("weights go with mode='sum'; divide them by their sums for a weighted mean")
        given = np.asarray(ids)
        given = self.ids(given) if given.dtype.kind in "UO" and given.size else given
        flat, starts = self._checked(given), products.bag_starts(given, offsets)
        factors = None if weights is None else np.asarray(weights, np.float32)
        if factors is not None and factors.shape != given.shape:
            raise ValueError(f"weights have the shape {factors.shape}, the ids {given.shape}; give one for each id")
        factors = None if factors is None else factors.reshape(-1)
        rows, anchors = self._factors
        width = self.embedding_dim if anchors is None else len(anchors)
        sums = products.bag_sums(rows, width, flat, starts, factors)
        if mode == "mean":
            sums /= np.maximum(np.diff(starts, append=len(flat)), 1)[:, None]
        return sums if anchors is None else sums @ anchors

    def scores(
        self, hidden: ArrayLike, k: int | None = None, *, bias: bool = False
    ) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
        """E·h of all objects: hidden (*batch, d) → (*batch, V); with k only the largest: ids (*batch, k), scores (*batch, k).
        `bias`: with the objects' biases and the offset."""
        given = np.asarray(hidden, np.float32)
        if given.ndim == 0 or given.shape[-1] != self.embedding_dim:
            raise ValueError(f"hidden has the shape {given.shape}, vectors here have {self.embedding_dim} numbers")
        if k is not None and k < 1:
            raise ValueError(f"k is {k}; ask for 1 or more, or leave it out for all scores")
        flat = given.reshape(-1, self.embedding_dim)
        V = self.num_embeddings
        found = products.products(self.rows, self.anchors, V, flat, self.nnz / max(V, 1))
        if bias:
            found = (some + self.bias_of(ids) for some, ids in zip(found, products.chunks(V), strict=True))
        if k is None:
            return products.side_by_side(found, len(flat), V).reshape(*given.shape[:-1], V)
        ids, values = products.top(found, len(flat), k)
        return ids.reshape(*given.shape[:-1], -1), values.reshape(*given.shape[:-1], -1)

    @cached_property
    def lengths(self) -> np.ndarray:
        """‖vector‖ of every object, (V,)."""
        return products.lengths(*self._factors, self.num_embeddings)

    def cosines(self, vector: ArrayLike) -> np.ndarray:
        """The cosine of a vector with every object's, (V,); 0 where a vector is 0."""
        query = np.asarray(vector, np.float32)
        if query.shape != (self.embedding_dim,):
            raise ValueError(f"a query has the shape {query.shape}, vectors here have {self.embedding_dim} numbers")
        dots = self.scores(query)
        assert isinstance(dots, np.ndarray)
        cosines: np.ndarray = dots / np.maximum(self.lengths * np.linalg.norm(query), 1e-12)
        return cosines

    def most_similar(self, query: str | int | ArrayLike, k: int = 10) -> list[tuple[str | int, float]]:
        """The k objects nearest by cosine to a word, an id, or a vector: (word or id, cosine). The word itself is left out."""
        own = int(self.ids(query)) if isinstance(query, str) else int(query) if isinstance(query, int | np.integer) else -1
        scores = self.cosines(self[own] if isinstance(query, str | int | np.integer) else query)
        if own >= 0:
            scores[own] = -np.inf
        k = min(k, self.num_embeddings - (own >= 0))
        if k < 1:
            return []
        positions, found = best(scores[None], k)
        names = [n if self.words is None else self.words.word(n) for n in positions[0].tolist()]
        return list(zip(names, found[0].tolist(), strict=True))

    @property
    def _factors(self) -> tuple[Decode, np.ndarray | None]:
        """Rows and anchors to be multiplied; of rows with few weights of many anchors, vectors at once."""
        return (self._vectors, None) if self.encoding == "sparse" else (self.rows, self.anchors)

    def _vectors(self, ids: np.ndarray) -> np.ndarray:
        found = self.rows(ids) if self.anchors is None else self.rows.vectors(ids, self.anchors)
        if not self._scanned and not np.isfinite(found).all():
            raise DamagedError("a vector has a number that is not finite; load the file with verify=True, and copy it again")
        return found

    def keep(self, rows: int) -> None:
        """Keep up to so many decoded vectors in memory (rows·d·4 bytes), for ids that are looked up again; 0: none."""
        if rows < 0:
            raise ValueError(f"{rows} vectors cannot be kept; say how many, or 0 for none")
        self._cache = Cache(self._vectors, min(rows, self.num_embeddings), self.embedding_dim) if rows else None

    def sizes(self) -> dict[str, int]:
        """Bytes of the file by what they are for: rows, anchors, words (with a tokenizer), and the rest."""
        words = sum(size for name, size in self._bytes.items() if name.startswith(("word_", "token")))
        anchors = sum(self._bytes.get(name, 0) for name in ("anchors", "anchor_scales", "mean"))
        rest = self.size - sum(self._bytes.values())
        return {"rows": self.size - words - anchors - rest, "anchors": anchors, "words": words, "header": rest}

    def to_bytes(self) -> bytes:
        """The bytes of the file of a table that was made in memory (antembed.compress)."""
        if self._contents is None:
            raise ValueError("this table was read from a file; copy that")
        return self._contents

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the file of a table that was made in memory (antembed.compress)."""
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(target, self.to_bytes())

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
            wrong, V = low if low < 0 else high, self.num_embeddings
            raise IndexError(f"id {wrong} is outside a table of {V} rows (0 to {V - 1})")
        return flat

    def __repr__(self) -> str:
        K = "no anchors" if self.anchors is None else f"{len(self.anchors)} anchors"
        return f"Table({self.num_embeddings} × {self.embedding_dim}, {K}, {self.encoding} {self.values}, {self.size} bytes)"
