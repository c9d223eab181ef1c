"""Variational dropout for tables, the base of vvd.py and sparse_vd.py: Gaussian noise of learned strength, and what is mostly
noise is dropped.

In training, noise is drawn for each occurrence of an object, so it costs the rows of the batch. The loss adds `divergence()`,
KL(posterior ‖ log-uniform prior) by the approximation of Molchanov et al. (2017). In evaluation there is no noise, and weights
with log α above the threshold are zero, as they are in `factors()`.
"""

from abc import abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor
from torch.types import Device

from antembed.baselines.baselines_selection import without_zero_rows
from antembed.layer.full import PlainTable
from antembed.layer.optim.optim_groups import Group
from antembed.layer.row_table import RowTable

THRESHOLD = 3.0  # α ≈ 20: a weight that is 95 % noise
INITIAL_LOG_ALPHA = -6.0
BOUND = 8.0  # of log α from above: beyond, the divergence is flat. None from below, where a clamp would remove the gradient
TINY = 1e-16
EXACT = 1 << 18  # up to so many numbers the divergence goes over all rows,
SHARE = 64  # beyond over one row in so many


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
    would need thousands of steps for a logarithm that has to move by 10.
    """

    variational = True

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        *,
        num_anchors: int = 0,
        threshold: float = THRESHOLD,
        speed: float = 10.0,
        sparse: bool = False,
        std: float | None = None,
        device: Device = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__(num_embeddings, embedding_dim, padding_idx, sparse=sparse, std=std, device=device, dtype=dtype)
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

    @property
    def tables(self) -> list[RowTable]:
        return [self.rows, *(self.get_submodule(name) for name in self.initial)]  # type: ignore[list-item]

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
        for name, initial in self.initial.items():
            if table is self.get_submodule(name):
                return table.weight.new_full((n, table.embedding_dim), initial)
        return super().new_rows(table, n)

    def param_groups(self, l1_penalty: float = 0.0) -> list[Group]:
        """One group per table, none with a prox: the penalty is in the loss, as `divergence`."""
        return [{"params": [table.weight], "table": table} for table in self.tables]

    def left(self) -> Tensor:
        """All vectors without noise, zero where they are dropped: (V, d)."""
        return self.without_noise([table.current for table in self.tables])

    def factors(self) -> tuple[Tensor, None]:
        return without_zero_rows(self.left())[0], None

    def row_index(self) -> Tensor | None:
        return without_zero_rows(self.left())[1]
