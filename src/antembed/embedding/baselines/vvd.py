"""VocabularyDropout (VVD, Chen et al. 2019): every word's vector is multiplied by N(1, α) noise, and words whose α grows are
dropped."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from antembed.embedding.base import check_kept
from antembed.embedding.baselines.selection import largest
from antembed.embedding.baselines.variational import BOUND, START, VariationalTable, divergence_of
from antembed.embedding.table import RowTable


class VocabularyDropout(VariationalTable):
    """ids (*batch) → vectors (*batch, d). log α, one a word, is `speed` times the table `noise` (V, 1)."""

    def __init__(self, num_embeddings: int, embedding_dim: int, padding_idx: int | None = None, **settings: Any):
        super().__init__(num_embeddings, embedding_dim, padding_idx, **settings)
        self.add_table("noise", 1, START / self.speed)

    def log_alpha(self, noise: Tensor) -> Tensor:
        return (self.speed * noise).clamp(max=BOUND)

    def noisy(self, rows: list[Tensor]) -> Tensor:
        mean, noise = rows
        return mean * (1 + torch.exp(0.5 * self.log_alpha(noise)) * torch.randn_like(noise))

    def settled(self, rows: list[Tensor]) -> Tensor:
        mean, noise = rows
        return mean * (self.log_alpha(noise) <= self.threshold)

    def divergences(self, read: Callable[[RowTable], Tensor]) -> Tensor:
        return divergence_of(self.log_alpha(read(self.tables[1]))).squeeze(-1)

    @torch.no_grad()
    def keep_rows(self, n: int) -> int:
        """Drop all but the n words with the least noise, of those that are left; → how many."""
        left = (self.left() != 0).any(dim=1)
        noise = self.log_alpha(self.tables[1].current).squeeze(-1)
        dropped = left & ~largest(torch.where(left, -noise, -torch.inf), n)
        self.rows.weight[dropped] = 0
        return int(dropped.sum())

    def keep(self, n: int) -> int:
        """As many whole words as have n weights."""
        check_kept(n)
        return self.keep_rows(n // self.embedding_dim) * self.embedding_dim
