"""Differentiable reads of rows that an optimizer keeps lazy."""

from typing import Any, Protocol

import torch
from torch import Tensor

from antembed.kernels.groups import Groups, sum_groups
from antembed.kernels.threads import parallel_for


class PendingRows(Protocol):
    """What an optimizer attaches to a table: it reads rows up to date, and brings all rows up to date."""

    def read(self, ids: Tensor) -> Tensor: ...

    def group(self, ids: Tensor) -> Groups | None: ...

    def flush(self) -> None: ...


class ReadPending(torch.autograd.Function):
    """F.embedding(sparse=True), but the rows come from `pending.read`, up to date: ids (*batch) → (*batch, K)."""

    @staticmethod
    def forward(ctx: Any, ids: Tensor, weight: Tensor, padding_idx: int | None, pending: PendingRows) -> Tensor:
        flat = ids.reshape(-1).long()
        ctx.save_for_backward(flat)
        ctx.shape, ctx.padding_idx = weight.shape, padding_idx
        return pending.read(flat).view(*ids.shape, weight.shape[1])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, Tensor, None, None]:
        (flat,) = ctx.saved_tensors
        values = gradients[0].reshape(-1, ctx.shape[1])
        if ctx.padding_idx is not None:
            kept = flat != ctx.padding_idx
            flat, values = flat[kept], values[kept]
        if len(flat) < 2:  # torch adds the next such gradient in place and resizes this one: it must not be memory of NumPy's
            flat, values = flat.clone(), values.clone()
        gradient = torch.sparse_coo_tensor(flat.unsqueeze(0), values, ctx.shape, check_invariants=False)
        return None, gradient, None, None


class _Expand(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, vectors: Tensor, groups: Groups) -> Tensor:
        ctx.groups = groups
        return vectors.index_select(0, torch.from_numpy(groups.group))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        values, groups = gradients[0], ctx.groups
        if torch.is_grad_enabled() or values.dtype not in (torch.float32, torch.float64):
            # For second derivatives, and for half precision from autocast: the same in plain torch.
            empty = values.new_zeros(len(groups.unique), values.shape[1])
            return empty.index_add(0, torch.from_numpy(groups.group), values), None
        values = values.contiguous()
        summed = values.new_empty(len(groups.unique), values.shape[1])
        into, source = summed.numpy(), values.numpy()
        parallel_for(
            lambda start, stop: sum_groups(start, stop, groups.starts, groups.order, source, into),
            len(summed),
            summed.shape[1],
            torch.get_num_threads(),
        )
        return summed, None


def expand(vectors: Tensor, groups: Groups) -> Tensor:
    """vectors (U, d) of the distinct ids → (n, d), one for each id; gradients of equal ids are summed."""
    return _Expand.apply(vectors, groups)
