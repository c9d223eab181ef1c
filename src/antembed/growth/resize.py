"""More or fewer anchors, for real: T's columns, A's rows and the optimizer's moments of both, in the same Parameter objects.

Whatever stays is not touched, to the last bit. What is taken out is kept aside as it was, and can be put back.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from antembed.embedding.anchor import AnchoredTable
from antembed.optim.base import ProximalOptimizer
from antembed.optim.groups import Group
from antembed.optim.prox import FreeEntries, NonNegativeL1

FRESH = 0.3  # of the mean contribution t·‖a‖: enough for a gradient, too little to upset what has been learned


@dataclass(frozen=True)
class RemovedAnchors:
    """n anchors out of use, the last removed last: columns of T (V, n), rows of A (n, d), their moments, their free entries."""

    T: dict[str, Tensor]  # "weight", and the optimizer's "momentum", "second"
    A: dict[str, Tensor]
    free: Tensor  # (pairs, 2): object, anchor

    def __len__(self) -> int:
        return len(self.A["weight"])

    def last(self, n: int) -> "RemovedAnchors":
        return self._some(torch.arange(len(self) - n, len(self)))

    def without_last(self, n: int) -> "RemovedAnchors":
        return self._some(torch.arange(len(self) - n))

    def _some(self, chosen: Tensor) -> "RemovedAnchors":
        T = {name: t[:, chosen.to(t.device)] for name, t in self.T.items()}
        A = {name: t[chosen.to(t.device)] for name, t in self.A.items()}
        return RemovedAnchors(T, A, _renumbered(self.free, chosen, len(self)))

    def and_then(self, other: "RemovedAnchors") -> "RemovedAnchors":
        """Both, `other` last. Objects that came between have no weight on the older anchors."""
        T = {name: torch.cat([_taller(old, len(other.T[name])), other.T[name]], 1) for name, old in self.T.items()}
        A = {name: torch.cat([old, other.A[name]]) for name, old in self.A.items()}
        return RemovedAnchors(T, A, torch.cat([self.free, other.free + torch.tensor([0, len(self)])]))

    def tensors(self) -> dict[str, Tensor]:
        """For a checkpoint."""
        named = {f"{matrix}/{name}": t for matrix in ("T", "A") for name, t in getattr(self, matrix).items()}
        return named | {"free": self.free}

    @classmethod
    def of_tensors(cls, tensors: dict[str, Tensor]) -> "RemovedAnchors":
        T, A = ({k[2:]: t for k, t in tensors.items() if k.startswith(f"{matrix}/")} for matrix in ("T", "A"))
        return cls(T, A, tensors["free"])


def _taller(columns: Tensor, V: int) -> Tensor:
    return torch.cat([columns, columns.new_zeros(V - len(columns), columns.shape[1])])


def _renumbered(free: Tensor, chosen: Tensor, K: int) -> Tensor:
    """Pairs of (object, anchor) after the anchors `chosen` of K became 0, 1, …"""
    place = torch.full((K,), -1)
    place[chosen] = torch.arange(len(chosen))
    moved = torch.stack([free[:, 0], place[free[:, 1]]], 1)
    return moved[moved[:, 1] >= 0]


@torch.no_grad()
def drop_anchors(layer: nn.Module, optimizer: ProximalOptimizer, columns: list[int]) -> RemovedAnchors:
    """Take the anchors `columns` out; → what they were."""
    layer = _resizable(layer)
    K = layer.num_anchors
    gone = torch.tensor(sorted(set(columns)), dtype=torch.long)
    if len(gone) and not 0 <= int(gone.min()) <= int(gone.max()) < K:
        raise ValueError(f"anchors {columns} are to go, but there are {K}, numbered from 0 to {K - 1}")
    if len(gone) >= K:
        raise ValueError(f"{len(gone)} of {K} anchors are to go, but one must stay; drop {K - 1} at most")
    everything = _all_of(layer, optimizer)
    stays = torch.ones(K, dtype=torch.bool)
    stays[gone] = False
    _put(layer, optimizer, everything._some(stays.nonzero()[:, 0]))
    return everything._some(gone)


@torch.no_grad()
def add_anchors(
    layer: nn.Module,
    optimizer: ProximalOptimizer,
    n: int,
    aside: RemovedAnchors | None = None,
    *,
    generator: torch.Generator | None = None,
) -> RemovedAnchors | None:
    """n anchors more: those aside first, the last removed before others, then fresh ones; → what is still aside."""
    layer = _resizable(layer)
    if n < 0:
        raise ValueError(f"add_anchors takes a number ≥ 0, got {n}; drop_anchors takes anchors out")
    together = _all_of(layer, optimizer)
    back = min(n, len(aside)) if aside is not None else 0
    if aside is not None and back:
        taken = aside.last(back)
        T = {name: _taller(t, layer.num_embeddings) for name, t in taken.T.items()}
        together = together.and_then(_with_moments(layer, optimizer, T, taken.A, taken.free))
        aside = aside.without_last(back)
    if n > back:
        together = together.and_then(_fresh(layer, optimizer, n - back, generator))
    _put(layer, optimizer, together)
    return aside if aside is not None and len(aside) else None


def _fresh(layer: AnchoredTable, optimizer: ProximalOptimizer, n: int, generator: torch.Generator | None) -> RemovedAnchors:
    """Anchors of both signs and about unit length; T half-normal, at a share of what a non-zero contributes at present."""
    weight, anchors = layer.rows.weight, layer.anchors
    V, d = layer.num_embeddings, layer.embedding_dim
    parts = weight.sum(0) * anchors.norm(dim=1)
    count = int(weight.count_nonzero())
    mean = float(parts.sum()) / count if count else (2 / max(V, 1)) ** 0.5

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=weight.dtype).to(weight.device)

    T, A = normal(V, n).abs_().mul_(FRESH * mean), normal(n, d).mul_(d**-0.5)
    if layer.padding_idx is not None:
        T[layer.padding_idx] = 0
    return _with_moments(layer, optimizer, {"weight": T}, {"weight": A}, torch.empty(0, 2, dtype=torch.long))


def _with_moments(
    layer: AnchoredTable, optimizer: ProximalOptimizer, T: dict[str, Tensor], A: dict[str, Tensor], free: Tensor
) -> RemovedAnchors:
    """Moments as before the first step, where the optimizer has some and these anchors have none."""
    both = []
    for parameter, known in ((layer.rows.weight, T), (layer.anchors, A)):
        started = bool(optimizer.state.get(parameter))
        fresh = optimizer._buffers(known["weight"], _group_of(optimizer, parameter)) if started else {}
        both.append(fresh | known)
    return RemovedAnchors(both[0], both[1], free)


def _all_of(layer: AnchoredTable, optimizer: ProximalOptimizer) -> RemovedAnchors:
    """All anchors as they are, rows up to date."""
    layer.rows.release()
    optimizer.let_go(layer.rows.weight)
    found: list[dict[str, Tensor]] = []
    for parameter in (layer.rows.weight, layer.anchors):
        state = optimizer.state.get(parameter, {})
        found.append({"weight": parameter.data, **{name: t for name, t in state.items() if isinstance(t, Tensor)}})
    return RemovedAnchors(found[0], found[1], free_pairs(_group_of(optimizer, layer.rows.weight)["prox"]))


def _put(layer: AnchoredTable, optimizer: ProximalOptimizer, anchors: RemovedAnchors) -> None:
    layer.rows.replace(anchors.T["weight"].contiguous())
    layer.anchors.data, layer.anchors.grad = anchors.A["weight"].contiguous(), None
    for parameter, found in ((layer.rows.weight, anchors.T), (layer.anchors, anchors.A)):
        if moments := {name: t.contiguous() for name, t in found.items() if name != "weight"}:
            optimizer.state[parameter].update(moments)
    set_free(_group_of(optimizer, layer.rows.weight)["prox"], anchors.free, layer)


def free_pairs(prox: object) -> Tensor:
    """A penalty's free entries as (object, anchor) pairs; none if it has none."""
    if not isinstance(prox, NonNegativeL1) or prox.free is None:
        return torch.empty(0, 2, dtype=torch.long)
    rows = torch.arange(prox.free.shape[0]).repeat_interleave(prox.free.starts.diff())
    return torch.stack([rows, prox.free.columns], 1)


def set_free(prox: object, pairs: Tensor, layer: AnchoredTable) -> None:
    """Give a penalty with free entries these instead, for the layer's present size."""
    if isinstance(prox, NonNegativeL1) and prox.free is not None:
        prox.free = FreeEntries(pairs[:, 0], pairs[:, 1], (layer.num_embeddings, layer.num_anchors))


def _group_of(optimizer: ProximalOptimizer, weight: Tensor) -> Group:
    for group in optimizer.param_groups:
        if any(p is weight for p in group["params"]):
            return group
    raise ValueError("the optimizer does not hold this layer; build it from layer.param_groups(…)")


def _resizable(layer: nn.Module) -> AnchoredTable:
    if not isinstance(layer, AnchoredTable):
        raise TypeError(
            f"{type(layer).__name__} cannot change its number of anchors: eq. 5 counts the columns of one T, and only "
            "AnchorEmbedding and its bag have just one (a softmax would share out anew what is left); use one of these"
        )
    return layer
