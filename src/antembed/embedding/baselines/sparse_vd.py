"""SparseVariationalEmbedding (SparseVD, Molchanov et al. 2017): every weight has noise of its own, and those it drowns are
zero. With `words` (SparseVD-Voc, Chirkova et al. 2018) every word has a noisy factor besides, which drops it as a whole."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from antembed.embedding.base import check_kept
from antembed.embedding.baselines.variational import START, VariationalTable, divergence_of, log_alpha_of, with_noise
from antembed.embedding.table import RowTable


class SparseVariationalEmbedding(VariationalTable):
    """ids (*batch) → vectors (*batch, d). log σ² of a weight is `speed` times the table `noise` (V, d); a word's factor is in
    `factor` (V, 1), and its log σ² is `speed` times `factor_noise` (V, 1)."""

    def __init__(
        self, num_embeddings: int, embedding_dim: int, padding_idx: int | None = None, *, words: bool = False, **settings: Any
    ):
        super().__init__(num_embeddings, embedding_dim, padding_idx, **settings)
        self.words = words
        self.add_table("noise", embedding_dim, (START + 2 * math.log(max(self.std, 1e-3))) / self.speed)
        if words:
            self.add_table("factor", 1, 1.0)
            self.add_table("factor_noise", 1, START / self.speed)

    def noisy(self, rows: list[Tensor]) -> Tensor:
        mean, noise, *word = rows
        vectors = with_noise(mean, self.speed * noise)
        return vectors * with_noise(word[0], self.speed * word[1]) if word else vectors

    def settled(self, rows: list[Tensor]) -> Tensor:
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
        """Of the weights that are left, drop all but the n with the least noise; → how many."""
        check_kept(n)
        left = self.left() != 0
        noise = log_alpha_of(self.rows.current, self.speed * self.tables[1].current)
        scores = torch.where(left, -noise, -torch.inf).reshape(-1)
        kept = torch.zeros_like(scores, dtype=torch.bool)
        kept[scores.topk(min(n, len(scores))).indices] = True
        dropped = left & ~kept.view_as(left)
        self.rows.weight[dropped] = 0
        return int(dropped.sum())
