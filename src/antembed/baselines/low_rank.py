"""LowRankEmbedding: E = U·W of rank K without a penalty on U. It shows how much of the result is due to sparsity."""

from typing import ClassVar, Self

import torch
from torch import Tensor, nn
from torch.types import Device

from antembed.layer.anchor import DEFAULT_ANCHORS, AnchoredTable
from antembed.layer.optim.prox import FreeEntries, NonNegative
from antembed.layer.row_table import RowTable


def normal_rows(table: RowTable, n: int, std: float) -> Tensor:
    """n rows of N(0, std²/K) for the table."""
    K = table.weight.shape[1]
    return torch.randn(n, K, device=table.weight.device, dtype=table.weight.dtype).mul_(std * K**-0.5)


@torch.no_grad()
def normal_init_(layer: AnchoredTable) -> None:
    """Initialize T with the layer's `new_rows` and A with N(0, 1/d), both signs allowed."""
    layer.anchors.normal_(std=layer.embedding_dim**-0.5)
    layer.rows.reset_to(layer.new_rows(layer.rows, layer.num_embeddings))


class LowRankEmbedding(AnchoredTable):
    """ids (*batch) → vectors (*batch, d): a dense mix of K free vectors.

    Initialized with N(0, std²/K)·N(0, 1/d): with std=1 vectors start like those of nn.Embedding, scaled by 1/√d.
    """

    small_init = 0.1
    nonnegative: ClassVar[bool] = False  # whether U ≥ 0

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
        """Initialize U and W anew, as at construction. An optimizer keeps its moments: make a new one."""
        normal_init_(self)
        self.reconstruction_error = None

    def penalty_for(self, l1_penalty: float, free: FreeEntries | None) -> NonNegative | None:
        """None, whatever l1_penalty is; the constraint U ≥ 0 where the class has it."""
        return NonNegative(0.0) if self.nonnegative else None

    def new_rows(self, table: RowTable, n: int) -> Tensor:
        rows = normal_rows(table, n, self.std)
        return rows.abs_() if self.nonnegative else rows

    @classmethod
    def from_pretrained(cls, weight: Tensor | nn.Embedding, *, num_anchors: int = DEFAULT_ANCHORS) -> Self:
        """The best table of rank K, by singular value decomposition. Both signs: not for a non-negative U."""
        if cls.nonnegative:
            raise TypeError(f"singular vectors have both signs, {cls.__name__} has U ≥ 0; use AnchorEmbedding.from_pretrained")
        weight = torch.as_tensor(weight.weight if isinstance(weight, nn.Embedding) else weight).detach()
        layer = cls(*weight.shape, num_anchors=num_anchors, device=weight.device, dtype=weight.dtype)
        U, s, W = torch.linalg.svd(weight, full_matrices=False)
        rank = min(num_anchors, len(s))
        with torch.no_grad():
            layer.rows.weight.zero_()[:, :rank] = U[:, :rank] * s[:rank].sqrt()
            layer.anchors.zero_()[:rank] = W[:rank] * s[:rank].sqrt().unsqueeze(1)
        layer.reconstruction_error = float((layer.to_dense().detach() - weight).norm() / weight.norm().clamp(min=1e-30))
        return layer


class NonnegativeLowRank(LowRankEmbedding):
    """The same with U ≥ 0, as in AnchorEmbedding, but dense."""

    nonnegative = True
