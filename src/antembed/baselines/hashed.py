"""Rows for the most frequent objects, and shared rows for all others: HashEmbedding, FrequencyEmbedding, TfidfEmbedding."""

from typing import ClassVar, Unpack

import numpy as np
import torch
from torch import Tensor
from torch.types import Device

from antembed.files import JSON
from antembed.layer.embedding import Embedding
from antembed.layer.full import TableOptions
from antembed.layer.row_table import RowTable, check_ids, check_sizes, from_the_front


class SharedRows(Embedding):
    """Base of tables in which an object has no row of its own: their sizes, padding and scale are kept beside the rows."""

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        *,
        num_anchors: int | None = None,
        device: Device = None,
        dtype: torch.dtype | None = None,
        sparse: bool = False,
        std: float | None = None,
    ):
        super().__init__()
        check_sizes(num_embeddings, embedding_dim, 1, dtype)
        self._objects, self._width = num_embeddings, embedding_dim
        self._padding = from_the_front(padding_idx, num_embeddings)
        self.std = embedding_dim**-0.5 if std is None else std
        self.num_rows, self.sparse, self._like = num_anchors, sparse, torch.empty(0, device=device, dtype=dtype)

    @property
    def num_embeddings(self) -> int:
        return self._objects

    @property
    def embedding_dim(self) -> int:
        return self._width

    @property
    def padding_idx(self) -> int | None:
        return self._padding

    def add_objects(self, n: int) -> None:
        """Append n new objects. What they share with others is learned already."""
        super().add_objects(n)
        self._objects += n


def ids_by_count(counts: Tensor | None, V: int) -> np.ndarray:
    """The ids, most frequent first; as they are where there are no counts."""
    if counts is not None and len(counts) != V:
        raise ValueError(f"counts are for {len(counts)} objects, this layer has {V}; give one for each")
    return np.arange(V) if counts is None else np.argsort(-counts.double().cpu().numpy(), kind="stable")


def buckets_of(ids: np.ndarray, buckets: int, seed: int) -> np.ndarray:
    """A seeded multiplicative hash: ids (n,) → 0 … buckets − 1, from the upper half of id·(an odd number) mod 2⁶⁴."""
    odd = np.random.default_rng(seed).integers(1 << 62, 1 << 63, dtype=np.uint64) | np.uint64(1)
    upper = (ids.astype(np.uint64) * odd) >> np.uint64(32)
    return ((upper * np.uint64(buckets)) >> np.uint64(32)).astype(np.int64)


class HashEmbedding(SharedRows):
    """ids (*batch) → vectors (*batch, d), from `num_anchors` rows: the most frequent objects have a row each, all others share
    the rest, by a hash of their id.

    `own` rows go to the most frequent objects (half of num_anchors, if not given), and `buckets` rows are shared (the other
    half). Padding always has a row of its own. `counts` (V,) says how often each object occurs; without it, ids are taken to be
    sorted by frequency. Rows are initialized with N(0, std²), std = 1/√d if not given."""

    requires = frozenset({"counts"})
    small_init = 0.01
    uses_anchors = True
    one_bucket: ClassVar[bool] = False  # whether all objects without a row of their own share a single one
    row_of: Tensor  # (V,): the row of each object

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        *,
        own: int | None = None,
        buckets: int | None = None,
        counts: Tensor | None = None,
        seed: int = 0,
        **options: Unpack[TableOptions],
    ):
        super().__init__(num_embeddings, embedding_dim, padding_idx, **options)
        rows = self.num_rows or 0
        own = (rows if self.one_bucket else rows // 2) if own is None else own
        buckets = (1 if self.one_bucket else rows - own) if buckets is None else buckets
        if own < 0 or buckets < 1:
            raise ValueError(f"own must be ≥ 0 and buckets ≥ 1, got {own} and {buckets}; give both, or num_anchors ≥ 1")
        self.buckets, self.seed = buckets, seed
        frequent = ids_by_count(counts, num_embeddings)[:own]
        if self._padding is not None and self._padding not in frequent:
            frequent = np.append(frequent, self._padding)  # no other object may share the zero vector
        row_of = len(frequent) + buckets_of(np.arange(num_embeddings), buckets, seed)
        row_of[frequent] = np.arange(len(frequent))
        self.register_buffer("row_of", torch.from_numpy(row_of).to(self._like.device))
        weight = torch.randn_like(self._like.new_empty(len(frequent) + buckets, embedding_dim)).mul_(self.std)
        self.rows = RowTable(weight, None if self._padding is None else int(row_of[self._padding]), self.sparse)

    def row_index(self) -> Tensor:
        return self.row_of

    def forward(self, ids: Tensor) -> Tensor:
        check_ids(ids, self.num_embeddings)
        return self.rows(self.row_of[ids])

    def reset_parameters(self) -> None:
        """Initialize the rows anew, as at construction; objects keep their rows."""
        self.rows.reset_to(torch.randn_like(self.rows.weight).mul_(self.std))

    def new_rows(self, table: RowTable, n: int) -> Tensor:
        return table.weight.new_empty(0, self.embedding_dim)  # new objects share the rows that exist

    def add_objects(self, n: int) -> None:
        """Append n new objects; they share the existing buckets."""
        V = self.num_embeddings
        super().add_objects(n)
        buckets = buckets_of(np.arange(V, V + n), self.buckets, self.seed) + self.rows.num_embeddings - self.buckets
        self.row_of = torch.cat([self.row_of, torch.from_numpy(buckets).to(self.row_of)])

    def factors(self) -> tuple[Tensor, None]:
        return self.rows.current, None

    def _load_from_state_dict(self, state_dict: JSON, prefix: str, *args: object) -> None:
        """A checkpoint brings its own assignment of rows, and with it the row of the padding."""
        row_of = state_dict.get(prefix + "row_of")
        if row_of is not None and self._padding is not None and row_of.shape == self.row_of.shape:
            self.rows.padding_idx = int(row_of[self._padding])
        super()._load_from_state_dict(state_dict, prefix, *args)

    def extra_repr(self) -> str:
        own = self.rows.num_embeddings - self.buckets
        return f"{super().extra_repr()}, own={own}, buckets={self.buckets}"


class FrequencyEmbedding(HashEmbedding):
    """Vocabulary selection: a row each for the `num_anchors` objects with the largest `counts`; all others share one row."""

    one_bucket = True


class TfidfEmbedding(FrequencyEmbedding):
    """The same selection by tf-idf: pass the scores as `counts`."""

    requires = frozenset({"tf-idf"})
