"""Differentiable reads of rows that an optimizer keeps lazy."""

from typing import Any, Protocol

import torch
from torch import Tensor

from antembed.layer import lookup_kernel as kernel
from antembed.layer.group_kernel import Groups, sum_groups
from antembed.layer.optim.lazy_kernel import Rows, Rule
from antembed.native.threads import parallel_for

Context = Any  # where autograd keeps what backward needs: anything may be put there
IN_CACHE = 1 << 17  # anchors' numbers up to which a compiled pass beside them is faster than torch's products


class PendingRows(Protocol):
    """What an optimizer attaches to a table: it reads rows up to date, and brings all rows up to date."""

    def read(self, ids: Tensor) -> Tensor: ...

    def group(self, ids: Tensor) -> Groups | None: ...

    def state(self) -> tuple[Rows, Rule, int]: ...

    def flush(self) -> None: ...


class ReadPending(torch.autograd.Function):
    """F.embedding(sparse=True), but the rows come from `pending.read`, up to date: ids (*batch) → (*batch, K)."""

    @staticmethod
    def forward(ctx: Context, ids: Tensor, weight: Tensor, padding_idx: int | None, pending: PendingRows) -> Tensor:
        flat = ids.reshape(-1).long()
        ctx.save_for_backward(flat)
        ctx.shape, ctx.padding_idx = weight.shape, padding_idx
        return pending.read(flat).view(*ids.shape, weight.shape[1])

    @staticmethod
    def backward(ctx: Context, *gradients: Tensor) -> tuple[None, Tensor, None, None]:
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
    def forward(
        ctx: Context, weight: Tensor, anchors: Tensor, groups: Groups, padding_idx: int | None, pending: PendingRows
    ) -> Tensor:
        out = anchors.new_empty(len(groups.group), anchors.shape[1])
        ctx.read = kernel.look_up(groups, *pending.state(), anchors.detach().numpy(), out.numpy(), torch.get_num_threads())
        ctx.save_for_backward(anchors)
        ctx.weight, ctx.groups, ctx.padding_idx, ctx.pending = weight, groups, padding_idx, pending
        return out

    @staticmethod
    def backward(ctx: Context, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
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


class SumBags(torch.autograd.Function):
    """Σ w_p·T[id p] over bags of grouped ids, read from `pending`: (B, K). `bag` (n,) is the bag of each id, `bounds` (B + 1,)
    where bags begin and end."""

    @staticmethod
    def forward(
        ctx: Context,
        weight: Tensor,
        weights: Tensor,
        bag: Tensor,
        bounds: Tensor,
        groups: Groups,
        padding_idx: int | None,
        pending: PendingRows,
    ) -> Tensor:
        rows, unique = pending.read(torch.from_numpy(groups.unique)), groups.unique
        B, K = len(bounds) - 1, weight.shape[1]
        out = weight.new_empty(B, K)
        arrays = bounds.numpy(), groups.group, weights.detach().numpy(), rows.numpy(), out.numpy()
        parallel_for(
            lambda start, stop: kernel.sum_bags(start, stop, *arrays), B, len(weights) // max(B, 1) * K, torch.get_num_threads()
        )
        ctx.save_for_backward(weights, bag)
        ctx.rows, ctx.shape, ctx.groups, ctx.padding_idx = rows, weight.shape, groups, padding_idx
        ctx.again = lambda: ReadPending.apply(torch.from_numpy(unique), weight, padding_idx, pending)
        return out

    @staticmethod
    def backward(ctx: Context, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None, None, None, None]:
        (weights, bag), groups = ctx.saved_tensors, ctx.groups
        unique, U, K = torch.from_numpy(groups.unique), len(groups.unique), ctx.shape[1]
        if torch.is_grad_enabled():  # for second derivatives: the same in plain torch
            group, each = torch.from_numpy(groups.group), gradients[0][bag]
            of_rows = each.new_zeros(U, K).index_add(0, group, weights.unsqueeze(1) * each)
            of_weights = (each * ctx.again()[group]).sum(1)
        else:
            of_rows, of_weights = weights.new_empty(U, K), torch.empty_like(weights)
            arriving = gradients[0].contiguous()
            arrays = [t.detach().numpy() for t in (bag, weights, ctx.rows, arriving, of_rows, of_weights)]
            parallel_for(
                lambda start, stop: kernel.bag_gradients(start, stop, groups.starts, groups.order, *arrays),
                U,
                len(weights) // U * K,
                torch.get_num_threads(),
            )
        return row_sparse(unique, of_rows, ctx.shape, ctx.padding_idx), of_weights, None, None, None, None, None


def fits_compiled_pass(weight: Tensor, anchors: Tensor) -> bool:
    """Whether `LookUp` can be used, and is faster than torch's products."""
    single = weight.dtype == anchors.dtype == torch.float32 and anchors.is_contiguous() and anchors.device.type == "cpu"
    return single and anchors.numel() <= IN_CACHE and not torch.is_autocast_enabled("cpu")


class _Expand(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Context, vectors: Tensor, groups: Groups) -> Tensor:
        ctx.groups = groups
        return vectors.index_select(0, torch.from_numpy(groups.group))

    @staticmethod
    def backward(ctx: Context, *gradients: Tensor) -> tuple[Tensor, None]:
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
