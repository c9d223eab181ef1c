"""Engines: an epoch of examples through the optimizer, for any model; learning rates by step; the state of the loop."""

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from antembed.layer.optim.proximal_optimizer import SHARED, ProximalOptimizer
from antembed.layer.sharded.collectives import Ranks
from antembed.train.checkpoint import FileStorage, Storage
from antembed.train.config import StochasticConfig, TaskConfig
from antembed.train.examples import Pieces
from antembed.train.model import TaskModel
from antembed.train.task import Batch, Engine, Schedule, Source


def scaled(factor: float, schedule: Schedule) -> Schedule:
    """factor × schedule."""
    return lambda step: factor * schedule(step)


def constant(value: float = 1.0) -> Schedule:
    """The same throughout."""
    return lambda step: value


def halving(every: int) -> Schedule:
    """The paper's: × ½ every so many steps."""
    return lambda step: 0.5 ** (step // every)


def cosine(steps: int) -> Schedule:
    """From 1 to 0 over `steps`, slowly at both ends."""
    return lambda step: 0.5 * (1 + math.cos(math.pi * min(step / max(steps, 1), 1.0)))


def ramp(steps: int) -> Schedule:
    """From 0 to 1 over `steps`, then 1. For a penalty: at full strength from the first step it kills most anchors before they
    have learned anything, and a product of two tables in which an anchor is zero in both has no gradient to bring it back."""
    return lambda step: min(step / steps, 1.0) if steps else 1.0


class TorchEngine:
    """Any model, any loss, any device."""

    def __init__(self, optimizer: ProximalOptimizer, loss: Callable[[Batch, int], Tensor]):
        self.optimizer, self.loss = optimizer, loss

    def run(self, examples: Source, batch_size: int, first: int, lr: Schedule, l1: Schedule) -> Iterator[tuple[int, float]]:
        for step, batch in enumerate(examples.batches(batch_size), first):
            set_rates(self.optimizer, lr(step), l1(step))
            loss = self.loss(batch, step)
            loss.backward()
            self.optimizer.step()  # update, then prox
            self.optimizer.zero_grad()
            yield len(batch[-1]), loss.item() * len(batch[-1])


def set_rates(optimizer: ProximalOptimizer, lr: float, l1: float) -> None:
    """Put a step's learning rate (times the group's `rate`, if it has one) and penalty where they live: in the groups."""
    for group in optimizer.param_groups:
        group["lr"] = lr * group.get("rate", 1.0)
        if group["prox"] is not None and group["prox"].scheduled:
            group["prox"].strength = l1


def rates(optimizer: ProximalOptimizer) -> dict[str, float]:
    """What is in force, read back from the groups."""
    strengths = [group["prox"].strength for group in optimizer.param_groups if group["prox"] is not None]
    first = optimizer.param_groups[0]
    return {"lr": first["lr"] / first.get("rate", 1.0), "l1_penalty": max(strengths, default=0.0)}


@dataclass
class Loop:
    """What is trained, by what, and how far it is."""

    config: TaskConfig
    own: StochasticConfig
    model: TaskModel
    optimizer: ProximalOptimizer
    examples: int  # for training
    select_by: str  # the metric that makes an epoch the best
    lr: Schedule  # step → learning rate
    l1: Schedule  # step → λ2
    engine: Engine | None = field(default=None, init=False)  # None: made anew before the next epoch: tensors were replaced
    step: int = field(default=0, init=False)
    polishing: bool = field(default=False, init=False)
    storage: Storage = field(default_factory=FileStorage)
    averaged: Callable[[], AbstractContextManager[None]] = nullcontext  # the weights that are evaluated and kept, for so long

    @property
    def steps_per_epoch(self) -> int:
        return -(-self.examples // self.own.train.batch_size)


def draw_seed(seed: int, step: int, piece: int) -> int:
    """For the random numbers of a piece."""
    return int(np.random.SeedSequence((seed, step, piece)).generate_state(1, np.uint64)[0] >> np.uint64(1))


@dataclass
class PieceEngine:
    """Any model, any loss; every process goes over the same batches and fetches its parts of each. The parts do not depend on
    the number of processes, and random numbers (dropout, negatives) are drawn anew for each, by the seed, the step and its
    number: the result is the same with any number of processes, up to the order of sums."""

    optimizer: ProximalOptimizer
    loss: Callable[[Batch, int], Tensor]
    model: TaskModel
    pieces: int
    seed: int
    ranks: Ranks | None
    states: dict[int, object] = field(default_factory=dict, init=False)  # of each piece: what its next batch continues from

    def __post_init__(self) -> None:
        self.rank, self.size = (0, 1) if self.ranks is None else (self.ranks.rank, self.ranks.size)

    def run(self, examples: Source, batch_size: int, first: int, lr: Schedule, l1: Schedule) -> Iterator[tuple[int, float]]:
        for step, batch in enumerate(examples.pieces(batch_size, self.pieces), first):
            set_rates(self.optimizer, lr(step), l1(step))
            total, count = self._backward(batch, step), sum(batch.sizes)
            self._average()
            self.optimizer.step()  # update, then prox
            self.optimizer.zero_grad()
            yield count, total * count

    def _backward(self, batch: Pieces, step: int) -> float:
        """Gradients of this process's parts; → the mean loss of the batch."""
        total, pieces = 0.0, len(batch.sizes)
        for number in range(self.rank, -(-pieces // self.size) * self.size, self.size):
            mine = number < pieces
            share = batch.sizes[number] / sum(batch.sizes) if mine else 0.0
            self.model.state = self.states.get(number) if mine else None
            torch.manual_seed(draw_seed(self.seed, step, 1 + number))  # also for words that are left out
            # Ranks without a part run a zero-weight step so that collectives match.
            loss = self.loss(batch.fetch(number if mine else 0), step)
            (loss * (share * self.size)).backward()  # the mean over processes is taken of all gradients
            if mine:
                self.states[number] = self.model.state
                total += loss.item() * share
        return total if self.ranks is None else float(self.ranks.sum(torch.tensor(total, dtype=torch.float64)))

    def _average(self) -> None:
        """The mean over processes, of the gradients of what every process has; those of shared tables arrive so."""
        weights = [weight for group in self.optimizer.param_groups for weight in group["params"]]
        gradients = [weight.grad for weight in weights if weight.grad is not None and weight not in SHARED]
        if self.ranks is None or not gradients:
            return
        summed = self.ranks.sum(torch.cat([gradient.reshape(-1) for gradient in gradients])) / self.size
        for gradient, part in zip(gradients, summed.split([gradient.numel() for gradient in gradients]), strict=True):
            gradient.copy_(part.view(gradient.shape))
