"""log Σ_i exp(x_i·s + b_i) over the rows of a shared table, for states of which each process has its own; T stays where it is.

States (K numbers each) go to all processes. Each adds up the rows that it holds and returns one number a state; on the way
back, the gradients of the states and of b. So a process sends about 2·(n − 1)·m·K numbers for m states, and V·(n − 1)/n for the
gradient of b, where the rows and their gradients would be 2·(n − 1)·V·K/n.
"""

from typing import Any

import torch
from torch import Tensor

from antembed.layer.row_table import IN_CACHE, log_total
from antembed.layer.sharded.collectives import Ranks
from antembed.layer.sharded.distributed_spread import Spread

DOING = "adding up scores"


class SharedLogTotal(torch.autograd.Function):
    """states (m, K), the rows of this process (V/n, K), b (V,) → (m,). The gradient of the rows is divided by n, as that of
    all shared rows is; those of states and b are of this process's own result. `fixed`: a row that has no gradient."""

    @staticmethod
    def forward(
        ctx: Any, states: Tensor, weight: Tensor, bias: Tensor, ranks: Ranks, spread: Spread, fixed: int | None
    ) -> Tensor:
        n, m = ranks.size, len(states)
        counts = ranks.gather(torch.tensor(m)).tolist()
        own_bias = bias[spread.ids(ranks.rank)]
        every = to_all(states, counts, ranks)
        partial = torch.cat([log_total(weight, some, own_bias) for some in every.split(counts)])
        found = ranks.swap(partial, counts, [m] * n, DOING).view(n, m).logsumexp(0)
        ctx.save_for_backward(every, weight, own_bias, found)
        ctx.about = counts, ranks, spread, fixed
        return found

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor | None, ...]:
        every, weight, own_bias, found = ctx.saved_tensors
        counts, ranks, spread, fixed = ctx.about
        n, m = ranks.size, len(found)
        totals, scales = to_all(torch.stack([found, outer[0]], 1), counts, ranks).unbind(1)
        dweight, dstates, dbias = torch.zeros_like(weight), torch.zeros_like(every), weight.new_zeros(n, len(weight))
        parts = zip(every.split(counts), totals.split(counts), scales.split(counts), dstates.split(counts), dbias, strict=True)
        for states, total, scale, dsome, db in parts:
            step = max(IN_CACHE // max(len(states), 1), 1)
            for first in range(0, len(weight), step):
                some = slice(first, first + step)
                scores = torch.addmm(own_bias[some], states, weight[some].T)
                shares = scores.sub_(total.unsqueeze(1)).exp_().mul_(scale.unsqueeze(1))
                dweight[some].addmm_(shares.T, states)
                dsome.addmm_(shares, weight[some])
                db[some] = shares.sum(0)
        if fixed is not None:
            dweight[fixed] = 0
        dstates = ranks.swap(dstates, counts, [m] * n, DOING).view(n, m, every.shape[1]).sum(0)
        sizes = [stop - start for start, stop in map(spread.range, range(n))]
        by_place = ranks.swap(dbias.view(-1), [len(weight)] * n, sizes, DOING)
        dbias = by_place[spread.places(torch.arange(spread.V))]
        return dstates, dweight / n, dbias, None, None, None


def to_all(values: Tensor, counts: list[int], ranks: Ranks) -> Tensor:
    """The rows of all processes, one after the other; counts[r] are those of rank r."""
    n = ranks.size
    return ranks.swap(values.repeat(n, *[1] * (values.dim() - 1)), [len(values)] * n, counts, DOING)
