"""Other ways to zeros in T, beside recode: one model, one loop, the same ridges, epochs and budget (MovieLens 1M).

    python -m experiments bench penalties ml-1m/ratings.dat [--budget 25k] [--seeds 0 1 2] [--only l1 …] [--record FILE]

A penalty acts after every step, in the metric of Adam; its strength is steered once an epoch so that the number of non-zeros
falls as it does with recode. After two thirds of the epochs what is too much is dropped by ½·t²·v, zeros are frozen, and the
rest is tuned. Only validation errors may be used to choose anything here; test errors are for the table.
"""

import math
import time
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from antembed.layer.embedding import param_groups
from antembed.layer.optim import OPTIMIZERS
from antembed.layer.sparsify.quadratic import tables_of
from antembed.layer.sparsify.recode import Recode
from antembed.layer.sparsify.sparsifier import Prune
from antembed.train.callbacks import held_then_cosine
from antembed.train.configure import configure
from antembed.train.engine import set_rates
from antembed.train.registry import TASKS
from experiments.race import parse, publish

EPS, FIRM, CHANGED = 1e-8, 3.0, 0.2
NO_RIDGE, FEW_ANCHORS, FREE_BIASES = "recode, no ridge", "recode, 15 anchors", "recode, all biases kept"
Prox = Callable[[Tensor, Tensor, Tensor], Tensor]  # t, λ/D, t at the begin of the epoch → t


def l1(t: Tensor, amount: Tensor, before: Tensor) -> Tensor:
    return (t - amount).clamp(min=0)


def reweighted(t: Tensor, amount: Tensor, before: Tensor) -> Tensor:
    """ℓ1 with a weight for each entry, 1/(|t| + ε) at the begin of the epoch (Candès, Wakin, Boyd 2008)."""
    if not before.any():
        return t
    typical = before[before > 0].mean()
    return (t - amount * typical / (before + 0.1 * typical)).clamp(min=0)


def mcp(t: Tensor, amount: Tensor, before: Tensor) -> Tensor:
    """The firm threshold of the minimax concave penalty (Zhang 2010): large entries are not shrunk."""
    return torch.where(t > FIRM * amount, t, (t - amount).clamp(min=0) / (1 - 1 / FIRM))


def scad(t: Tensor, amount: Tensor, before: Tensor, a: float = 3.7) -> Tensor:
    """Smoothly clipped absolute deviation (Fan, Li 2001)."""
    middle = ((a - 1) * t - a * amount) / (a - 2)
    return torch.where(t <= 2 * amount, (t - amount).clamp(min=0), torch.where(t <= a * amount, middle, t))


def hard(t: Tensor, amount: Tensor, before: Tensor) -> Tensor:
    """Iterative hard thresholding."""
    return torch.where(t > amount, t, 0.0)


PENALTIES: dict[str, Prox] = {"l1": l1, "reweighted l1": reweighted, "MCP": mcp, "SCAD": scad, "hard threshold": hard}
OTHERS = ("RigL", "recode at once", "recode", "recode, averaged", "prune", NO_RIDGE, FEW_ANCHORS, FREE_BIASES)


class Trial:
    """One model and its training."""

    def __init__(self, data: str, way: str, budget: str, seed: int):
        task = TASKS["recommend"]
        given = {"data": data, "solver": "stochastic", "sparsify": "recode", "budget": budget, "seed": seed}
        given |= {"anchors": (15,)} if way == FEW_ANCHORS else {}
        self.config, self.splits = configure(task, given, print)
        self.task, self.own = task, self.config.solver
        self.model = task.build(self.config, self.splits)
        groups = param_groups(self.model, 0.0)
        for weight, rate in task.rates(self.config, self.splits, self.model):
            next(group for group in groups if any(weight is other for other in group["params"]))["rate"] = rate
        self.optimizer = OPTIMIZERS["adam"].create(groups, self.own.optimizer.lr, None, self.own.optimizer.beta2)
        self.regularizers = [] if way == NO_RIDGE else task.regularizers(self.config, self.splits, self.model)
        self.way, self.epochs, self.step = way, self.own.epochs, 0
        self.biases = [] if way == FREE_BIASES else task.sparse_biases(self.model)
        self.sparse_tables = tables_of(self.model, self.biases)
        steps = len(self.splits.train) // self.own.train.batch_size
        self.last = self.epochs * 2 // 3  # epochs until the support is fixed
        self.lr = held_then_cosine(self.own.optimizer.lr, self.last * steps, (self.epochs - self.last) * steps)
        self.loss = partial(task.loss, self.model)
        size = partial(self.model.stored_size, values=self.config.values, encoding=self.config.encoding)
        self.prune = Prune(
            self.model, self.optimizer, budget=budget, events=1, warmup=0, also=self.biases, size=size, max_loss=math.inf
        )
        self.target = self.prune.budget.amount - sum(
            A.numel() for layer in (self.model.users, self.model.items) for _, A in layer.pairs
        )
        self.full = sum(int(table.rows.weight.numel()) for table in self.sparse_tables)
        self.strength, self.averages = 1e-7, dict[str, Tensor]()
        self.supports: list[Tensor] = []  # of RigL

    def run(self) -> None:
        if self.way.startswith(("recode", "prune")):
            self._events()
            return
        if self.way == "RigL":
            self._sparse_from_the_start()
        for epoch in range(1, self.epochs + 1):
            self.before = [table.rows.current.clone() for table in self.sparse_tables]
            self._epoch(epoch, PENALTIES.get(self.way) if epoch <= self.last else None)
            if self.way == "RigL" and epoch < self.last:
                self._regrow()
            elif epoch < self.last:
                f = epoch / self.last
                aim = self.target + (self.full - self.target) * (1 - f) ** 3
                self.strength *= min(max((self._count() / aim) ** 0.5, 0.6), 1.6)
            if epoch == self.last:
                self.prune.step()

    def _events(self) -> None:
        """The sparsifiers of the package, in this loop."""
        events = 1 if self.way == "recode at once" else self.own.sparsity.events
        warmup = self.last - events - 1
        kind = Prune if self.way == "prune" else Recode
        size = self.prune._size
        sparsifier = kind(
            self.model, self.optimizer, budget=self.prune.budget, events=events, warmup=warmup, also=self.biases, size=size
        )
        for epoch in range(1, self.epochs + 1):
            self._epoch(epoch, None)
            order = self.splits.train.shuffled(0, (1 << 30) + epoch)
            sparsifier.step(order.batches(self.own.train.batch_size), self.loss)
            if self.way == "recode, averaged" and epoch > self.last + 2:
                self._average(epoch - self.last - 2)
        for name, weight in self.averages.items():
            self.model.get_parameter(name).data.copy_(weight)

    def _average(self, n: int) -> None:
        for name, weight in self.model.named_parameters():
            known = self.averages.setdefault(name, weight.detach().clone())
            known += (weight.detach() - known) / n

    def _epoch(self, epoch: int, prox: Prox | None) -> None:
        self.model.train()
        for batch in self.splits.train.shuffled(self.config.machine.seed, epoch).batches(self.own.train.batch_size):
            set_rates(self.optimizer, self.lr(self.step), 0.0)
            loss = self.loss(batch) + sum(term(batch, self.step) for term in self.regularizers)
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.step += 1
            if prox is not None:
                self._shrink(prox)

    @torch.no_grad()
    def _shrink(self, prox: Prox) -> None:
        for table, before in zip(self.sparse_tables, self.before, strict=True):
            weight = table.rows.current
            second = self.optimizer.state[table.rows.weight]["second"]
            lr = self.lr(self.step)
            amount = self.strength * lr / (second.sqrt() + EPS)  # λ/D
            size = prox(weight.abs(), amount, before.abs())
            table.rows.weight.copy_(weight.sign() * size)

    def _count(self) -> int:
        return sum(int(table.rows.current.count_nonzero()) for table in self.sparse_tables)

    @torch.no_grad()
    def _sparse_from_the_start(self) -> None:
        share = self.target / self.full
        for table in self.sparse_tables:
            support = torch.rand_like(table.rows.weight) < share
            table.rows.weight.mul_(support)
            self.optimizer.freeze_support(table.rows.weight, support)
            self.supports.append(support)

    @torch.no_grad()
    def _regrow(self) -> None:
        """RigL: the smallest fifth of the support goes, as much comes in where the gradient of all data is largest."""
        with torch.enable_grad():
            for batch in self.splits.train.batches(1 << 16):
                (self.loss(batch) * len(batch[-1])).backward()
        for table, alive in zip(self.sparse_tables, self.supports, strict=True):
            weight, grad = table.rows.current, table.rows.weight.grad.to_dense()
            n = int(CHANGED * int(alive.sum()))
            smallest = torch.where(alive, weight.abs(), math.inf).flatten().topk(n, largest=False).indices
            wanted = torch.where(alive, -math.inf, grad.abs() if table.rows.weight.shape[1] == 1 else -grad)
            largest = wanted.flatten().topk(n).indices
            alive.view(-1)[smallest], alive.view(-1)[largest] = False, True
            table.rows.weight.mul_(alive)
            self.optimizer.freeze_support(table.rows.weight, alive.clone())
        self.optimizer.zero_grad()

    def errors(self) -> dict[str, float]:
        self.model.eval()
        return {part: self.task.evaluate(self.model, self.splits, part)["mse"] for part in ("validation", "test")}


def main(words: list[str]) -> None:
    given = parse(words, __doc__, "data", budget="25k", seeds=[0, 1, 2], only=[*PENALTIES, *OTHERS])
    for seed in given.seeds:
        for way in given.only:
            torch.manual_seed(seed)
            started = time.perf_counter()
            trial = Trial(given.data, way, given.budget, seed)
            trial.run()
            size = trial.prune.size()
            record = {"penalty": way, "seed": seed, "budget": given.budget, "parameters": size, **trial.errors()}
            publish(given.record, {**record, "seconds": round(time.perf_counter() - started, 1)})
