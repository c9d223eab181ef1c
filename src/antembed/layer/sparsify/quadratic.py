"""A quadratic model of the loss in the rows of T, from one pass of mini-batch gradients: no second derivatives, no hooks.

For row i with summed gradients g_b of batch b:      G_i = Σ g_b,    h_i = Σ |g_b|²,    P = Σ_i Σ_b g_b⊗g_b / Σ_i h_i

The curvature of row i is taken as scale·h_i·P (the empirical Fisher matrix, one K×K shape for the table and one number a row).
`scale` is one number for all: how much more the loss really curves, since many rows move at once.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from antembed.layer.embedding import Embedding
from antembed.layer.optim.prox import NonNegativeL1
from antembed.layer.optim.proximal import State
from antembed.layer.row_table import RowTable

# MERGED The tables of a model that become sparse, and their size.

VALUE_BITS = 6  # of a number in a packed file


@dataclass(frozen=True)
class Unit:
    """One T (V, K) with its anchors (K, d), or a table of single numbers without any."""

    layer: Embedding
    table: RowTable
    anchors: Tensor | None
    floor: float  # 0: weights are ≥ 0; −inf: of both signs

    @property
    def ridge(self) -> Tensor | None:
        """½·ridge_i·‖e_i‖² over a whole epoch, of the rows held here."""
        return None if self.layer.ridge_total is None else self.table.own(self.layer.ridge_total)

    def gram(self) -> Tensor:
        """A·Aᵀ: how the weights of a row make up ‖e‖²."""
        if self.anchors is None:
            return torch.eye(self.table.embedding_dim, dtype=torch.float64)
        return (self.anchors.detach().double() @ self.anchors.detach().double().T).cpu()

    def column_bits(self) -> Tensor:
        """What a weight in each column costs in a packed file: its number, and its column's, by how often that is used."""
        used = self.table.count_by_column().double().cpu() + 1
        return VALUE_BITS + torch.log2(used.sum() / used)


def units_of(model: nn.Module | Iterable[Embedding], also: Sequence[Embedding] = ()) -> list[Unit]:
    """The layers with a non-negative T and an ℓ1 penalty by default, and `also` tables of single numbers (biases)."""
    layers = model.modules() if isinstance(model, nn.Module) else model
    units = []
    for layer in layers:
        if not isinstance(layer, Embedding) or any(layer is other for other in also):
            continue
        sparse = {id(group["table"]) for group in layer.param_groups(0.0) if _becomes_sparse(group.get("prox"))}
        units += [Unit(layer, table, anchors, 0.0) for table, anchors in layer.pairs if id(table) in sparse]
    if not units:
        raise ValueError("0 layers have a T to make sparse, at least 1 is needed; give a model with an AnchorEmbedding")
    for layer in also:
        if layer.pairs or layer.embedding_dim != 1:
            raise ValueError(f"`also` is for tables of single numbers, this one has {layer.embedding_dim} columns")
        units += [Unit(layer, table, None, -torch.inf) for table in layer.tables]
    if len({unit.table.shared for unit in units}) > 1:
        raise ValueError("some of these tables are shared among processes and some are not; shard all of them, or none")
    return units


def _becomes_sparse(prox: object) -> bool:
    return isinstance(prox, NonNegativeL1) and prox.scheduled


def count(units: Sequence[Unit], weights: Iterable[Tensor]) -> int:
    """nnz of all tables, if these are their weights; over all processes that share them."""
    own = sum(int(weight.count_nonzero()) for weight in weights)
    return int(units[0].table.summed(torch.tensor(own)))


@torch.no_grad()
def normalize_anchors(unit: Unit, state: Mapping[Tensor, State]) -> None:
    """Anchors of length 1: the same vectors, with T and the moments of both (an optimizer's `state`) rescaled, so that a
    penalty means the same everywhere."""
    if unit.anchors is None:
        return
    weight, anchors = unit.table.current, unit.anchors
    norms = anchors.norm(dim=1)
    norms[norms == 0] = 1
    unit.table.release()
    anchors.div_(norms.unsqueeze(1))
    weight.mul_(norms)
    # Gradients scale inversely.
    for parameter, factor in ((anchors, norms.unsqueeze(1)), (weight, 1 / norms)):
        for name, moment in state.get(parameter, {}).items():
            if isinstance(moment, Tensor) and moment.shape == parameter.shape and moment.dtype == parameter.dtype:
                moment.mul_(factor**2 if name in ("second", "exp_avg_sq") else factor)


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
