"""LowRankEmbedding: E = U·W of rank K without a price on U, the control that says what sparsity itself brings."""

from typing import Any

import torch
from torch import Tensor, nn

from antembed.embedding.anchor import DEFAULT_ANCHORS, AnchoredTable
from antembed.embedding.table import RowTable
from antembed.optim.prox import FreeEntries, NonNegative


def normal_rows(table: RowTable, n: int, std: float) -> Tensor:
    """n rows of N(0, std²/K) for the table."""
    K = table.weight.shape[1]
    return torch.randn(n, K, device=table.weight.device, dtype=table.weight.dtype).mul_(std * K**-0.5)


@torch.no_grad()
def start_normal(layer: AnchoredTable) -> None:
    """Start T as the layer starts new rows, and A at N(0, 1/d), both of any sign."""
    layer.anchors.normal_(std=layer.embedding_dim**-0.5)
    layer.rows.weight.copy_(layer.new_rows(layer.rows, layer.num_embeddings))
    if layer.padding_idx is not None:
        layer.rows.weight[layer.padding_idx].zero_()


class LowRankEmbedding(AnchoredTable):
    """ids (*batch) → vectors (*batch, d): a dense mix of K free vectors; with nonnegative=True one of weights ≥ 0.

    Started at N(0, std²/K)·N(0, 1/d), so that with std=1 vectors start like those of nn.Embedding, scaled by 1/√d.
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        *,
        num_anchors: int = DEFAULT_ANCHORS,
        nonnegative: bool = False,
        std: float = 1.0,
        sparse: bool = False,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__(
            num_embeddings, embedding_dim, padding_idx, num_anchors=num_anchors, sparse=sparse, device=device, dtype=dtype
        )
        self.nonnegative, self.std = nonnegative, std
        start_normal(self)

    def forward(self, ids: Tensor) -> Tensor:
        return self.vectors(ids)

    def penalty_for(self, l1_penalty: float, free: FreeEntries | None) -> NonNegative | None:
        """None, whatever l1_penalty is. U ≥ 0 is kept where asked for."""
        return NonNegative(0.0) if self.nonnegative else None

    def new_rows(self, table: RowTable, n: int) -> Tensor:
        rows = normal_rows(table, n, self.std)
        return rows.abs_() if self.nonnegative else rows

    @classmethod
    def from_pretrained(
        cls, weight: Tensor | nn.Embedding, *, num_anchors: int = DEFAULT_ANCHORS, **_: Any
    ) -> "LowRankEmbedding":
        """The best table of rank K, by singular values; with U free of signs."""
        weight = torch.as_tensor(weight.weight if isinstance(weight, nn.Embedding) else weight).detach()
        layer = cls(*weight.shape, num_anchors=num_anchors, device=weight.device, dtype=weight.dtype)
        U, s, W = torch.linalg.svd(weight, full_matrices=False)
        rank = min(num_anchors, len(s))
        with torch.no_grad():
            layer.rows.weight.zero_()[:, :rank] = U[:, :rank] * s[:rank].sqrt()
            layer.anchors.zero_()[:rank] = W[:rank] * s[:rank].sqrt().unsqueeze(1)
        layer.reconstruction_error = float((layer.to_dense().detach() - weight).norm() / weight.norm().clamp(min=1e-30))
        return layer

    reconstruction_error: float | None = None  # ‖E − U·W‖/‖E‖ of from_pretrained
