"""Gradient clipping for row-sparse gradients, of which torch's own cannot compute the norm."""

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

# Parameters of which each process holds other rows, and the sum over those processes (layer/sharded/sharded_table.py).
SHARED: WeakIdKeyDictionary = WeakIdKeyDictionary()


@torch.no_grad()
def clip_grad_norm_(parameters: Tensor | Iterable[Tensor], max_norm: float) -> Tensor:
    """Scale all gradients so that their joint 2-norm is at most `max_norm`; → the norm before. As in torch.nn.utils, which
    fails on row-sparse gradients. `max_grad_norm` of a proximal optimizer does it at every step. Where processes share a table
    it is the norm over all its rows, and all processes call it."""
    values: list[Tensor] = []
    shared: list[Tensor] = []
    summed = None
    for weight in [parameters] if isinstance(parameters, Tensor) else parameters:
        summed = SHARED.get(weight, summed)
        if weight.grad is None:
            continue
        if weight.grad.is_sparse:  # the norm is that of the sums over equal rows
            weight.grad = weight.grad.coalesce()
        value = weight.grad._values() if weight.grad.is_sparse else weight.grad
        (shared if weight in SHARED else values).append(value)
    norm = torch.nn.utils.get_total_norm(values)
    if summed is not None:
        norm = (norm.square() + summed(torch.nn.utils.get_total_norm(shared).square())).sqrt()
    factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)
    for value in [*values, *shared]:
        value.mul_(factor.to(value.device))
    return norm


def check_max_norm(max_grad_norm: float | None) -> None:
    """Raise if gradients cannot be clipped to this norm."""
    if max_grad_norm is not None and not max_grad_norm > 0:
        raise ValueError(f"max_grad_norm must be > 0, got {max_grad_norm}; None switches clipping off")
