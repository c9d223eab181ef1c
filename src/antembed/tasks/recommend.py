"""Matrix factorisation: rating ≈ e_u·e_i + global bias (+ user and item bias)."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from antembed.embedding import Embedding, FullEmbedding


class MatrixFactorization(nn.Module):
    """users (B), items (B) → predicted ratings (B). The tables are any two embeddings of one width."""

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
    def tables(self) -> dict[str, Embedding]:
        return {"users": self.users, "items": self.items}

    @torch.no_grad()
    def exported_biases(self) -> dict[str, dict[str, Any]]:
        """What `export` is told of each table's biases. The global one is the items' offset: added to each item's own, it
        would leave no zeros among them."""
        users, items = (
            None if table is None else table.to_dense().cpu().numpy()[:, 0] for table in (self.user_bias, self.item_bias)
        )
        return {"users": {"bias": users}, "items": {"bias": items, "offset": float(self.bias)}}

    @torch.no_grad()
    def bias_parameters(self) -> int:
        """How many numbers the biases add to the tables' parameters: those that are not zero, and the global one."""
        return 1 + sum(int(bias.to_dense().count_nonzero()) for bias in (self.user_bias, self.item_bias) if bias is not None)


def loss(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
    """½ of the mean squared error, the Bregman divergence of Gaussian labels (SPEC §1); a fourth column weighs the ratings."""
    users, items, ratings, *weights = batch
    squares = (model(users, items) - ratings).square()
    return (squares * weights[0] if weights else squares).mean() / 2


@torch.no_grad()
def evaluate(
    model: Callable[[Tensor, Tensor], Tensor], batches: Iterable[tuple[Tensor, ...]], scale: tuple[float, float]
) -> dict[str, float]:
    """Errors over examples (not means of batch means), each counted once whatever its weight.

    `clipped_mse` keeps predictions inside the ratings' scale.
    """
    squared = clipped = absolute = 0.0
    n = 0
    for users, items, ratings, *_ in batches:
        predicted = model(users, items).double()
        wanted = ratings.double()
        squared += float((predicted - wanted).square().sum())
        absolute += float((predicted - wanted).abs().sum())
        clipped += float((predicted.clamp(*scale) - wanted).square().sum())
        n += len(ratings)
    if n == 0:
        raise ValueError("nothing to evaluate: this split has 0 examples")
    return {
        "mse": squared / n,
        "rmse": (squared / n) ** 0.5,
        "mae": absolute / n,
        "clipped_mse": clipped / n,
        "examples": n,
    }
