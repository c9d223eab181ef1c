"""Slimming: an ℓ1 subgradient in training, then `keep` prunes to a number of non-zeros; of E itself, or of T in E = T·A."""

import torch
from torch import Tensor
from torch.types import Device

from antembed.baselines.low_rank import normal_init_, normal_rows
from antembed.baselines.sparse import SubgradientSparseEmbedding
from antembed.layer.anchor import DEFAULT_ANCHORS, AnchoredTable
from antembed.layer.optim.prox import FreeEntries, SubgradientL1
from antembed.layer.row_table import RowTable


class SlimmingEmbedding(SubgradientSparseEmbedding):
    """Slimming of E. The layer is SubgradientSparseEmbedding; a run prunes it by `keep` instead of `prune`."""


class SlimmingTransform(AnchoredTable):
    """Slimming of T: ids (*batch) → vectors (*batch, d) = T[ids]·A with T of both signs, initialized like LowRankEmbedding."""

    small_init = 0.1

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        *,
        num_anchors: int = DEFAULT_ANCHORS,
        std: float = 1.0,
        sparse: bool = False,
        device: Device = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__(
            num_embeddings, embedding_dim, padding_idx, num_anchors=num_anchors, sparse=sparse, device=device, dtype=dtype
        )
        self.std = std
        normal_init_(self)

    def forward(self, ids: Tensor) -> Tensor:
        return self.vectors(ids)

    def reset_parameters(self) -> None:
        """Initialize T and A anew, as at construction. An optimizer keeps its moments: make a new one."""
        normal_init_(self)

    def penalty_for(self, l1_penalty: float, free: FreeEntries | None) -> SubgradientL1:
        if free is not None:
            raise ValueError(f"{len(free)} free entries were given, but a subgradient supports 0; use AnchorEmbedding")
        return SubgradientL1(l1_penalty)

    def new_rows(self, table: RowTable, n: int) -> Tensor:
        return normal_rows(table, n, self.std)
