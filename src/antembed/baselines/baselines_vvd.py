"""VocabularyDropout (VVD, Chen et al. 2019): every word's vector is multiplied by N(1, α) noise, and words with large α are
dropped."""

from collections.abc import Callable

import torch
from torch import Tensor

from antembed.baselines.baselines_selection import largest
from antembed.baselines.variational import BOUND, INITIAL_LOG_ALPHA, VariationalTable, divergence_of
from antembed.layer.embedding import check_kept
from antembed.layer.row_table import RowTable


class VocabularyDropout(VariationalTable):
    """ids (*batch) → vectors (*batch, d). log α, one per word, is `speed` times the table `noise` (V, 1)."""

    def add_noise_tables(self) -> None:
        self.add_table("noise", 1, INITIAL_LOG_ALPHA / self.speed)

    def log_alpha(self, noise: Tensor) -> Tensor:
        return (self.speed * noise).clamp(max=BOUND)

    def noisy(self, rows: list[Tensor]) -> Tensor:
        mean, noise = rows
        return mean * (1 + torch.exp(0.5 * self.log_alpha(noise)) * torch.randn_like(noise))

    def without_noise(self, rows: list[Tensor]) -> Tensor:
        mean, noise = rows
        return mean * (self.log_alpha(noise) <= self.threshold)

    def divergences(self, read: Callable[[RowTable], Tensor]) -> Tensor:
        return divergence_of(self.log_alpha(read(self.tables[1]))).squeeze(-1)

    @torch.no_grad()
    def keep_rows(self, n: int) -> int:
        """Keep the n least noisy of the words that are left; → how many were dropped."""
        left = (self.left() != 0).any(dim=1)
        noise = self.log_alpha(self.tables[1].current).squeeze(-1)
        dropped = left & ~largest(torch.where(left, -noise, -torch.inf), n)
        self.rows.weight[dropped] = 0
        return int(dropped.sum())

    def keep(self, n: int) -> int:
        """Keep as many whole words as have n weights."""
        check_kept(n)
        return self.keep_rows(n // self.embedding_dim) * self.embedding_dim
