"""The tables of a model that become sparse, and their size."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from antembed.layer.embedding import Embedding
from antembed.layer.optim.optim_groups import State
from antembed.layer.optim.prox import NonNegativeL1
from antembed.layer.row_table import RowTable

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
