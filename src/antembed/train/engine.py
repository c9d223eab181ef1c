"""Engines take an epoch's examples through the optimizer. This is the plain one; fused.py has the fast one for ratings."""

from collections.abc import Callable, Iterator
from typing import Protocol

from torch import Tensor

from antembed.layer.optim.proximal import ProximalOptimizer
from antembed.train.solvers_schedule import Schedule
from antembed.train.task import Batch, Source


class Engine(Protocol):
    """One epoch over shuffled examples in batches, from step `first` on; yields (examples, their summed loss) as it goes."""

    def run(self, examples: Source, batch_size: int, first: int, lr: Schedule, l1: Schedule) -> Iterator[tuple[int, float]]: ...


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
