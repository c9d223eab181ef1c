"""SparseVariationalEmbedding (SparseVD, Molchanov et al. 2017): a noise level for every weight; noisy weights become zero.
SparseVDWords (SparseVD-Voc, Chirkova et al. 2018) has a noisy factor per word besides, which drops whole words."""

import math
from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor

from antembed.baselines.variational import INITIAL_LOG_ALPHA, VariationalTable, divergence_of, log_alpha_of, with_noise
from antembed.layer.embedding import check_kept
from antembed.layer.row_table import RowTable


class SparseVariationalEmbedding(VariationalTable):
    """ids (*batch) → vectors (*batch, d). log σ² of a weight is `speed` times the table `noise` (V, d)."""

    words: ClassVar[bool] = False  # whether each word has a factor: `factor` (V, 1), its log σ² `speed`·`factor_noise` (V, 1)

    def add_noise_tables(self) -> None:
        initial = INITIAL_LOG_ALPHA + 2 * math.log(max(self.std, 1e-3))
        self.add_table("noise", self.embedding_dim, initial / self.speed)
        if self.words:
            self.add_table("factor", 1, 1.0)
            self.add_table("factor_noise", 1, INITIAL_LOG_ALPHA / self.speed)

    def noisy(self, rows: list[Tensor]) -> Tensor:
        mean, noise, *word = rows
        vectors = with_noise(mean, self.speed * noise)
        return vectors * with_noise(word[0], self.speed * word[1]) if word else vectors

    def without_noise(self, rows: list[Tensor]) -> Tensor:
        mean, noise, *word = rows
        vectors = mean * (log_alpha_of(mean, self.speed * noise) <= self.threshold)
        if not word:
            return vectors
        return vectors * word[0] * (log_alpha_of(word[0], self.speed * word[1]) <= self.threshold)

    def divergences(self, read: Callable[[RowTable], Tensor]) -> Tensor:
        mean, noise, *word = (read(table) for table in self.tables)
        total = divergence_of(log_alpha_of(mean, self.speed * noise)).sum(-1)
        if word:
            total = total + divergence_of(log_alpha_of(word[0], self.speed * word[1])).squeeze(-1)
        return total

    @torch.no_grad()
    def keep(self, n: int) -> int:
        """Keep the n least noisy of the weights that are left; → how many were dropped."""
        check_kept(n)
        left = self.left() != 0
        noise = log_alpha_of(self.rows.current, self.speed * self.tables[1].current)
        scores = torch.where(left, -noise, -torch.inf).reshape(-1)
        kept = torch.zeros_like(scores, dtype=torch.bool)
        kept[scores.topk(min(n, len(scores))).indices] = True
        dropped = left & ~kept.view_as(left)
        self.rows.weight[dropped] = 0
        return int(dropped.sum())


class SparseVDWords(SparseVariationalEmbedding):
    """The same with a noisy factor for each word."""

    words = True
