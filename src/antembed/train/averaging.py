"""`--average-after`: non-monotonically triggered averaging (NT-ASGD, Merity et al. 2017)."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

import torch
from torch import Tensor

from antembed.files import JSON
from antembed.layer.embedding import Embedding
from antembed.train.callbacks import Controller, polished_epochs
from antembed.train.engine import Loop
from antembed.train.solver import RunFiles


class Averaging(Controller):
    """Once validation is no better than the best of more than n epochs before, the mean of the weights after every step is what
    is evaluated, kept as the best, and the result; training itself goes on with the weights of the last step. With a budget or
    polishing none is begun while zeros are still to come: a mean of different zeros has none."""

    name: ClassVar[str] = "averaging"

    def __init__(self, loop: Loop, after: int):
        super().__init__(loop)
        self.after, self.seen, self.steps = after, list[float](), 0
        self.means: dict[str, Tensor] = {}
        loop.averaged = self.in_place

    @torch.no_grad()
    def step(self) -> None:
        if not self.means:
            return
        self.steps += 1
        self._flush()
        for name, weight in self.loop.model.named_parameters():
            self.means[name] += (weight - self.means[name]) / self.steps

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """The means are the model's weights for so long, once there are any."""
        if not self.steps:
            yield
            return
        last = {name: weight.detach().clone() for name, weight in self.loop.model.named_parameters()}
        self._put(self.means)
        try:
            yield
        finally:
            self._put(last)

    @torch.no_grad()
    def _put(self, weights: dict[str, Tensor]) -> None:
        self._flush()
        for name, weight in self.loop.model.named_parameters():
            weight.copy_(weights[name])

    def _flush(self) -> None:
        for layer in self.loop.model.modules():
            if isinstance(layer, Embedding):
                layer.flush()

    def end(self, epoch: int, record: JSON, files: RunFiles) -> None:
        if self.means or "validation" not in record or (polished_epochs(self.loop) and not self.loop.polishing):
            return
        error = record["validation"][self.loop.select_by]
        if len(self.seen) > self.after and error > min(self.seen[: -self.after]):
            self._flush()
            self.means = {name: torch.zeros_like(weight) for name, weight in self.loop.model.named_parameters()}
        self.seen.append(error)

    def finish(self, files: RunFiles) -> None:
        if self.steps:
            self._put(self.means)

    def state(self) -> JSON:
        return {"seen": self.seen, "steps": self.steps}

    def tensors(self) -> dict[str, Tensor]:
        return {f"mean/{name}": mean for name, mean in self.means.items()}

    def load(self, state: JSON, tensors: dict[str, Tensor]) -> None:
        self.seen, self.steps = list(state["seen"]), state["steps"]
        kept = {name.removeprefix("mean/"): mean for name, mean in tensors.items() if name.startswith("mean/")}
        own = dict(self.loop.model.named_parameters())
        self.means = {name: mean.to(own[name].device) for name, mean in kept.items()}
