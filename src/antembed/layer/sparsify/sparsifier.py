"""Sparsifiers, which make T sparser between epochs: when an event is due, how many weights it may leave, and whether its result
is kept. Prune is the plain one, Recode (recode.py) the better.

    dense    `warmup` calls of step() in which nothing happens
    events   `events` calls; the number of weights falls as  target + (full − target)·(1 − f)³,  f = 1 after 3/4 of them
    tuning   all later calls: zeros stay zero, and the rest learns on

An event that loses too much is done again more carefully, and undone if that does not help. Each that aims at the target and
falls short of it lets the next lose twice as much. Where the budget is not met after all events, there are more.
"""

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from antembed.budget import SLACK, Budget, BudgetController, BudgetError, parse_budget
from antembed.files import JSON
from antembed.layer.embedding import Embedding
from antembed.layer.optim.proximal_optimizer import ProximalOptimizer
from antembed.layer.optim.wrapper import Proximal
from antembed.layer.row_table import numbers_of
from antembed.layer.sparsify.quadratic import Batch, Batches, LossFunction, count, mean_loss, tables_of

REACHED = 0.75  # the share of the events after which the target is aimed at
SPARE = 0.02  # weights more than the budget allows at the last event: those worth least are dropped when the size is known
TRIES = 6  # proposals until one has the size
LEAST_GAIN = 0.1  # of the loss: where vectors gain nothing, they may as well go
CHECKED = 8  # batches that Prune checks an event with, where there are any
MAX_LOSS = 0.1  # of what the vectors gain over none at all: what an event may lose


class Sparsifier(ABC):
    """Call `step` after each epoch: `events` times (and more, if need be) it makes T sparser, until the budget is met."""

    state_names: ClassVar[tuple[str, ...]] = ("calls", "full", "gain", "undone", "short")

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        *,
        budget: str | Budget,
        events: int = 12,
        warmup: int | None = None,
        also: Sequence[Embedding] = (),
        size: Callable[[str], float] | None = None,
        max_loss: float = MAX_LOSS,
    ):
        """`also`: tables of single numbers (biases) that pay, too. `size(unit)`: what the budget counts, in "parameters" or
        "bytes"; default: the sum over the layers. `max_loss`: what an event may lose of all that the vectors gain."""
        if events < 1 or (warmup is not None and warmup < 0):
            raise ValueError(f"events must be ≥ 1 and warmup ≥ 0, got {events} and {warmup}")
        if not isinstance(optimizer, ProximalOptimizer | Proximal):
            name = type(optimizer).__name__
            raise TypeError(
                f"{name} cannot freeze zeros; use ProximalAdam, ProximalYogi or Proximal({name}(…)) with "
                "antembed.param_groups(model, l1_penalty=0)"
            )
        self.model, self.optimizer, self.events = model, optimizer, events
        self.tables = tables_of(model, also)
        self.warmup = max(events // 2, 1) if warmup is None else warmup
        layers = {id(table.layer): table.layer for table in self.tables}.values()
        dense = 4.0 * sum(layer.num_embeddings * layer.embedding_dim for layer in layers)
        self.budget = parse_budget(budget, dense) if isinstance(budget, str) else budget
        self._size = size or (lambda unit: sum(getattr(layer.usage(), unit) for layer in layers))
        self.max_loss, self.calls, self.undone, self.short = max_loss, 0, 0, 0
        self.full, self.gain = self._count(self.weights), 0.0
        for table in self.tables:
            table.rows.penalized = True

    @property
    def weights(self) -> list[Tensor]:
        """Each T, up to date."""
        return [table.rows.current for table in self.tables]

    def _count(self, weights: Sequence[Tensor]) -> int:
        return count(self.tables, weights)

    @property
    def done(self) -> bool:
        return self.calls >= self.warmup + self.events

    def size(self) -> float:
        """What the budget counts, now."""
        return self._size(self.budget.unit)

    def step(self, batches: Batches | None = None, loss_fn: LossFunction | None = None) -> JSON | None:
        """After an epoch. `batches` are the training data, `loss_fn(batch)` the mean loss of a batch. → what an event has
        done, or None if none was due."""
        self.calls += 1
        # Tuned numbers may be a little harder to pack than those that met the budget.
        late = self.calls > self.warmup + self.events and not self.met
        if not (self.warmup < self.calls <= self.warmup + self.events or late):
            return None
        return self._event(batches, loss_fn)

    @property
    def met(self) -> bool:
        """Whether the model has the size asked for, but for a little that a last trim takes."""
        return self.size() <= (1 + SLACK) * self.budget.amount

    def _aim(self) -> int:
        """How many weights the event at hand may leave."""
        nonzeros, size = self._count(self.weights), self.size()
        if self.budget.unit == "bytes":
            target = nonzeros * self.budget.amount / max(size, 1)
        else:
            target = self.budget.amount - (size - nonzeros)
        target = max(target, 1.0) * (1 + SPARE if self.done else 1)
        return max(round(target + max(self.full - target, 0) * (1 - self._share()) ** 3), 1)

    def _share(self) -> float:
        return min((self.calls - self.warmup) / (REACHED * self.events), 1.0)

    def _event(self, batches: Batches | None, loss_fn: LossFunction | None) -> JSON:
        checked, check = self.prepare(batches, loss_fn), loss_fn is not None
        before, aim = [weight.detach().clone() for weight in self.weights], self._aim()
        loss = self._loss(checked, loss_fn) if check else 0.0
        if check and not self.gain:
            self._put([torch.zeros_like(weight) for weight in before])
            if (least := self.size()) > self.budget.amount:
                self._put(before)
                raise BudgetError(f"a budget of {self.budget} cannot be met: {least:,.0f} are left of empty tables; allow more")
            self.gain = max(self._loss(checked, loss_fn) - loss, 0.0)
            self._put(before)
        record: JSON = {"aim": aim, "nnz_before": self._count(before), "loss_before": loss}
        allowed = self.max_loss * 2.0**self.short
        for attempt in range(TRIES):
            after = self.propose(before, aim)
            self._put(after)
            risen = self._loss(checked, loss_fn) - loss if check else 0.0
            careful = self.learn(before, after, risen)  # True: the next proposal will be a better one
            accepted = risen <= allowed * max(self.gain, LEAST_GAIN * abs(loss)) or not check
            if accepted and not (careful and attempt < TRIES - 1):
                break
            if not accepted and not careful:
                aim = round((aim * self._count(before)) ** 0.5)
        if not accepted:
            after = before
            self._put(before)
            self.undone += 1
        for table, second in zip(self.tables, self.seconds(), strict=True):
            self.optimizer.freeze_support(table.rows.weight, second=second)
        reached = accepted and self._count(after) <= (1 + 2 * SPARE) * record["aim"]
        self.short += self._share() == 1.0 and not reached
        if self.done:
            self._last(met=reached)
        return record | {"nnz": self._count(self.weights), "loss": loss + risen, "undone": not accepted, **self.facts()}

    def _last(self, met: bool) -> None:
        """To the very budget; or say that it is not met yet."""
        if met:
            self.trim()
        elif self.calls == self.warmup + self.events:
            warnings.warn(
                f"the budget of {self.budget} is not met: the size is {self.size():,.0f} {self.budget.unit}, since less would "
                "lose too much at once; more events follow at the next steps (or give more epochs, or raise max_loss)",
                stacklevel=4,
            )

    def _loss(self, batches: Sequence[Batch], loss_fn: LossFunction | None) -> float:
        assert loss_fn is not None
        return self.tables[0].rows.agreed(mean_loss(self.model, self.tables, batches, loss_fn))

    @torch.no_grad()
    def _put(self, weights: Sequence[Tensor]) -> None:
        for table, weight in zip(self.tables, weights, strict=True):
            table.rows.release()
            table.rows.weight.copy_(weight)

    def trim(self) -> None:
        """Drop the weights that are worth least until the budget is met."""
        weights = [weight.detach().clone() for weight in self.weights]
        values = self.values(weights)

        def keep(n: int) -> None:
            self._put(self.keep_best(weights, values, n))

        BudgetController(self.budget, self.size, 1.0, 1, 1.0).trim(self._count(weights), keep)
        for table in self.tables:
            self.optimizer.freeze_support(table.rows.weight)

    @abstractmethod
    def prepare(self, batches: Batches | None, loss_fn: LossFunction | None) -> list[Batch]:
        """Learn what an event needs; → batches to check it with."""

    @abstractmethod
    def propose(self, weights: Sequence[Tensor], aim: int) -> list[Tensor]:
        """New weights of all tables, `aim` of them not zero."""

    def learn(self, before: Sequence[Tensor], after: Sequence[Tensor], risen: float) -> bool:
        """From what a proposal has done to the mean loss; → whether another would be better."""
        return False

    @abstractmethod
    def values(self, weights: Sequence[Tensor]) -> list[Tensor]:
        """What each weight is worth: by how much the loss would rise without it."""

    def keep_best(self, weights: Sequence[Tensor], values: Sequence[Tensor], n: int) -> list[Tensor]:
        """The n weights of all tables that are worth most; the others are zero."""
        nonzero = [weight != 0 for weight in weights]
        own = [value[mask].to(weight.dtype) for weight, value, mask in zip(weights, values, nonzero, strict=True)]
        rows = [table.rows for table in self.tables]
        kept = rows[0].largest(torch.cat(own), min(n, self._count(weights)), partial(numbers_of, rows, nonzero))
        parts = zip(weights, nonzero, kept.split([len(part) for part in own]), strict=True)
        return [weight * mask.masked_scatter(mask, part) for weight, mask, part in parts]

    def seconds(self) -> list[Tensor | float | None]:
        """The second moments of weights that come in."""
        return [None] * len(self.tables)

    def facts(self) -> JSON:
        return {}

    def state_dict(self) -> JSON:
        """Plain numbers; save it with the optimizer's, which holds the support."""
        return {name: getattr(self, name) for name in self.state_names}

    def load_state_dict(self, state: JSON) -> None:
        for name in self.state_names:
            setattr(self, name, state[name])


class Prune(Sparsifier):
    """Dense first, then gradually fewer weights: those with the smallest ½·t²·v go, where v is the second moment of Adam or
    Yogi, the curvature up to a factor. What is gone stays gone.

        sparsifier = Prune(model, optimizer, budget="20x", events=12)
        for epoch in range(epochs):
            train(…)
            sparsifier.step()
    """

    def prepare(self, batches: Batches | None, loss_fn: LossFunction | None) -> list[Batch]:
        return [] if batches is None else list(islice(batches, CHECKED))

    def propose(self, weights: Sequence[Tensor], aim: int) -> list[Tensor]:
        return self.keep_best(weights, self.values(weights), aim)

    def values(self, weights: Sequence[Tensor]) -> list[Tensor]:
        found = []
        for table, weight in zip(self.tables, weights, strict=True):
            state = self.optimizer.state.get(table.rows.weight, {})
            second = state.get("second", state.get("exp_avg_sq"))
            if second is None:
                raise ValueError(
                    f"Prune needs the second moments of Adam or Yogi, which {type(self.optimizer).__name__} has not for "
                    f"this table; use Recode, or ProximalYogi or ProximalAdam"
                )
            found.append(torch.where(second.isinf(), 0.0, 0.5 * weight.square() * second))
        return found
