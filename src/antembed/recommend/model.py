"""Matrix factorization: rating ≈ e_u·e_i + global bias (+ user and item bias)."""

from collections.abc import Callable
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from antembed.layer.anchor import AnchorEmbedding
from antembed.layer.embedding import Embedding
from antembed.layer.full import FullEmbedding
from antembed.tables.table import Table
from antembed.train.model import EmbeddingModel, StoredBias, TableBias


class MatrixFactorization(EmbeddingModel):
    """users (B), items (B) → predicted ratings (B). The tables are any two embeddings of one width."""

    stored_with_tables: ClassVar[tuple[str, ...]] = ("bias", "user_bias", "item_bias")

    def __init__(self, users: Embedding, items: Embedding, *, mean: float = 0.0, biases: bool = False):
        super().__init__()
        self.users, self.items = users, items
        self.bias = nn.Parameter(torch.tensor(float(mean)))
        self.user_bias = FullEmbedding(users.num_embeddings, 1, sparse=True, std=0.0) if biases else None
        self.item_bias = FullEmbedding(items.num_embeddings, 1, sparse=True, std=0.0) if biases else None

    def forward(self, users: Tensor, items: Tensor) -> Tensor:
        ratings = (self.users(users) * self.items(items)).sum(-1) + self.bias
        if self.user_bias is not None and self.item_bias is not None:
            ratings = ratings + self.user_bias(users).squeeze(-1) + self.item_bias(items).squeeze(-1)
        return ratings

    @torch.no_grad()
    def predictor(self, pairs: int) -> Callable[[Tensor, Tensor], Tensor]:
        """This model, for so many pairs: where these are more than the rows, all vectors are computed once."""
        if (
            {type(self.users), type(self.items)} - {AnchorEmbedding, FullEmbedding}
            or self.user_bias is None
            or self.item_bias is None
        ):
            return self
        if self.users.num_embeddings + self.items.num_embeddings > pairs or torch.distributed.is_initialized():
            return self  # of several processes none holds all rows
        users, items = self.users.to_dense(), self.items.to_dense()
        user_bias, item_bias = self.user_bias.to_dense()[:, 0], self.item_bias.to_dense()[:, 0]

        def predict(u: Tensor, i: Tensor) -> Tensor:
            return (users[u] * items[i]).sum(-1) + self.bias + user_bias[u] + item_bias[i]

        return predict

    @property
    def embeddings(self) -> dict[str, Embedding]:
        return {"users": self.users, "items": self.items}

    @torch.no_grad()
    def table_biases(self) -> dict[str, TableBias]:
        """The global bias is the items' offset: added to each item's own, it would leave no zeros among them."""
        users, items = (None if own is None else own.to_dense().cpu().numpy()[:, 0] for own in (self.user_bias, self.item_bias))
        return {"users": TableBias(users), "items": TableBias(items, float(self.bias))}

    @torch.no_grad()
    def bias_parameters(self) -> int:
        """Those that are not zero, and the global one."""
        return 1 + sum(int(bias.to_dense().count_nonzero()) for bias in (self.user_bias, self.item_bias) if bias is not None)

    def use_file(self, name: str, table: Table) -> None:
        super().use_file(name, table)
        if self.user_bias is not None:
            self.add_module({"users": "user_bias", "items": "item_bias"}[name], StoredBias(table))
            self.bias = nn.Parameter(torch.zeros_like(self.bias))  # it is in the items' file


def half_squared_error(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
    """½ of the mean squared error, the Bregman divergence of Gaussian labels; a fourth column weighs the ratings."""
    users, items, ratings, *weights = batch
    squares = (model(users, items) - ratings).square()
    return (squares * weights[0] if weights else squares).mean() / 2


Columns = tuple[np.ndarray, ...]  # users, items, ratings, and maybe weights
BIAS_RIDGES = (0.5, 2.0, 6.0, 20.0, 60.0, 200.0)  # that are tried
SWEEPS = 6  # of alternating least squares


def fit_biases(train: Columns, num_embeddings: tuple[int, int], ridge: float) -> tuple[float, np.ndarray, np.ndarray]:
    """Mean, users' and items' biases, by alternating least squares with this ridge."""
    users, items, ratings, *weights = train
    weight = weights[0].astype(np.float64) if weights else np.ones(len(ratings))
    mean = float((weight * ratings).sum() / weight.sum())
    ids, biases = (users, items), [np.zeros(n) for n in num_embeddings]
    for _ in range(SWEEPS):
        for own, n in enumerate(num_embeddings):
            rest = weight * (ratings - mean - biases[1 - own][ids[1 - own]])
            biases[own] = np.bincount(ids[own], rest, n) / (np.bincount(ids[own], weight, n) + ridge)
    return mean, biases[0], biases[1]


def biases_error(train: Columns, other: Columns, num_embeddings: tuple[int, int], ridge: float) -> float:
    """The mean squared error of mean and biases alone on other ratings."""
    mean, users, items = fit_biases(train, num_embeddings, ridge)
    return float(np.square(mean + users[other[0]] + items[other[1]] - other[2]).mean())


def best_bias_ridge(train: Columns, validation: Columns, num_embeddings: tuple[int, int]) -> float:
    """The ridge that suits the validation ratings best; without any, one that usually does."""
    if not len(validation[0]):
        return 6.0
    return min(BIAS_RIDGES, key=lambda ridge: biases_error(train, validation, num_embeddings, ridge))


def baseline_errors(train: Columns, validation: Columns, test: Columns, num_embeddings: tuple[int, int]) -> dict[str, float]:
    """The test errors of the mean and of biases whose ridge was chosen on validation ratings."""
    mean = float(np.average(train[2], weights=train[3] if len(train) > 3 else None))
    ridge, error = best_bias_ridge(train, validation, num_embeddings), float(np.square(test[2] - mean).mean())
    return {"the mean": error, "biases alone": biases_error(train, test, num_embeddings, ridge)}
