"""FullEmbedding: the plain V×d table, the baseline of everything."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from antembed.embedding.anchor import check_sizes
from antembed.embedding.table import RowTable
from antembed.embedding.usage import Usage, usage_of


class FullEmbedding(nn.Module):
    """ids (*batch) → vectors (*batch, d), one free vector an object, started at N(0, 1/d)."""

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        *,
        sparse: bool = False,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__()
        check_sizes(num_embeddings, embedding_dim, 1, dtype)
        weight = torch.randn(num_embeddings, embedding_dim, device=device, dtype=dtype)
        self.rows = RowTable(weight.div_(math.sqrt(embedding_dim)), padding_idx, sparse)

    @property
    def num_embeddings(self) -> int:
        return self.rows.num_embeddings

    @property
    def embedding_dim(self) -> int:
        return self.rows.embedding_dim

    @property
    def padding_idx(self) -> int | None:
        return self.rows.padding_idx

    def forward(self, ids: Tensor) -> Tensor:
        return self.rows(ids)

    def param_groups(self, l1: float = 0.0) -> list[dict[str, Any]]:
        """One group without a penalty; it exists so that every embedding is trained by the same code."""
        if l1:
            raise ValueError(f"a full table has no T to penalise, got l1={l1:g}; leave it out")
        return [{"params": [self.rows.weight], "table": self.rows}]

    def flush(self) -> None:
        self.rows.flush()

    def factors(self) -> tuple[Tensor, None]:
        """The table itself, and no anchors."""
        return self.rows.current, None

    def to_dense(self) -> Tensor:
        """The whole E: (V, d)."""
        return self.rows.current

    def to_embedding(self) -> nn.Embedding:
        """A plain nn.Embedding with the same vectors."""
        return nn.Embedding.from_pretrained(
            self.to_dense().detach().clone(), freeze=False, padding_idx=self.padding_idx
        )

    def usage(self) -> Usage:
        """V·d parameters; every object is its own anchor."""
        return usage_of(self.rows.current, None, self.embedding_dim, self.padding_idx)

    def extra_repr(self) -> str:
        return f"{self.num_embeddings}, {self.embedding_dim}"
