"""Polishing: in the last epochs the support of T is frozen and λ2 is 0, which takes away the bias of ℓ1.

It needs no code in the optimizers: weights that are not zero become free entries (layer/optim/prox.py), which no path shrinks, and
the penalty of all others is so large that they cannot leave zero. The support is taken anew before each epoch, so that an
interrupted run continues to the same bytes.
"""

import torch

from antembed.layer.optim.prox import FreeEntries, NonNegativeL1
from antembed.layer.optim.proximal import ProximalOptimizer

PROHIBITIVE = 1e6  # as a strength: no gradient moves a weight past it


@torch.no_grad()
def freeze(optimizer: ProximalOptimizer, before: dict[int, FreeEntries | None]) -> None:
    """Make the non-zeros of every T its free entries, and those that were free `before`, by group."""
    optimizer.flush()
    for number, group in enumerate(optimizer.param_groups):
        prox = group["prox"]
        if isinstance(prox, NonNegativeL1) and prox.scheduled:
            (weight,) = group["params"]
            used = weight != 0
            free = before.get(number)
            if free is not None:
                used |= free.mask().to(weight.device)
            objects, anchors = used.nonzero(as_tuple=True)
            prox.free = FreeEntries(objects, anchors, (weight.shape[0], weight.shape[1]))


def free_entries(optimizer: ProximalOptimizer) -> dict[int, FreeEntries | None]:
    """What each penalty spares, by group: to be taken before the first `freeze`."""
    proxes = enumerate(group["prox"] for group in optimizer.param_groups)
    return {number: prox.free for number, prox in proxes if isinstance(prox, NonNegativeL1)}


def thaw(optimizer: ProximalOptimizer, before: dict[int, FreeEntries | None]) -> None:
    """The penalties as they were."""
    for number, free in before.items():
        optimizer.param_groups[number]["prox"].free = free
