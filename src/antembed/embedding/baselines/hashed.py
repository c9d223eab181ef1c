"""HashEmbedding: the most frequent objects have a row each, all others share a few rows, told apart by a hash only."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from antembed.embedding.base import Embedding
from antembed.embedding.table import RowTable, check_ids, check_sizes, from_the_front


def buckets_of(ids: np.ndarray, buckets: int, seed: int) -> np.ndarray:
    """A seeded multiplicative hash: ids (n,) → 0 … buckets − 1, from the upper half of id·(an odd number) mod 2⁶⁴."""
    odd = np.random.default_rng(seed).integers(1 << 62, 1 << 63, dtype=np.uint64) | np.uint64(1)
    upper = (ids.astype(np.uint64) * odd) >> np.uint64(32)
    return ((upper * np.uint64(buckets)) >> np.uint64(32)).astype(np.int64)


class HashEmbedding(Embedding):
    """ids (*batch) → vectors (*batch, d): a row each for the `own` most frequent objects (`counts` (V,): how often each
    occurs; None: ids are in that order) and for padding; the rest fall into `buckets` rows. Started at N(0, std²), 1/√d."""

    row_of: Tensor

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        *,
        own: int,
        buckets: int,
        counts: Tensor | None = None,
        seed: int = 0,
        sparse: bool = False,
        std: float | None = None,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__()
        check_sizes(num_embeddings, embedding_dim, 1, dtype)
        if own < 0 or buckets < 1:
            raise ValueError(f"own must be ≥ 0 and buckets ≥ 1, got {own} and {buckets}")
        if counts is not None and len(counts) != num_embeddings:
            raise ValueError(f"counts are for {len(counts)} objects, this layer has {num_embeddings}; give one for each")
        self.buckets, self.seed = buckets, seed
        self._padding = from_the_front(padding_idx, num_embeddings)
        ids = np.arange(num_embeddings)
        frequent = (ids if counts is None else np.argsort(-counts.cpu().numpy(), kind="stable"))[:own]
        if self._padding is not None and self._padding not in frequent:
            frequent = np.append(frequent, self._padding)  # nobody may share the zero vector
        row_of = len(frequent) + buckets_of(ids, buckets, seed)
        row_of[frequent] = np.arange(len(frequent))
        self.register_buffer("row_of", torch.from_numpy(row_of).to(device))
        self.std = embedding_dim**-0.5 if std is None else std
        rows = torch.randn(len(frequent) + buckets, embedding_dim, device=device, dtype=dtype).mul_(self.std)
        self.rows = RowTable(rows, None if self._padding is None else int(row_of[self._padding]), sparse)

    @property
    def tables(self) -> list[RowTable]:
        return [self.rows]

    @property
    def pairs(self) -> list[tuple[RowTable, Tensor]]:
        return []

    @property
    def embedding_dim(self) -> int:
        return self.rows.embedding_dim

    @property
    def num_embeddings(self) -> int:
        return len(self.row_of)

    @property
    def padding_idx(self) -> int | None:
        return self._padding

    def row_index(self) -> Tensor:
        return self.row_of

    def forward(self, ids: Tensor) -> Tensor:
        check_ids(ids, self.num_embeddings)
        return self.rows(self.row_of[ids])

    def new_rows(self, table: RowTable, n: int) -> Tensor:
        return table.weight.new_empty(0, self.embedding_dim)  # new objects are as rare as any

    def add_objects(self, n: int) -> None:
        """n new objects, into the buckets that are there."""
        super().add_objects(n)
        V = self.num_embeddings
        buckets = buckets_of(np.arange(V, V + n), self.buckets, self.seed) + self.rows.num_embeddings - self.buckets
        self.row_of = torch.cat([self.row_of, torch.from_numpy(buckets).to(self.row_of)])

    def param_groups(self, l1_penalty: float = 0.0) -> list[dict[str, Any]]:
        """One group without a penalty."""
        return [{"params": [self.rows.weight], "table": self.rows}]

    def factors(self) -> tuple[Tensor, None]:
        return self.rows.current, None

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        """Who has which row is the checkpoint's to say, and with it where padding is."""
        row_of = state_dict.get(prefix + "row_of")
        if row_of is not None and self._padding is not None and row_of.shape == self.row_of.shape:
            self.rows.padding_idx = int(row_of[self._padding])
        super()._load_from_state_dict(state_dict, prefix, *args)

    def extra_repr(self) -> str:
        own = self.rows.num_embeddings - self.buckets
        return f"{self.num_embeddings}, {self.embedding_dim}, own={own}, buckets={self.buckets}"
