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
from antembed.layer.optim.proximal_optimizer import State
from antembed.layer.row_table import RowTable

VALUE_BITS = 6  # of a number in a packed file
CHECKED, MOST_CHECKED = 8, 64  # every eighth batch is kept to see what an event does to the loss, and so many at most
FLOOR = 0.1  # of the usual square of a gradient: examples that are fitted exactly have none, but still curve
Batch = Any  # whatever the caller's loader yields
Batches = Iterable[Batch]
LossFunction = Callable[[Batch], Tensor]


@dataclass(frozen=True)
class SparsifiedTable:
    """One T (V, K) with its anchors (K, d), or a table of single numbers without any."""

    layer: Embedding
    rows: RowTable
    anchors: Tensor | None
    floor: float  # 0: weights are ≥ 0; −inf: of both signs

    @property
    def ridge(self) -> Tensor | None:
        """½·ridge_i·‖e_i‖² over an epoch, of the rows held here."""
        return None if self.layer.ridge_total is None else self.rows.own(self.layer.ridge_total)

    def gram(self) -> Tensor:
        """A·Aᵀ: how the weights of a row make up ‖e‖²."""
        if self.anchors is None:
            return torch.eye(self.rows.embedding_dim, dtype=torch.float64)
        return (self.anchors.detach().double() @ self.anchors.detach().double().T).cpu()

    def column_bits(self) -> Tensor:
        """What a weight in each column costs in a packed file: its number, and its column's, by how often that is used."""
        used = self.rows.count_by_column().double().cpu() + 1
        return VALUE_BITS + torch.log2(used.sum() / used)


def tables_of(model: nn.Module | Iterable[Embedding], also: Sequence[Embedding] = ()) -> list[SparsifiedTable]:
    """The layers with a non-negative T and an ℓ1 penalty by default, and `also` tables of single numbers (biases)."""
    tables = []
    for layer in model.modules() if isinstance(model, nn.Module) else model:
        if isinstance(layer, Embedding) and not any(layer is other for other in also):
            proxes = {id(group.get("table")): group.get("prox") for group in layer.param_groups(0.0)}
            for rows, anchors in layer.pairs:
                if isinstance(prox := proxes[id(rows)], NonNegativeL1) and prox.scheduled:
                    tables.append(SparsifiedTable(layer, rows, anchors, 0.0))
    if not tables:
        raise ValueError("0 layers have a T to make sparse, at least 1 is needed; give a model with an AnchorEmbedding")
    for layer in also:
        if layer.pairs or layer.embedding_dim != 1:
            raise ValueError(f"`also` is for tables of single numbers, this one has {layer.embedding_dim} columns")
        tables += [SparsifiedTable(layer, rows, None, -torch.inf) for rows in layer.tables]
    if len({table.rows.shared for table in tables}) > 1:
        raise ValueError("some of these tables are shared among processes and some are not; shard all of them, or none")
    return tables


def count(tables: Sequence[SparsifiedTable], weights: Iterable[Tensor]) -> int:
    """nnz of all tables, if these are their weights; over all processes that share them."""
    own = sum(int(weight.count_nonzero()) for weight in weights)
    return int(tables[0].rows.summed(torch.tensor(own)))


@torch.no_grad()
def normalize_anchors(table: SparsifiedTable, state: Mapping[Tensor, State]) -> None:
    """Anchors of length 1: the same vectors, with T and the moments of both (an optimizer's `state`) rescaled, so that a
    penalty means the same everywhere."""
    if table.anchors is None:
        return
    weight, anchors = table.rows.current, table.anchors
    norms = anchors.norm(dim=1)
    norms[norms == 0] = 1
    table.rows.release()
    anchors.div_(norms.unsqueeze(1))
    weight.mul_(norms)
    # Gradients scale inversely.
    for parameter, factor in ((anchors, norms.unsqueeze(1)), (weight, 1 / norms)):
        for name, moment in state.get(parameter, {}).items():
            if isinstance(moment, Tensor) and moment.shape == parameter.shape and moment.dtype == parameter.dtype:
                moment.mul_(factor**2 if name in ("second", "exp_avg_sq") else factor)


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
def evaluating(model: nn.Module, tables: list[SparsifiedTable]) -> Iterator[None]:
    """Without dropout, without ridges, and all rows up to date; afterwards as before."""
    training = {module: module.training for module in model.modules()}
    model.eval()
    for table in tables:
        table.layer.ridge_active = False
    try:
        yield
    finally:
        for table in tables:
            table.layer.ridge_active = True
        for module, was in training.items():
            module.training = was


def observe(model: nn.Module, tables: list[SparsifiedTable], batches: Batches, loss_fn: LossFunction) -> Pass:
    weights = [table.rows.current for table in tables]
    P = [torch.zeros(2 * T.shape[1:], dtype=torch.float64) for T in weights]
    found = [
        Quadratic(torch.zeros_like(T), T.new_zeros(len(T)), p, T.new_zeros(len(T))) for T, p in zip(weights, P, strict=True)
    ]
    seen = Pass(found, 0, 0, [])
    with evaluating(model, tables):
        for batch in batches:
            n = examples_in(batch)
            gradients = torch.autograd.grad(loss_fn(batch) * n, weights, allow_unused=True)
            for quadratic, gradient in zip(found, gradients, strict=True):
                if gradient is not None:
                    _add(quadratic, gradient)
            if seen.batches % CHECKED == 0:
                seen.checked.append(batch)
            seen.examples += n
            seen.batches += 1
    if not seen.batches:
        raise ValueError("there are 0 batches to learn the loss from; give the loader of the training data")
    seen.checked = seen.checked[:: -(-len(seen.checked) // MOST_CHECKED)]
    for table, quadratic in zip(tables, found, strict=True):
        quadratic.P = table.rows.summed(quadratic.P)
        quadratic.P /= max(float(quadratic.P.trace()), 1e-300)
        squares, lookups = table.rows.summed(torch.stack([quadratic.h.sum(), quadratic.n.sum()])).tolist()
        quadratic.h = torch.maximum(quadratic.h, FLOOR * (squares / max(lookups, 1.0)) * quadratic.n)
    return seen


def _add(quadratic: Quadratic, gradient: Tensor) -> None:
    if gradient.is_sparse:
        gradient = gradient.coalesce()
        rows, values = gradient.indices()[0], gradient.values()
        squares = values.square().sum(1)
        for total, part in ((quadratic.G, values), (quadratic.h, squares), (quadratic.n, torch.ones_like(squares))):
            total.index_add_(0, rows, part)
    else:
        values, squares = gradient, gradient.square().sum(1)
        quadratic.G += values
        quadratic.h += squares
        quadratic.n += squares > 0
    quadratic.P += (values.T @ values).double().cpu()


@torch.no_grad()
def mean_loss(model: nn.Module, tables: list[SparsifiedTable], batches: Batches, loss_fn: LossFunction) -> float:
    """Over the examples of these batches."""
    total, examples = 0.0, 0
    with evaluating(model, tables):
        for batch in batches:
            n = examples_in(batch)
            total, examples = total + float(loss_fn(batch)) * n, examples + n
    return total / max(examples, 1)
