"""LowRankEmbedding: E = U·W of rank K without a price on U, the control that says what sparsity itself brings."""

from typing import Any

import torch
from torch import Tensor

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

    def param_groups(self, l1: float = 0.0) -> list[dict[str, Any]]:  # type: ignore[override]
        """U and W, neither with a penalty: l1 has nothing to act on. U ≥ 0 is kept where asked for."""
        prox = NonNegative(0.0) if self.nonnegative else None
        return [{"params": [self.rows.weight], "prox": prox, "table": self.rows}, {"params": [self.anchors]}]
