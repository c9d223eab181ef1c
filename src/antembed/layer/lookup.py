"""Differentiable reads of rows that an optimizer keeps lazy (layer/optim/lazy.py)."""

from typing import Any

import torch
from torch import Tensor

from antembed.layer import lookup_kernel as kernel
from antembed.layer.optim.lazy import LazyRows
from antembed.layer.optim.lazy_kernel import Groups

IN_CACHE = 1 << 17  # anchors' numbers up to which a compiled pass beside them is faster than torch's products


class ReadPending(torch.autograd.Function):
    """F.embedding(sparse=True), but the rows come from `pending.read`, up to date: ids (*batch) → (*batch, K)."""

    @staticmethod
    def forward(ctx: Any, ids: Tensor, weight: Tensor, padding_idx: int | None, pending: LazyRows) -> Tensor:
        flat = ids.reshape(-1).long()
        ctx.save_for_backward(flat)
        ctx.shape, ctx.padding_idx = weight.shape, padding_idx
        return pending.read(flat).view(*ids.shape, weight.shape[1])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, Tensor, None, None]:
        (flat,) = ctx.saved_tensors
        return None, row_sparse(flat, gradients[0].reshape(-1, ctx.shape[1]), ctx.shape, ctx.padding_idx), None, None


def row_sparse(ids: Tensor, values: Tensor, shape: torch.Size, padding_idx: int | None) -> Tensor:
    """The gradient with these rows, but for padding."""
    if padding_idx is not None:
        kept = ids != padding_idx
        ids, values = ids[kept], values[kept]
    if len(ids) < 2:  # torch adds the next such gradient in place and resizes this one: it must not be memory of NumPy's
        ids, values = ids.clone(), values.clone()
    return torch.sparse_coo_tensor(ids.unsqueeze(0), values, shape, check_invariants=False)


class LookUp(torch.autograd.Function):
    """T[ids]·A of grouped ids, read from `pending`: (n, d). One compiled pass, and one for both gradients."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, anchors: Tensor, groups: Groups, padding: int | None, pending: LazyRows) -> Tensor:
        out = anchors.new_empty(len(groups.group), anchors.shape[1])
        given = groups, *pending.kernel_arguments(), anchors.detach().numpy()
        ctx.read = kernel.look_up(*given, out.numpy(), torch.get_num_threads())
        ctx.save_for_backward(anchors)
        ctx.weight, ctx.groups, ctx.padding_idx, ctx.pending = weight, groups, padding, pending
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        (anchors,), weight, groups = ctx.saved_tensors, ctx.weight, ctx.groups
        unique = torch.from_numpy(groups.unique)
        if torch.is_grad_enabled():  # for second derivatives: the same in plain torch
            rows = ReadPending.apply(unique, weight, ctx.padding_idx, ctx.pending)
            summed = gradients[0].new_zeros(len(unique), anchors.shape[1])
            summed = summed.index_add(0, torch.from_numpy(groups.group), gradients[0])
            of_rows, of_anchors = summed @ anchors.T, rows.T @ summed
        else:
            arriving = gradients[0].contiguous().numpy()
            found = kernel.gradients(groups, ctx.read, anchors.detach().numpy(), arriving, torch.get_num_threads())
            of_rows, of_anchors = (torch.from_numpy(each) for each in found)
        return row_sparse(unique, of_rows, weight.shape, ctx.padding_idx), of_anchors, None, None, None


def fits_compiled_pass(weight: Tensor, anchors: Tensor) -> bool:
    """Whether `LookUp` can be used, and is faster than torch's products."""
    single = weight.dtype == anchors.dtype == torch.float32 and anchors.is_contiguous() and anchors.device.type == "cpu"
    return single and anchors.numel() <= IN_CACHE and not torch.is_autocast_enabled("cpu")
