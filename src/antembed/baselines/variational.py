"""Variational dropout: Gaussian noise of learned strength, and what is mostly noise is dropped.

SparseVariationalEmbedding (SparseVD, Molchanov et al. 2017) has a noise level for every weight; SparseVDWords (SparseVD-Voc,
Chirkova et al. 2018) a noisy factor per word besides, which drops entire words; VocabularyDropout (VVD, Chen et al. 2019)
multiplies every word's vector by N(1, α) noise, and words with large α are dropped.

In training, noise is drawn for each occurrence of an object, so it costs the rows of the batch. The loss adds `divergence()`,
KL(posterior ‖ log-uniform prior) by the approximation of Molchanov et al. (2017). In evaluation there is no noise, and weights
with log α above the threshold are zero, as they are in `factors()`. Rows of zeros are left out of the file.
"""

import math
from abc import abstractmethod
from collections.abc import Callable
from typing import ClassVar, Unpack

import torch
from torch import Tensor

from antembed.layer.embedding import check_kept
from antembed.layer.full import PlainTable, TableOptions
from antembed.layer.row_table import RowTable

THRESHOLD = 3.0  # α ≈ 20: a weight that is 95 % noise
INITIAL_LOG_ALPHA = -6.0  # noise at the start: α = .0025, hardly any
BOUND = 8.0  # of log α from above: beyond, the divergence is flat. None from below, where a clamp would remove the gradient
TINY = 1e-16  # instead of log 0
EXACT = 1 << 18  # up to so many numbers the divergence goes over all rows,
SHARE = 64  # beyond over one row in so many


def largest(scores: Tensor, n: int) -> Tensor:
    """True at the n largest scores (V,), of equal ones the first."""
    if n < 0:
        raise ValueError(f"the number of rows to keep must be ≥ 0, got {n}")
    kept = torch.zeros(len(scores), dtype=torch.bool, device=scores.device)
    kept[torch.argsort(scores, descending=True, stable=True)[:n]] = True
    return kept


def without_zero_rows(E: Tensor) -> tuple[Tensor, Tensor | None]:
    """E (V, d) → rows (R, d), row_index (V,) with E = rows[row_index]: all rows of zeros are one, the last. An index is two
    bytes where columns of a sparse table would be 1 + d/8. None where there are not two such rows."""
    left = (E != 0).any(dim=1)
    if int(left.sum()) > len(E) - 2:
        return E, None
    row_index = torch.where(left, left.cumsum(0) - 1, left.sum())
    return torch.cat([E[left], E.new_zeros(1, E.shape[1])]), row_index


def divergence_of(log_alpha: Tensor) -> Tensor:
    """KL of N(w, α·w²) from the log-uniform prior, one each: about ½·log(1/α) at small α, 0 at large α."""
    k1, k2, k3 = 0.63576, 1.87320, 1.48695
    return k1 * torch.sigmoid(-k2 - k3 * log_alpha) + 0.5 * torch.nn.functional.softplus(-log_alpha)


def log_alpha_of(mean: Tensor, log_variance: Tensor) -> Tensor:
    """log of σ²/w², at most BOUND."""
    return (log_variance - torch.log(mean.square() + TINY)).clamp(max=BOUND)


def with_noise(mean: Tensor, log_variance: Tensor) -> Tensor:
    """One draw each of N(w, σ²)."""
    return mean + torch.exp(0.5 * log_variance) * torch.randn_like(mean)


class VariationalTable(PlainTable):
    """ids (*batch) → vectors (*batch, d): means in `rows`, and further tables for their noise.

    `speed`: the noise tables hold log σ² (or log α) divided by it. Adam and Yogi step by about lr whatever the gradient, and
    would need thousands of steps for a logarithm that has to move by 10."""

    variational = True

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        *,
        threshold: float = THRESHOLD,
        speed: float = 10.0,
        **options: Unpack[TableOptions],
    ):
        super().__init__(num_embeddings, embedding_dim, padding_idx, **options)
        if not speed > 0:
            raise ValueError(f"speed must be > 0, got {speed}")
        self.threshold, self.speed = threshold, speed
        self.initial: dict[str, float] = {}  # of each noise table
        self.add_noise_tables()

    @abstractmethod
    def add_noise_tables(self) -> None:
        """Call `add_table` for each table of noise."""

    def add_table(self, name: str, width: int, initial: float) -> None:
        """Add a table (V, width), filled with `initial`; a single column is cheaper without row gradients."""
        filled = self.rows.weight.detach().new_full((self.num_embeddings, width), initial)
        self.add_module(name, RowTable(filled, self.padding_idx, self.rows.sparse and width > 1))
        self.initial[name] = initial

    @abstractmethod
    def noisy(self, rows: list[Tensor]) -> Tensor:
        """A row of each of `tables` → vectors with noise."""

    @abstractmethod
    def without_noise(self, rows: list[Tensor]) -> Tensor:
        """A row of each of `tables` → means, and zero where log α is above the threshold."""

    @abstractmethod
    def divergences(self, read: Callable[[RowTable], Tensor]) -> Tensor:
        """KL of each of n rows (n,), where `read` gives the rows of any of `tables`."""

    def forward(self, ids: Tensor) -> Tensor:
        rows = [table(ids) for table in self.tables]
        if not self.training:
            return self.without_noise(rows)
        vectors = self.noisy(rows)
        return vectors if self.padding_idx is None else vectors * (ids != self.padding_idx).unsqueeze(-1)

    def divergence(self) -> Tensor:
        """Σ of KL over all rows; for large tables an unbiased estimate from V/64 rows, drawn without replacement at each call,
        since all rows of 62,000 × 256 would take longer than a step. Its gradient is row-sparse if the layer's is."""
        V, device = self.num_embeddings, self.rows.weight.device
        numbers = V * sum(table.embedding_dim for table in self.tables[1:])
        if numbers <= EXACT:
            kl = self.divergences(lambda table: table.current)
            return kl.sum() if self.padding_idx is None else kl.sum() - kl[self.padding_idx]
        return self.divergence_over(torch.randperm(V, device=device)[: -(-V // SHARE)])

    def divergence_over(self, ids: Tensor) -> Tensor:
        """V/n·Σ of KL over these n rows; padding has none."""
        kl = self.divergences(lambda table: table(ids))
        if self.padding_idx is not None:
            kl = kl * (ids != self.padding_idx)
        return kl.sum() * (self.num_embeddings / max(len(ids), 1))

    def lengths(self) -> list[tuple[RowTable, Tensor]]:
        return super().lengths()[:1]  # the noise tables are no part of a vector

    def new_rows(self, table: RowTable, n: int) -> Tensor:
        if table is self.rows:
            return super().new_rows(table, n)
        initial = next(initial for name, initial in self.initial.items() if table is self.get_submodule(name))
        return table.weight.new_full((n, table.embedding_dim), initial)

    def left(self) -> Tensor:
        """All vectors without noise, zero where they are dropped: (V, d)."""
        return self.without_noise([table.current for table in self.tables])

    def factors(self) -> tuple[Tensor, None]:
        return without_zero_rows(self.left())[0], None

    def row_index(self) -> Tensor | None:
        return without_zero_rows(self.left())[1]


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
        """Keep as many words as have n weights."""
        check_kept(n)
        return self.keep_rows(n // self.embedding_dim) * self.embedding_dim
