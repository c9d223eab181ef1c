"""Gradient clipping for row-sparse gradients, of which torch's own cannot compute the norm."""

from collections.abc import Iterable

import torch
from torch import Tensor


@torch.no_grad()
def clip_grad_norm_(parameters: Tensor | Iterable[Tensor], max_norm: float) -> Tensor:
    """Scale all gradients so that their joint 2-norm is at most `max_norm`; → the norm before. As in torch.nn.utils."""
    values = []
    for weight in [parameters] if isinstance(parameters, Tensor) else parameters:
        if weight.grad is None:
            continue
        if weight.grad.is_sparse:  # the norm is that of the sums over equal rows
            weight.grad = weight.grad.coalesce()
            values.append(weight.grad._values())
        else:
            values.append(weight.grad)
    norm = torch.nn.utils.get_total_norm(values)
    factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)
    for value in values:
        value.mul_(factor.to(value.device))
    return norm
