"""Prune: drop the weights that count least by the optimizer's own second moments; no pass over the data."""

from collections.abc import Sequence
from itertools import islice

import torch
from torch import Tensor

from antembed.layer.sparsify.quadratic import Batch, Batches, LossFunction
from antembed.layer.sparsify.sparsifier import Sparsifier

CHECKED = 8  # batches, where there are any


class Prune(Sparsifier):
    """Dense first, then gradually fewer weights: those with the smallest ½·t²·v go, where v is the second moment of Adam or
    Yogi, the curvature up to a factor. What is gone stays gone.

        sparsifier = Prune(model, optimizer, budget="20x", events=12)
        for epoch in range(epochs):
            train(…)
            sparsifier.step()
    """

    def prepare(self, batches: Batches | None, loss_fn: LossFunction | None) -> list[Batch]:
        return [] if batches is None else list(islice(batches, CHECKED))

    def propose(self, weights: Sequence[Tensor], aim: int) -> list[Tensor]:
        return self.keep_best(weights, self.values(weights), aim)

    def values(self, weights: Sequence[Tensor]) -> list[Tensor]:
        found = []
        for unit, weight in zip(self.units, weights, strict=True):
            state = self.optimizer.state.get(unit.table.weight, {})
            second = state.get("second", state.get("exp_avg_sq"))
            if second is None:
                raise ValueError(
                    f"Prune needs the second moments of Adam or Yogi, which {type(self.optimizer).__name__} has not for "
                    f"this table; use Recode, or ProximalYogi or ProximalAdam"
                )
            found.append(torch.where(second.isinf(), 0.0, 0.5 * weight.square() * second))
        return found
