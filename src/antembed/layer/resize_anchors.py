"""Add and remove anchors: columns of T, rows of A and the optimizer's moments of both, in the same Parameter objects.

Anchors that stay do not change, to the last bit. Removed anchors are returned as they were, and can be added again.
"""

from dataclasses import dataclass

import torch
from torch import Generator, Tensor, nn
from torch.nn.functional import pad

from antembed.layer.anchor import AnchoredTable
from antembed.layer.optim.prox import FreeEntries, NonNegativeL1
from antembed.layer.optim.proximal_optimizer import ProximalOptimizer

NEW_SCALE = 0.3  # of the mean contribution t·‖a‖: enough for a gradient, too little to disturb the other anchors


@dataclass(frozen=True)
class RemovedAnchors:
    """n anchors in the order of removal: columns of T (V, n), rows of A (n, d), their moments, their free entries."""

    T: dict[str, Tensor]  # "weight", and the optimizer's "momentum", "second"
    A: dict[str, Tensor]
    free: Tensor  # (pairs, 2): object, anchor

    def __len__(self) -> int:
        return len(self.A["weight"])

    def select(self, chosen: Tensor) -> "RemovedAnchors":
        """Only these, in this order, as 0, 1, …"""
        T = {name: t[:, chosen.to(t.device)] for name, t in self.T.items()}
        A = {name: t[chosen.to(t.device)] for name, t in self.A.items()}
        column = torch.full((len(self),), -1)
        column[chosen] = torch.arange(len(chosen))
        free = torch.stack([self.free[:, 0], column[self.free[:, 1]]], 1)
        return RemovedAnchors(T, A, free[free[:, 1] >= 0])

    def append(self, other: "RemovedAnchors") -> "RemovedAnchors":
        """Both, `other` last. Objects added in between have no weight on the older anchors."""
        T = {name: torch.cat([pad(t, (0, 0, 0, len(other.T[name]) - len(t))), other.T[name]], 1) for name, t in self.T.items()}
        A = {name: torch.cat([old, other.A[name]]) for name, old in self.A.items()}
        return RemovedAnchors(T, A, torch.cat([self.free, other.free + torch.tensor([0, len(self)])]))

    def tensors(self) -> dict[str, Tensor]:
        """For a checkpoint."""
        named = {f"{matrix}/{name}": t for matrix in ("T", "A") for name, t in getattr(self, matrix).items()}
        return named | {"free": self.free}

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor]) -> "RemovedAnchors":
        T, A = ({k[2:]: t for k, t in tensors.items() if k.startswith(f"{matrix}/")} for matrix in ("T", "A"))
        return cls(T, A, tensors["free"])


@torch.no_grad()
def remove_anchors(layer: nn.Module, optimizer: ProximalOptimizer, columns: list[int]) -> RemovedAnchors:
    """Remove the anchors `columns` and return them."""
    layer = _resizable(layer)
    K = layer.num_anchors
    wanted = torch.tensor(sorted(set(columns)), dtype=torch.long)
    if len(wanted) and not 0 <= int(wanted.min()) <= int(wanted.max()) < K:
        raise ValueError(f"anchors {columns} cannot be removed: there are {K}, numbered from 0 to {K - 1}")
    if len(wanted) >= K:
        raise ValueError(f"{len(wanted)} of {K} anchors cannot be removed, 1 must stay; remove {K - 1} at most")
    everything = _all_of(layer, optimizer)
    stays = torch.ones(K, dtype=torch.bool).index_fill(0, wanted, False)
    _replace_all(layer, optimizer, everything.select(stays.nonzero()[:, 0]))
    return everything.select(wanted)


@torch.no_grad()
def add_anchors(
    layer: nn.Module,
    optimizer: ProximalOptimizer,
    n: int,
    removed: RemovedAnchors | None = None,
    *,
    generator: Generator | None = None,
) -> RemovedAnchors | None:
    """Add n anchors: removed ones first, the last removed before others, then new ones; → removed anchors that are left."""
    layer = _resizable(layer)
    if n < 0:
        raise ValueError(f"add_anchors takes a number ≥ 0, got {n}; use remove_anchors")
    together = _all_of(layer, optimizer)
    back = 0 if removed is None else min(n, len(removed))
    if removed is not None and back:
        order = torch.arange(len(removed))
        taken, removed = removed.select(order[-back:]), removed.select(order[:-back])
        T = {name: pad(t, (0, 0, 0, len(layer.rows.weight) - len(t))) for name, t in taken.T.items()}
        together = together.append(_with_moments(layer, optimizer, T, taken.A, taken.free))
    if n > back:
        together = together.append(_new_anchors(layer, optimizer, n - back, generator))
    _replace_all(layer, optimizer, together)
    return removed if removed is not None and len(removed) else None


def _new_anchors(layer: AnchoredTable, optimizer: ProximalOptimizer, n: int, generator: Generator | None) -> RemovedAnchors:
    """Anchors of both signs and about unit length; T half-normal, scaled to a share of the present mean contribution."""
    weight, anchors = layer.rows.weight, layer.anchors
    V, d = layer.num_embeddings, layer.embedding_dim
    parts = layer.rows.summed(weight.sum(0)) * anchors.norm(dim=1)
    count = layer.rows.count_nonzeros()
    mean = float(parts.sum()) / count if count else (2 / max(V, 1)) ** 0.5

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=weight.dtype).to(weight.device)

    T, A = normal(V, n).abs_().mul_(NEW_SCALE * mean), normal(n, d).mul_(d**-0.5)
    if layer.padding_idx is not None:
        T[layer.padding_idx] = 0
    return _with_moments(layer, optimizer, {"weight": layer.rows.own(T)}, {"weight": A}, torch.empty(0, 2, dtype=torch.long))


def _with_moments(
    layer: AnchoredTable, optimizer: ProximalOptimizer, T: dict[str, Tensor], A: dict[str, Tensor], free: Tensor
) -> RemovedAnchors:
    """Add initial moments where the optimizer has some and these anchors have none."""

    def complete(parameter: Tensor, given: dict[str, Tensor]) -> dict[str, Tensor]:
        started = bool(optimizer.state.get(parameter))
        return (optimizer._buffers(given["weight"], optimizer.group_of(parameter)) if started else {}) | given

    return RemovedAnchors(complete(layer.rows.weight, T), complete(layer.anchors, A), free)


def _all_of(layer: AnchoredTable, optimizer: ProximalOptimizer) -> RemovedAnchors:
    """All anchors of the layer, rows up to date."""
    layer.rows.release()
    optimizer.let_go(layer.rows.weight)
    T, A = (
        {"weight": weight.data} | {name: t for name, t in optimizer.state.get(weight, {}).items() if isinstance(t, Tensor)}
        for weight in (layer.rows.weight, layer.anchors)
    )
    return RemovedAnchors(T, A, free_pairs(optimizer.group_of(layer.rows.weight)["prox"]))


def _replace_all(layer: AnchoredTable, optimizer: ProximalOptimizer, anchors: RemovedAnchors) -> None:
    layer.rows.replace(anchors.T["weight"].contiguous())
    layer.anchors.data, layer.anchors.grad = anchors.A["weight"].contiguous(), None
    for parameter, found in ((layer.rows.weight, anchors.T), (layer.anchors, anchors.A)):
        if moments := {name: t.contiguous() for name, t in found.items() if name != "weight"}:
            optimizer.state[parameter].update(moments)
    set_free(optimizer.group_of(layer.rows.weight)["prox"], anchors.free, layer)


def free_pairs(prox: object) -> Tensor:
    """A penalty's free entries as (object, anchor) pairs (n, 2)."""
    if not isinstance(prox, NonNegativeL1) or prox.free is None:
        return torch.empty(0, 2, dtype=torch.long)
    return torch.stack([prox.free.objects, prox.free.columns], 1)


def set_free(prox: object, pairs: Tensor, layer: AnchoredTable) -> None:
    """Replace the free entries of a penalty that has some, for the layer's present size."""
    if isinstance(prox, NonNegativeL1) and prox.free is not None:
        prox.free = FreeEntries(pairs[:, 0], pairs[:, 1], (len(layer.rows.weight), layer.num_anchors))


def _resizable(layer: nn.Module) -> AnchoredTable:
    if not isinstance(layer, AnchoredTable):
        raise TypeError(
            f"{type(layer).__name__} cannot change its number of anchors: eq. 5 counts the columns of one T, and only "
            "AnchorEmbedding and AnchorEmbeddingBag have just one (a softmax would redistribute the rest); use one of these"
        )
    return layer
