"""What both sparsifiers do: when an event is due, how many weights it may leave, and whether its result is kept.

    dense    `warmup` calls of step() in which nothing happens
    events   `events` calls; the number of weights falls as  target + (full − target)·(1 − f)³,  f = 1 after 3/4 of them
    tuning   all later calls: zeros stay zero, and the rest learns on

An event that loses too much is done again more carefully, and undone if that does not help. Each that aims at the target and
falls short of it lets the next lose twice as much. Where the budget is not met after all events, there are more.
"""

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Protocol

import torch
from torch import Tensor, nn

from antembed.budget import SLACK, Budget, BudgetController, BudgetError, parse_budget
from antembed.files import JSON
from antembed.layer.embedding import Embedding
from antembed.layer.optim.proximal import ProximalOptimizer, State
from antembed.layer.optim.wrapper import Proximal
from antembed.layer.row_table import numbers_of
from antembed.layer.sparsify.quadratic import Batch, Batches, LossFunction, Unit, count, mean_loss, units_of

REACHED = 0.75  # the share of the events after which the target is aimed at
SPARE = 0.02  # weights more than the budget allows at the last event: those worth least are dropped when the size is known
TRIES = 6
LEAST_GAIN = 0.1  # of the loss: where vectors gain nothing, they may as well go
MAX_LOSS = 0.1  # of what the vectors gain over none at all: what an event may lose


class SupportOptimizer(Protocol):
    """An optimizer of antembed."""

    @property
    def state(self) -> Mapping[Tensor, State]: ...

    def freeze_support(self, weight: Tensor, support: Tensor | None = None, second: Tensor | float | None = None) -> None: ...


class Sparsifier(ABC):
    """Call `step` after each epoch: `events` times (and more, if need be) it makes T sparser, until the budget is met."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: SupportOptimizer,
        *,
        budget: str | Budget,
        events: int = 12,
        warmup: int | None = None,
        also: Sequence[Embedding] = (),
        size: Callable[[str], float] | None = None,
        max_loss: float = MAX_LOSS,
    ):
        """`also`: tables of single numbers (biases) that pay, too. `size(unit)`: what the budget counts, in "parameters" or
        "bytes"; default: the sum over the layers. `max_loss`: what an event may lose of the vectors' whole gain."""
        if events < 1 or (warmup is not None and warmup < 0):
            raise ValueError(f"events must be ≥ 1 and warmup ≥ 0, got {events} and {warmup}")
        if not isinstance(optimizer, ProximalOptimizer | Proximal):
            name = type(optimizer).__name__
            raise TypeError(
                f"{name} cannot freeze zeros; use ProximalAdam, ProximalYogi or Proximal({name}(…)) with "
                "antembed.param_groups(model, l1_penalty=0)"
            )
        self.model, self.optimizer, self.events = model, optimizer, events
        self.units: list[Unit] = units_of(model, also)
        self.warmup = max(events // 2, 1) if warmup is None else warmup
        layers = {id(unit.layer): unit.layer for unit in self.units}.values()
        dense = 4.0 * sum(layer.num_embeddings * layer.embedding_dim for layer in layers)
        self.budget = parse_budget(budget, dense) if isinstance(budget, str) else budget
        self._size = size or (lambda unit: sum(_usage(layer, unit) for layer in layers))
        self.max_loss, self.calls, self.undone, self.short = max_loss, 0, 0, 0
        self.full, self.gain = self._count(self.weights), 0.0
        for unit in self.units:
            unit.table.penalized = True

    @property
    def weights(self) -> list[Tensor]:
        """Each T, up to date."""
        return [unit.table.current for unit in self.units]

    def _count(self, weights: Sequence[Tensor]) -> int:
        return count(self.units, weights)

    @property
    def done(self) -> bool:
        """Whether all events have been."""
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
        """Of the way to the target."""
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
        for unit, second in zip(self.units, self.seconds(), strict=True):
            self.optimizer.freeze_support(unit.table.weight, second=second)
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
        return self.units[0].table.agreed(mean_loss(self.model, self.units, batches, loss_fn))

    @torch.no_grad()
    def _put(self, weights: Sequence[Tensor]) -> None:
        for unit, weight in zip(self.units, weights, strict=True):
            unit.table.release()
            unit.table.weight.copy_(weight)

    def trim(self) -> None:
        """Drop the weights that are worth least until the budget is met."""
        weights = [weight.detach().clone() for weight in self.weights]
        values = self.values(weights)

        def keep(n: int) -> None:
            self._put(self.keep_best(weights, values, n))

        nonzeros = self._count(weights)
        BudgetController(self.budget, self.size, 1.0, 1, 1.0).trim(nonzeros, keep)
        for unit in self.units:
            self.optimizer.freeze_support(unit.table.weight)

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
        parts = [value[some].to(weight.dtype) for weight, value, some in zip(weights, values, nonzero, strict=True)]
        tables = [unit.table for unit in self.units]
        kept = tables[0].largest(torch.cat(parts), min(n, self._count(weights)), partial(numbers_of, tables, nonzero))
        masks = kept.split([len(part) for part in parts])
        return [weight * some.masked_scatter(some, mask) for weight, some, mask in zip(weights, nonzero, masks, strict=True)]

    def seconds(self) -> list[Tensor | float | None]:
        """The second moments of weights that come in."""
        return [None] * len(self.units)

    def facts(self) -> JSON:
        """More for the record of an event."""
        return {}

    def state_dict(self) -> JSON:
        """Plain numbers; save it with the optimizer's, which holds the support."""
        return {"calls": self.calls, "full": self.full, "gain": self.gain, "undone": self.undone, "short": self.short}

    def load_state_dict(self, state: JSON) -> None:
        self.calls, self.full, self.gain = state["calls"], state["full"], state["gain"]
        self.undone, self.short = state["undone"], state["short"]


def _usage(layer: Embedding, unit: str) -> float:
    usage = layer.usage()
    return usage.bytes if unit == "bytes" else usage.parameters
