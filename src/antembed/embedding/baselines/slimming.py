"""SlimmingTransform: E = T·A with T of any sign and an ℓ1 subgradient on it, pruned by `keep` to a number of non-zeros."""

from typing import Any

import torch
from torch import Tensor

from antembed.embedding.anchor import DEFAULT_ANCHORS, AnchoredTable
from antembed.embedding.baselines.low_rank import normal_rows, start_normal
from antembed.embedding.table import RowTable
from antembed.optim.prox import FreeEntries, SubgradientL1


class SlimmingTransform(AnchoredTable):
    """ids (*batch) → vectors (*batch, d), started like LowRankEmbedding. Slimming of E itself is SparseEmbedding's."""

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        *,
        num_anchors: int = DEFAULT_ANCHORS,
        std: float = 1.0,
        sparse: bool = False,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__(
            num_embeddings, embedding_dim, padding_idx, num_anchors=num_anchors, sparse=sparse, device=device, dtype=dtype
        )
        self.std = std
        start_normal(self)

    def forward(self, ids: Tensor) -> Tensor:
        return self.vectors(ids)

    def penalty_for(self, l1_penalty: float, free: FreeEntries | None) -> SubgradientL1:
        if free is not None:
            raise ValueError(f"{len(free)} entries are to be free, but a subgradient spares none; use AnchorEmbedding")
        return SubgradientL1(l1_penalty)

    def new_rows(self, table: RowTable, n: int) -> Tensor:
        return normal_rows(table, n, self.std)
