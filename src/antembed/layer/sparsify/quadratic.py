"""A quadratic model of the loss in the rows of T, from one pass of mini-batch gradients: no second derivatives, no hooks.

For row i with summed gradients g_b of batch b:      G_i = Σ g_b,    h_i = Σ |g_b|²,    P = Σ_i Σ_b g_b⊗g_b / Σ_i h_i

The curvature of row i is taken as scale·h_i·P (the empirical Fisher matrix, one K×K shape for the table and one number a row).
`scale` is one number for all: how much more the loss really curves, since many rows move at once.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from antembed.layer.sparsify.sparsify_units import Unit

CHECKED, MOST_CHECKED = 8, 64  # every eighth batch is kept to see what an event does to the loss, and so many at most
FLOOR = 0.1  # of the usual square of a gradient: examples that are learned by heart have none, but still curve
Batch = Any  # whatever the caller's loader yields
Batches = Iterable[Batch]
LossFunction = Callable[[Batch], Tensor]


@dataclass
class Quadratic:
    """Of one table."""

    G: Tensor  # (V, K)
    h: Tensor  # (V,)
    P: Tensor  # (K, K), trace 1
    n: Tensor  # (V,): in how many batches a row had a gradient

    def change(self, before: Tensor, after: Tensor) -> tuple[float, float]:
        """The terms of the loss's change, first order and second order at scale 1, of the rows held here."""
        delta = (after - before).double()
        first = float((self.G.double() * delta).sum())
        return first, 0.5 * float((self.h.double() * ((delta @ self.P) * delta).sum(1)).sum())


@dataclass
class Pass:
    """What one pass without steps has seen."""

    tables: list[Quadratic]
    examples: int
    batches: int
    checked: list[Batch]  # some of the batches

    @property
    def second_of_mean(self) -> float:
        """From Σ_b g² of summed losses to the mean square of a mean loss's gradient: what Adam's second moment is of."""
        return self.batches / max(self.examples, 1) ** 2


def examples_in(batch: Batch) -> int:
    """How many examples a batch has: the length of its last tensor."""
    if isinstance(batch, Tensor):
        return len(batch)
    parts = list(batch.values()) if isinstance(batch, dict) else list(batch)
    return next(n for n in map(examples_in, reversed(parts)) if n)


@contextmanager
def evaluating(model: nn.Module, units: list[Unit]) -> Iterator[None]:
    """Without dropout, without ridges, and all rows up to date; afterwards as before."""
    training = {module: module.training for module in model.modules()}
    model.eval()
    for unit in units:
        unit.layer.ridge_active = False
    try:
        yield
    finally:
        for unit in units:
            unit.layer.ridge_active = True
        for module, was in training.items():
            module.training = was


def observe(model: nn.Module, units: list[Unit], batches: Batches, loss_fn: LossFunction) -> Pass:
    """One pass over the batches."""
    weights = [unit.table.current for unit in units]
    tables = [
        Quadratic(
            torch.zeros_like(weight),
            weight.new_zeros(len(weight)),
            torch.zeros(weight.shape[1], weight.shape[1], dtype=torch.float64),
            weight.new_zeros(len(weight)),
        )
        for weight in weights
    ]
    seen = Pass(tables, 0, 0, [])
    with evaluating(model, units):
        for batch in batches:
            n = examples_in(batch)
            found = torch.autograd.grad(loss_fn(batch) * n, weights, allow_unused=True)
            for table, gradient in zip(tables, found, strict=True):
                if gradient is not None:
                    _add(table, gradient)
            if seen.batches % CHECKED == 0:
                seen.checked.append(batch)
            seen.examples += n
            seen.batches += 1
    if not seen.batches:
        raise ValueError("there are 0 batches to learn the loss from; give the loader of the training data")
    seen.checked = seen.checked[:: -(-len(seen.checked) // MOST_CHECKED)]
    for unit, table in zip(units, tables, strict=True):
        table.P = unit.table.summed(table.P)
        table.P /= max(float(table.P.trace()), 1e-300)
        squares, lookups = unit.table.summed(torch.stack([table.h.sum(), table.n.sum()])).tolist()
        usual = squares / max(lookups, 1.0)
        table.h = torch.maximum(table.h, FLOOR * usual * table.n)
    return seen


def _add(table: Quadratic, gradient: Tensor) -> None:
    if gradient.is_sparse:
        gradient = gradient.coalesce()
        rows, values = gradient.indices()[0], gradient.values()
        table.G.index_add_(0, rows, values)
        squares = values.square().sum(1)
        table.h.index_add_(0, rows, squares)
        table.n.index_add_(0, rows, torch.ones_like(squares))
    else:
        values = gradient
        squares = values.square().sum(1)
        table.G += values
        table.h += squares
        table.n += squares > 0
    table.P += (values.T @ values).double().cpu()


@torch.no_grad()
def mean_loss(model: nn.Module, units: list[Unit], batches: Batches, loss_fn: LossFunction) -> float:
    """Over the examples of these batches."""
    total, examples = 0.0, 0
    with evaluating(model, units):
        for batch in batches:
            n = examples_in(batch)
            total += float(loss_fn(batch)) * n
            examples += n
    return total / max(examples, 1)
