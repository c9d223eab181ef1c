"""Recode: each row of T coded anew by coordinate descent with an ℓ0 penalty, on a quadratic model of the loss."""

import math
from collections.abc import Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from antembed.files import JSON
from antembed.layer.coding_kernel import recode_rows
from antembed.layer.sparsify.quadratic import Batch, Batches, LossFunction, Pass, normalize_anchors, observe
from antembed.layer.sparsify.sparsifier import Sparsifier
from antembed.native.threads import parallel_for

PASSES = 8  # over a row, at most
SECANTS, CLOSE = 5, 0.015  # attempts to find the penalty, and the relative deviation from the aim that is accepted
STEEP, FLAT, FIRST = -3.0, -0.2, -0.8  # slopes of log(weights) in log(penalty)
DAMP = 0.5  # pull towards the present weights, in units of the curvature: all rows move at once
FAR = 1.5  # a curvature larger than assumed by more than this factor asks for another proposal
LEAST, MOST = 1e-4, 1e6  # limits of the scale


class Recode(Sparsifier):
    """Dense first. Each event makes one pass over the data for gradients, without optimizer steps, then codes every row anew: a
    weight comes in or stays only if it lowers the (modelled) loss by more than a penalty, chosen such that the aim is met.

        sparsifier = Recode(model, optimizer, budget="20x", events=12)
        for epoch in range(epochs):
            train(…)
            sparsifier.step(loader, loss_fn)      # loss_fn(batch): the mean loss of a batch
    """

    seen: Pass  # of the event at hand
    state_names = (*Sparsifier.state_names, "penalty", "scale", "damp")
    penalty, scale, damp = 0.0, 1.0, DAMP

    def prepare(self, batches: Batches | None, loss_fn: LossFunction | None) -> list[Batch]:
        if batches is None or loss_fn is None:
            raise ValueError("Recode learns the curvature from data: step(loader, loss_fn); Prune needs none")
        for table in self.tables:
            normalize_anchors(table, self.optimizer.state)
        self.seen = observe(self.model, self.tables, batches, loss_fn)
        return self.seen.checked

    def propose(self, weights: Sequence[Tensor], aim: int) -> list[Tensor]:
        """The penalty is sought by secants in logarithms, from the last one."""
        if not self.penalty:  # first guess: the value of the aim-th most valuable weight
            values = torch.cat([value.reshape(-1) for value in self.values(weights)])
            rows = self.tables[0].rows
            self.penalty = max(rows.nth_largest(values, min(aim, int(rows.summed(torch.tensor(len(values)))))), 1e-300)
        before: tuple[float, int] | None = None
        slope, penalty = FIRST, self.penalty
        for attempt in range(SECANTS):
            coded = self._code(weights, penalty)
            left = max(self._count(coded), 1)
            if abs(left - aim) < CLOSE * aim or attempt == SECANTS - 1:
                break
            if before is not None and before[0] != penalty and before[1] != left:
                slope = min(max(math.log(left / before[1]) / math.log(penalty / before[0]), STEEP), FLAT)
            before = penalty, left
            penalty *= min(max((aim / left) ** (1 / slope), 1 / 8), 8)
        self.penalty = penalty
        return coded if self._count(coded) <= 1.1 * aim else self.keep_best(coded, self.values(coded), aim)

    def _code(self, weights: Sequence[Tensor], penalty: float) -> list[Tensor]:
        coded = []
        for table, weight, quadratic, cost in zip(self.tables, weights, self.seen.tables, self._costs(), strict=True):
            T, Q = weight.cpu().numpy(), table.gram().numpy()
            ridge = np.zeros(len(T), np.float32) if table.ridge is None else table.ridge.cpu().numpy()
            h = self.scale * quadratic.h.cpu().numpy().astype(np.float64)
            G = quadratic.G.cpu().numpy() + ridge[:, None] * (T @ Q.astype(T.dtype))
            out = np.empty_like(T)
            given = T, G, h, ridge.astype(np.float64), quadratic.P.numpy(), Q, penalty * cost.numpy(), self.damp, table.floor
            parallel_for(partial(recode_rows, *given, PASSES, out), len(T), T.shape[1] ** 2, torch.get_num_threads())
            if table.rows.own_padding is not None:
                out[table.rows.own_padding] = 0
            coded.append(torch.from_numpy(out).to(weight.device))
        return coded

    def _costs(self) -> list[Tensor]:
        """Factor of the penalty for each column: its bits, relative to the mean, where the budget counts bytes."""
        if self.budget.unit != "bytes":
            return [torch.ones(table.rows.embedding_dim, dtype=torch.float64) for table in self.tables]
        bits = [table.column_bits() for table in self.tables]
        return [each / torch.cat(bits).mean() for each in bits]

    def values(self, weights: Sequence[Tensor]) -> list[Tensor]:
        """½·t²·H_kk of every weight."""
        found = []
        for table, weight, quadratic in zip(self.tables, weights, self.seen.tables, strict=True):
            diagonal = quadratic.P.diagonal().to(quadratic.h)
            curvature = self.scale * quadratic.h.unsqueeze(1) * diagonal
            if table.ridge is not None:
                curvature = curvature + table.ridge.unsqueeze(1).to(diagonal) * table.gram().diagonal().to(diagonal)
            found.append(0.5 * weight.square() * curvature)
        return found

    def learn(self, before: Sequence[Tensor], after: Sequence[Tensor], risen: float) -> bool:
        """Fit the scale of the curvature to the measured rise; True if it was so much too small that a new proposal pays."""
        terms = [table.change(a, b) for table, a, b in zip(self.seen.tables, before, after, strict=True)]
        first, second = self.tables[0].rows.summed(torch.tensor(terms, dtype=torch.float64).sum(0)).tolist()
        self.last = {"predicted": (first + self.scale * second) / self.seen.examples, "risen": risen}
        if not second > 0:
            return False
        scale = min(max((risen * self.seen.examples - first) / second, self.scale / 4), MOST)
        far = scale > FAR * self.scale
        self.scale = max(scale if far else (scale * self.scale) ** 0.5, LEAST)
        return far

    def seconds(self) -> list[Tensor | float | None]:
        return [table.h.unsqueeze(1) * table.P.diagonal().to(table.h) * self.seen.second_of_mean for table in self.seen.tables]

    def facts(self) -> JSON:
        return {"penalty": self.penalty, "scale": self.scale, "damp": self.damp, **self.last}
