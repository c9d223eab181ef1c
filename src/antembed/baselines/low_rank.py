"""LowRankEmbedding: E = U·W of rank K without a penalty on U. It shows how much of the result is due to sparsity."""

from typing import ClassVar, Self, Unpack

import torch
from torch import Tensor, nn

from antembed.layer.anchor import DEFAULT_ANCHORS, AnchoredTable, AnchorOptions
from antembed.layer.optim.prox import NonNegative, Prox
from antembed.layer.row_table import RowTable


class LowRankEmbedding(AnchoredTable):
    """ids (*batch) → vectors (*batch, d): a dense mix of K free vectors.

    Initialized with N(0, std²/K)·N(0, 1/d): with std=1 vectors start like those of nn.Embedding, scaled by 1/√d."""

    small_init: ClassVar[float | None] = 0.1
    nonnegative: ClassVar[bool] = False  # whether U ≥ 0

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        *,
        std: float = 1.0,
        **options: Unpack[AnchorOptions],
    ):
        super().__init__(num_embeddings, embedding_dim, padding_idx, **options)
        self.std = std
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Initialize U and W anew, as at construction. An optimizer keeps its moments: make a new one."""
        self.anchors.normal_(std=self.embedding_dim**-0.5)
        self.rows.reset_to(self.new_rows(self.rows, self.num_embeddings))
        self.reconstruction_error = None

    def penalty(self, l1_penalty: float) -> Prox | None:
        """None, whatever l1_penalty is; the constraint U ≥ 0 where the class has it."""
        return NonNegative(0.0) if self.nonnegative else None

    def new_rows(self, table: RowTable, n: int) -> Tensor:
        rows = table.weight.new_empty(n, table.embedding_dim).normal_().mul_(self.std * table.embedding_dim**-0.5)
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
