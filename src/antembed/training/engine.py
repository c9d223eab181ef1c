"""Engines take an epoch's examples through the optimizer. This is the plain one; fused.py has the fast one for ratings."""

from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any, Protocol

from torch import Tensor, nn

from antembed.optim.base import ProximalOptimizer
from antembed.training.schedule import Schedule

CHUNK = 1 << 17  # examples between two signs of life of a compiled pass


class Source(Protocol):
    """Examples in the order of an epoch; a slice of them is aligned columns."""

    def __len__(self) -> int: ...

    def __getitem__(self, piece: slice) -> tuple[Tensor, ...]: ...


class Engine(Protocol):
    """One epoch over shuffled examples in batches, from step `first` on; yields (examples, their summed loss) as it goes."""

    def run(self, examples: Source, batch_size: int, first: int, lr: Schedule, l1: Schedule) -> Iterator[tuple[int, float]]: ...


def chunk_size(batch_size: int) -> int:
    """Examples to fetch at a time: many, and whole batches."""
    return max(CHUNK // batch_size, 1) * batch_size


class TorchEngine:
    """Any model, any loss, any device."""

    def __init__(self, model: nn.Module, optimizer: ProximalOptimizer, loss: Callable[[nn.Module, Any], Tensor]):
        self.model, self.optimizer, self.loss = model, optimizer, loss
        self.step = 0  # the one being taken, for a loss that changes with it

    def run(self, examples: Source, batch_size: int, first: int, lr: Schedule, l1: Schedule) -> Iterator[tuple[int, float]]:
        size = chunk_size(batch_size)
        chunks = (examples[start : start + size] for start in range(0, len(examples), size))
        batches = chain.from_iterable(zip(*(c.split(batch_size) for c in chunk), strict=True) for chunk in chunks)
        for step, batch in enumerate(batches, first):
            set_rates(self.optimizer, lr(step), l1(step))
            self.step = step
            loss = self.loss(self.model, batch)
            loss.backward()
            self.optimizer.step()  # update, then prox
            self.optimizer.zero_grad()
            yield len(batch[0]), loss.item() * len(batch[0])


def set_rates(optimizer: ProximalOptimizer, lr: float, l1: float) -> None:
    """Put a step's learning rate and penalty where they live: in the parameter groups, the same for all."""
    for group in optimizer.param_groups:
        group["lr"] = lr
        if group["prox"] is not None and group["prox"].scheduled:
            group["prox"].strength = l1


def rates(optimizer: ProximalOptimizer) -> dict[str, float]:
    """What is in force, read back from the groups."""
    strengths = [group["prox"].strength for group in optimizer.param_groups if group["prox"] is not None]
    return {"lr": optimizer.param_groups[0]["lr"], "l1": max(strengths, default=0.0)}
