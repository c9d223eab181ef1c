"""Plain V×d tables: FullEmbedding, the baseline of all others, and the base class of tables whose entries have a penalty."""

from typing import TypedDict

import torch
from torch import Tensor
from torch.types import Device

from antembed.layer.embedding import Embedding
from antembed.layer.row_table import RowTable, check_sizes, new_rows


class TableOptions(TypedDict, total=False):
    """Keyword arguments of every PlainTable, and of baselines whose rows are free vectors."""

    num_anchors: int
    sparse: bool
    std: float | None
    device: Device
    dtype: torch.dtype | None


class PlainTable(Embedding):
    """ids (*batch) → vectors (*batch, d), one vector per object, initialized with N(0, 1/d) or N(0, std²).

    `num_anchors` is accepted, since every embedding takes it, and has no effect: `uses_anchors` is False."""

    small_init = 0.01

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        *,
        num_anchors: int = 0,
        sparse: bool = False,
        std: float | None = None,
        device: Device = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__()
        check_sizes(num_embeddings, embedding_dim, 1, dtype)
        self.std = embedding_dim**-0.5 if std is None else std
        self.rows = new_rows(num_embeddings, embedding_dim, padding_idx, sparse, device, dtype, self.std)

    def forward(self, ids: Tensor) -> Tensor:
        return self.rows(ids)

    def reset_parameters(self) -> None:
        """Initialize the table anew, as at construction. An optimizer keeps its moments: make a new one."""
        self.rows.reset_to(torch.randn_like(self.rows.weight).mul_(self.std))

    def new_rows(self, table: RowTable, n: int) -> Tensor:
        return table.new_normal(n).mul_(self.std)

    def factors(self) -> tuple[Tensor, None]:
        return self.rows.full_tensor(), None


class FullEmbedding(PlainTable):
    """A free vector for every object, like nn.Embedding. It has no T, so l1_penalty has no effect."""
