"""Matrix factorization: rating ≈ e_u·e_i + global bias (+ user and item bias)."""

from typing import ClassVar

import torch
from torch import Tensor, nn

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

    @property
    def embeddings(self) -> dict[str, Embedding]:
        return {"users": self.users, "items": self.items}

    @torch.no_grad()
    def table_biases(self) -> dict[str, TableBias]:
        """The global bias is the items' offset: added to each item's own, it would leave no zeros among them."""
        users, items = (
            None if table is None else table.to_dense().cpu().numpy()[:, 0] for table in (self.user_bias, self.item_bias)
        )
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
