"""The fused engine: matrix factorisation with Yogi on the CPU, whole mini-batches in one compiled pass (kernels/ratings.py).

It takes over the tensors of a model and its optimiser: their values move into rows that hold everything of one object, and the
parameters become views of those rows. Evaluation, checkpoints and export go on as with the torch engine, and see the same.
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from antembed.embedding import AnchorEmbedding, FullEmbedding
from antembed.kernels import ratings as kernel
from antembed.kernels.threads import share
from antembed.optim import ProximalYogi
from antembed.optim.lazy import fading_powers
from antembed.optim.prox import NonNegativeL1
from antembed.tasks.recommend import MatrixFactorisation
from antembed.training.engine import set_rates
from antembed.training.schedule import Schedule

CHUNK = 1 << 17  # ratings between two signs of life


def why_not(model: nn.Module, optimiser: Any) -> str | None:
    """What keeps this model from the fused engine; None if nothing does."""
    if not isinstance(model, MatrixFactorisation):
        return "it is made for matrix factorisation"
    kinds = {type(model.users), type(model.items)}
    if kinds not in ({AnchorEmbedding}, {FullEmbedding}):
        return "it knows anchored and full tables, and both sides alike"
    if type(optimiser) is not ProximalYogi or optimiser.defaults["metric"] != "diagonal":
        return "it knows Yogi with the diagonal metric"
    if any(p.device.type != "cpu" or p.dtype not in (torch.float32, torch.float64) for p in model.parameters()):
        return "it runs on the CPU, in float32 or float64"
    if any(getattr(group["prox"], "free", None) is not None for group in optimiser.param_groups):
        return "it has no free entries yet"
    return None


class _Side:
    """One table with its biases as rows of everything."""

    def __init__(self, weight: Tensor, bias: Tensor | None, optimiser: ProximalYogi):
        V, K = weight.shape
        self.K = kernel.padded(K)
        self.rows = np.zeros((V, kernel.row_length(K)), weight.detach().numpy().dtype)
        self.ints = kernel.integers(self.rows)
        _adopt(optimiser, weight, self.rows, kernel.WEIGHTS, self.K)
        if bias is not None:
            _adopt(optimiser, bias, self.rows, kernel.BIAS, 1)


def _group_of(optimiser: ProximalYogi, weight: Tensor) -> dict[str, Any]:
    return next(g for g in optimiser.param_groups if any(p is weight for p in g["params"]))


def _adopt(optimiser: ProximalYogi, weight: Tensor, rows: np.ndarray, at: int, apart: int) -> None:
    """Move a parameter and its moments into the rows, `apart` numbers from each other, and leave views in their place."""
    group = _group_of(optimiser, weight)
    if group["table"] is not None:
        group["table"].release()
    state = optimiser.state_of(weight, group)
    for offset, (owner, key) in enumerate(((None, "weight"), (state, "momentum"), (state, "second"))):
        view = torch.from_numpy(rows)[:, at + offset * apart : at + offset * apart + weight.shape[1]]
        if owner is None:
            view.copy_(weight.data)
            weight.data = view
        else:
            view.copy_(owner[key])
            owner[key] = view


class FusedEngine:
    """Trains a MatrixFactorisation in place; see `why_not` for what it can take."""

    def __init__(self, model: MatrixFactorisation, optimiser: ProximalYogi):
        reason = why_not(model, optimiser)
        if reason is not None:
            raise ValueError(f"the fused engine cannot train this model: {reason}; use the torch engine")
        self.model, self.optimiser = model, optimiser
        biases = [None if table is None else table.rows.weight for table in (model.user_bias, model.item_bias)]
        tables = [table.tables[0].weight for table in (model.users, model.items)]
        self.users, self.items = (_Side(w, b, optimiser) for w, b in zip(tables, biases, strict=True))
        self.anchored, self.biased = isinstance(model.users, AnchorEmbedding), biases[0] is not None
        self.parameters = tables + [b for b in biases if b is not None] + [model.bias]
        if isinstance(model.users, AnchorEmbedding) and isinstance(model.items, AnchorEmbedding):
            self.parameters += [model.users.anchors, model.items.anchors]
        group = _group_of(optimiser, tables[0])
        beta1, beta2 = group["betas"]
        floor = 0.0 if isinstance(group["prox"], NonNegativeL1) else -np.inf
        self.rule = kernel.Yogi(beta1, beta2, group["eps"], floor)

    def _dense(self, weight: Tensor) -> kernel.Dense:
        state = self.optimiser.state_of(weight, _group_of(self.optimiser, weight))
        parts = (weight.detach(), state["momentum"], state["second"])
        return kernel.Dense(*(t.view(1, 1).numpy() if t.dim() == 0 else t.numpy() for t in parts))

    def run(
        self, columns: tuple[Tensor, ...], batch_size: int, first: int, lr: Schedule, l1: Schedule
    ) -> Iterator[tuple[int, float]]:
        """One epoch over shuffled columns, from step `first` on; yields (ratings, their summed loss) as it goes."""
        users, items, ratings = (c.numpy() for c in columns)
        ratings = ratings.astype(self.users.rows.dtype, copy=False)
        batches = -(-len(users) // batch_size)
        model = self.model
        if isinstance(model.users, AnchorEmbedding) and isinstance(model.items, AnchorEmbedding):
            A_u, A_i = self._dense(model.users.anchors), self._dense(model.items.anchors)
        else:
            none = np.zeros((1, 1), self.users.rows.dtype)
            A_u = A_i = kernel.Dense(none, none, none)
        history = kernel.History(np.zeros(batches + 1), np.zeros(batches + 1), fading_powers(self.rule.beta1))
        group = dict(_group_of(self.optimiser, self.parameters[0]))
        strengths = np.array([l1(first + b) if self.anchored else 0.0 for b in range(batches)])
        # A penalty that falls faster than momentum fades: settle all rows at the old price first (optim/lazy.py).
        steep = set(np.flatnonzero(strengths[1:] < self.rule.beta1 * strengths[:-1]) + 1)
        cuts = sorted({*range(0, batches, max(CHUNK // batch_size, 1)), *steep, batches})
        now = 0
        for start, stop in pairwise(cuts):
            if start in steep:
                now = self._flush(history, now)
            steps = np.array([self.optimiser._scale(first + b + 1, group | {"lr": lr(first + b)}) for b in range(start, stop)])
            losses = np.empty(stop - start)
            part = slice(start * batch_size, min(stop * batch_size, len(users)))
            now = kernel.train(
                users[part],
                items[part],
                ratings[part],
                batch_size,
                self.users.rows,
                self.users.ints,
                self.items.rows,
                self.items.ints,
                A_u,
                A_i,
                self._dense(model.bias),
                self.anchored,
                self.biased,
                history,
                self.rule,
                steps,
                steps * strengths[start:stop],
                now,
                losses,
            )
            counts = np.full(stop - start, batch_size)
            counts[-1] = part.stop - part.start - batch_size * (stop - start - 1)
            yield part.stop - part.start, float((losses * counts).sum())
        self._flush(history, now)
        for weight in self.parameters:
            self.optimiser.state[weight]["step"] = first + batches
        set_rates(self.optimiser, lr(first + batches - 1), l1(first + batches - 1))

    def _flush(self, history: kernel.History, now: int) -> int:
        """All rows up to date; the history starts anew at step 0."""
        for side in (self.users, self.items):
            self._flush_side(side, history, now)
        history.drift[0] = history.clock[0] = 0.0
        return 0

    def _flush_side(self, side: _Side, history: kernel.History, now: int) -> None:
        share(
            lambda a, b: kernel.flush(side.rows, side.ints, side.K, self.biased, history, self.rule, now, a, b),
            len(side.rows),
            3 * side.K,
            torch.get_num_threads(),
        )
