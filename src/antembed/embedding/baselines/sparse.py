"""SparseEmbedding: a full table whose every entry pays ℓ1 (sparse CBOW, slimming), by a two-sided prox or a subgradient."""

from typing import Any

import torch

from antembed.embedding.baselines.full import PlainTable
from antembed.optim.prox import L1, Prox, SubgradientL1

PRICES: dict[str, type[Prox]] = {"two-sided": L1, "subgradient": SubgradientL1}


class SparseEmbedding(PlainTable):
    """ids (*batch) → vectors (*batch, d). prox="two-sided" ends with exact zeros; "subgradient" with small numbers, and it
    takes `prune` or `keep` to make them zeros. Neither is lazy: every step goes over the whole table."""

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        *,
        prox: str = "two-sided",
        sparse: bool = False,
        std: float | None = None,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ):
        if prox not in PRICES:
            raise ValueError(f"prox {prox!r} is none of: {', '.join(PRICES)}")
        super().__init__(num_embeddings, embedding_dim, padding_idx, sparse=sparse, std=std, device=device, dtype=dtype)
        self.prox = prox

    def param_groups(self, l1_penalty: float) -> list[dict[str, Any]]:
        """One group, with the penalty l1_penalty·‖E‖₁."""
        return [{"params": [self.rows.weight], "prox": PRICES[self.prox](l1_penalty), "table": self.rows}]
