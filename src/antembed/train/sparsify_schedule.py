"""`--sparsify recode|prune`: dense epochs, then events at which T becomes sparser (antembed/sparsify), then tuning."""

from typing import ClassVar

import torch
from torch import Tensor

from antembed.budget import parse_budget
from antembed.files import JSON
from antembed.layer.embedding import Embedding
from antembed.layer.sparsify.quadratic import Batches, LossFunction
from antembed.layer.sparsify.recode import Recode
from antembed.layer.sparsify.sparsifier import Prune, Sparsifier
from antembed.train.callbacks import Controller, dense_epochs
from antembed.train.engine import Loop, constant, cosine, draw_seed
from antembed.train.model import EmbeddingModel
from antembed.train.solver import RunFiles
from antembed.train.task import Schedule, Source

SPARSIFIERS: dict[str, type[Sparsifier]] = {"recode": Recode, "prune": Prune}
TUNED, LEAST = 1 / 3, 0.02  # the learning rate of the tuning, at its begin and end, as shares
APART = 1 << 30  # epochs: the order of a pass without steps is none that training has


class Sparsify(Controller):
    """Makes T sparser between epochs until the budget is met; the learning rate stays up so long, since anchors must still
    move."""

    name: ClassVar[str] = "sparsify"

    def __init__(self, loop: Loop, train: Source, loss: LossFunction, biases: list[Embedding]):
        super().__init__(loop)
        model, own, config = loop.model, loop.own, loop.config
        assert isinstance(model, EmbeddingModel)
        self.train, self.loss, events = train, loss, own.sparsity.events
        warmup = dense_epochs(own.epochs, events)
        self.first_tuned = warmup + events + 1
        budget = parse_budget(own.sparsity.budget, model.dense_bytes())
        self.sparsifier = SPARSIFIERS[own.sparsity.sparsify](
            model,
            loop.optimizer,
            budget=budget,
            events=events,
            warmup=warmup,
            also=biases,
            size=lambda unit: model.stored_size(unit, config.values, config.encoding),
        )
        steps = loop.steps_per_epoch
        loop.lr = held_then_cosine(
            own.optimizer.lr, (self.first_tuned - 1) * steps, (own.epochs - self.first_tuned + 1) * steps
        )
        loop.l1 = constant(0.0)

    def begin(self, epoch: int) -> None:
        # No epoch counts as the best before the budget is met.
        self.loop.polishing = epoch >= self.first_tuned and self.sparsifier.met

    def end(self, epoch: int, record: JSON, files: RunFiles) -> None:
        self._draw(epoch)
        record["event"] = self.sparsifier.step(self._batches(epoch), self.loss)
        if record["event"] is not None:
            self.loop.engine = None  # it holds the tensors of before

    def _draw(self, epoch: int) -> None:
        """Where pieces of batches have been learned, by perhaps several processes: the same random numbers for all."""
        if self.loop.own.train.pieces > 1:
            torch.manual_seed(draw_seed(self.loop.config.machine.seed, APART + epoch, 0))

    def _batches(self, epoch: int) -> Batches:
        return self.train.shuffled(self.loop.config.machine.seed, APART + epoch).batches(self.loop.own.train.batch_size)

    def finish(self, files: RunFiles) -> None:
        budget = self.sparsifier.budget
        if self.sparsifier.size() > budget.amount:  # tuned numbers may be harder to pack
            self._draw(0)
            self.sparsifier.prepare(self._batches(0), self.loss)
            self.sparsifier.trim()
        budget.check(self.sparsifier.size())

    def state(self) -> JSON:
        return self.sparsifier.state_dict()

    def load(self, state: JSON, tensors: dict[str, Tensor]) -> None:
        self.sparsifier.load_state_dict(state)


def held_then_cosine(lr: float, held: int, tuned: int) -> Schedule:
    """The learning rate for `held` steps; then from a third of it down to nearly nothing."""
    fall = cosine(tuned)
    return lambda step: lr if step < held else TUNED * lr * (LEAST + (1 - LEAST) * fall(step - held))
