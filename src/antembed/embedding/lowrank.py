"""LowRankEmbedding: E = U·W of rank K without a price on U, the control that says what sparsity itself brings."""

from typing import Any

import torch
from torch import Tensor, nn

from antembed.embedding.anchor import DEFAULT_ANCHORS, AnchorEmbedding
from antembed.embedding.table import RowTable
from antembed.optim.prox import NonNegative


class LowRankEmbedding(AnchorEmbedding):
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
        with torch.no_grad():
            self.anchors.normal_(std=embedding_dim**-0.5)
            self.rows.weight.copy_(self.new_rows(self.rows, num_embeddings))
            if padding_idx is not None:
                self.rows.weight[padding_idx].zero_()

    def new_rows(self, table: RowTable, n: int) -> Tensor:
        rows = torch.randn(n, table.weight.shape[1], device=table.weight.device, dtype=table.weight.dtype)
        rows *= self.std * table.weight.shape[1] ** -0.5
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

    def param_groups(self, l1: float = 0.0) -> list[dict[str, Any]]:  # type: ignore[override]
        """U and W, neither with a penalty: l1 has nothing to act on. U ≥ 0 is kept where asked for."""
        prox = NonNegative(0.0) if self.nonnegative else None
        return [{"params": [self.rows.weight], "prox": prox, "table": self.rows}, {"params": [self.anchors]}]
