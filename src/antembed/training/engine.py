"""Engines take an epoch's examples through the optimiser. This is the plain one; fused.py has the fast one for ratings."""

from collections.abc import Callable, Iterator
from typing import Any, Protocol

from torch import Tensor, nn

from antembed.optim.base import ProximalOptimizer
from antembed.training.schedule import Schedule


class Engine(Protocol):
    """One epoch over shuffled columns in batches, from step `first` on; yields (examples, their summed loss) as it goes."""

    def run(
        self, columns: tuple[Tensor, ...], batch_size: int, first: int, lr: Schedule, l1: Schedule
    ) -> Iterator[tuple[int, float]]: ...


class TorchEngine:
    """Any model, any loss, any device."""

    def __init__(self, model: nn.Module, optimiser: ProximalOptimizer, loss: Callable[[nn.Module, Any], Tensor]):
        self.model, self.optimiser, self.loss = model, optimiser, loss

    def run(
        self, columns: tuple[Tensor, ...], batch_size: int, first: int, lr: Schedule, l1: Schedule
    ) -> Iterator[tuple[int, float]]:
        batches = zip(*(column.split(batch_size) for column in columns), strict=True)
        for step, batch in enumerate(batches, first):
            set_rates(self.optimiser, lr(step), l1(step))
            loss = self.loss(self.model, batch)
            loss.backward()
            self.optimiser.step()  # update, then prox
            self.optimiser.zero_grad()
            yield len(batch[0]), loss.item() * len(batch[0])


def set_rates(optimiser: ProximalOptimizer, lr: float, l1: float) -> None:
    """Put a step's learning rate and penalty where they live: in the parameter groups, the same for all."""
    for group in optimiser.param_groups:
        group["lr"] = lr
        if group["prox"] is not None and group["prox"].priced:
            group["prox"].strength = l1


def rates(optimiser: ProximalOptimizer) -> dict[str, float]:
    """What is in force, read back from the groups."""
    strengths = [group["prox"].strength for group in optimiser.param_groups if group["prox"] is not None]
    return {"lr": optimiser.param_groups[0]["lr"], "l1": max(strengths, default=0.0)}
