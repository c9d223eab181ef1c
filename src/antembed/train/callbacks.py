"""What happens between the epochs of the stochastic solver: one object each, called at the begin and the end of an epoch.

Growth of anchors is in train/anchor_growth.py.

Polish          the last epochs: support frozen, no penalty
BestEpoch       keeps the best model on validation data; patience
Pruning         drops weights that hardly count, at the end
BudgetSteering  adjusts λ2 until a budget is met, then removes what is too much
Averaging       the mean of the weights counts (NT-ASGD)
Sparsify        --sparsify recode|prune: events at which T becomes sparser
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from antembed.budget import BudgetController, parse_budget
from antembed.files import JSON
from antembed.layer.anchor import AnchorEmbedding
from antembed.layer.embedding import Embedding, keep_largest
from antembed.layer.optim.prox import FreeEntries, NonNegativeL1
from antembed.layer.optim.proximal_optimizer import ProximalOptimizer
from antembed.layer.sparsify.quadratic import Batches, LossFunction
from antembed.layer.sparsify.recode import Recode
from antembed.layer.sparsify.sparsifier import Prune, Sparsifier
from antembed.train.checkpoint import capture, restore, with_prefix
from antembed.train.engine import Loop, constant, cosine, draw_seed, scaled
from antembed.train.model import EmbeddingModel
from antembed.train.run_folder import RunFolder
from antembed.train.task import Schedule, Source

# Polishing: in the last epochs the support of T is frozen and λ2 is 0, which takes away the bias of ℓ1.
#
# It needs no code in the optimizers: weights that are not zero become free entries (layer/optim/prox.py), which are not shrunk,
# and the penalty of all others is so large that they cannot leave zero. The support is taken anew before each epoch, so that an
# interrupted run continues to the same bytes.
PROHIBITIVE = 1e6  # as a strength: no gradient moves a weight past it


@torch.no_grad()
def freeze(optimizer: ProximalOptimizer, before: dict[int, FreeEntries | None]) -> None:
    """Make the non-zeros of every T its free entries, and those that were free `before`, by group."""
    optimizer.flush()
    for number, group in enumerate(optimizer.param_groups):
        prox = group["prox"]
        if isinstance(prox, NonNegativeL1) and prox.scheduled:
            (weight,) = group["params"]
            used = weight != 0
            if (free := before.get(number)) is not None:
                used |= free.mask().to(weight.device)
            objects, anchors = used.nonzero(as_tuple=True)
            prox.free = FreeEntries(objects, anchors, (weight.shape[0], weight.shape[1]))


def free_entries(optimizer: ProximalOptimizer) -> dict[int, FreeEntries | None]:
    """What each penalty spares, by group: to be taken before the first `freeze`."""
    proxes = enumerate(group["prox"] for group in optimizer.param_groups)
    return {number: prox.free for number, prox in proxes if isinstance(prox, NonNegativeL1)}


def thaw(optimizer: ProximalOptimizer, before: dict[int, FreeEntries | None]) -> None:
    """The penalties as they were."""
    for number, free in before.items():
        optimizer.param_groups[number]["prox"].free = free


SPARSIFIERS: dict[str, type[Sparsifier]] = {"recode": Recode, "prune": Prune}
TUNED, LEAST = 1 / 3, 0.02  # the learning rate of the tuning, at its begin and end, as shares
APART = 1 << 30  # epochs: the order of a pass without steps is none that training has
POLISHED = 0.2  # share of the epochs, if there is a budget
DENSE = 0.55  # of the epochs that are not events of a sparsifier: dense ones before, the rest tunes
AIM = 1.1  # of the budget: what is a little too much is removed before polishing


class Controller:
    """Does nothing by default; `name` is its place in a checkpoint."""

    name: ClassVar[str]

    def __init__(self, loop: Loop):
        self.loop = loop

    def stops(self, epoch: int) -> bool:
        """Whether training ends before this epoch."""
        return False

    def begin(self, epoch: int) -> None:
        """Before an epoch."""

    def step(self) -> None:
        """After a step (of the torch engine)."""

    def end(self, epoch: int, record: JSON, files: RunFolder) -> None:
        """After an epoch; may add to its record."""

    def finish(self, files: RunFolder) -> None:
        """After the last epoch."""

    def state(self) -> JSON:
        return {}

    def tensors(self) -> dict[str, Tensor]:
        """What a checkpoint keeps of it beside `state`."""
        return {}

    def load(self, state: JSON, tensors: dict[str, Tensor]) -> None:
        """Continue where `state` was taken."""


class Pruning(Controller):
    """Weights that hardly count become zero: below a share of the mean contribution, or all but the largest ones."""

    name: ClassVar[str] = "pruning"

    def apply(self) -> None:
        sparsity, tables = self.loop.own.sparsity, [*self.loop.model.embeddings.values()]
        if sparsity.max_nonzeros and len(tables) == 1:
            tables[0].keep(sparsity.max_nonzeros)  # some know better than by size what counts
        elif sparsity.max_nonzeros:
            keep_largest(tables, sparsity.max_nonzeros)
        else:
            for table in tables:
                table.prune(sparsity.prune)

    def finish(self, files: RunFolder) -> None:
        if not polished_epochs(self.loop):  # or it was done before
            self.apply()


@contextmanager
def pruned(tables: Iterable[AnchorEmbedding], share: float) -> Iterator[None]:
    """With weights that hardly count at zero; afterwards they are back."""
    tables = list(tables)
    kept = [table.rows.current.detach().clone() for table in tables]
    try:
        for table in tables:
            table.prune(share)
        yield
    finally:
        for table, weight in zip(tables, kept, strict=True):
            table.rows.weight.data.copy_(weight)


class BudgetSteering(Controller):
    """λ2 is adjusted after each epoch. Sizes are those of the pruned tables: noise keeps small weights alive."""

    name: ClassVar[str] = "budget"

    def __init__(self, loop: Loop):
        super().__init__(loop)
        model, own = loop.model, loop.own
        assert isinstance(model, EmbeddingModel)
        self.model, self.base = model, loop.l1
        self.tables = [table for table in model.embeddings.values() if isinstance(table, AnchorEmbedding)]
        budget = parse_budget(own.sparsity.budget, model.dense_bytes())
        epochs = own.epochs - polished_epochs(loop)
        self.controller = BudgetController(budget, self.size, own.sparsity.l1_penalty, epochs, AIM)

    def size(self) -> float:
        config = self.loop.config
        return self.model.stored_size(self.controller.budget.unit, config.values, config.encoding)

    def end(self, epoch: int, record: JSON, files: RunFolder) -> None:
        if self.loop.polishing:
            return
        with pruned(self.tables, self.loop.own.sparsity.prune):
            record["size"] = self.size()
        self.controller.adjust(epoch, record["size"])
        record["next_l1_penalty"] = self.controller.penalty
        self._use_penalty()

    def _use_penalty(self) -> None:
        self.loop.l1 = scaled(self.controller.penalty / self.loop.own.sparsity.l1_penalty, self.base)

    def trim(self) -> None:
        """Keep as many of the largest contributions as the budget allows."""
        for table in self.tables:
            table.prune(self.loop.own.sparsity.prune)
        weights = [table.rows.weight.detach().clone() for table in self.tables]

        def keep(n: int) -> None:
            for table, weight in zip(self.tables, weights, strict=True):
                table.rows.weight.data.copy_(weight)
            keep_largest(self.tables, n)

        self.controller.trim(sum(table.rows.count_nonzeros() for table in self.tables), keep)

    def finish(self, files: RunFolder) -> None:
        if self.size() > self.controller.budget.amount:  # polished numbers may be harder to pack
            self.trim()
        self.controller.budget.check(self.size())

    def state(self) -> JSON:
        return self.controller.state()

    def load(self, state: JSON, tensors: dict[str, Tensor]) -> None:
        self.controller.load(state)
        if self.controller.first_size:
            self._use_penalty()


class Polish(Controller):
    """In the last epochs the support of T is frozen and λ2 is 0, which takes away the bias of ℓ1."""

    name: ClassVar[str] = "polish"

    def __init__(self, loop: Loop, trim: Callable[[], None]):
        super().__init__(loop)
        self.trim, self.free = trim, free_entries(loop.optimizer)
        self.first = loop.own.epochs - polished_epochs(loop) + 1

    def begin(self, epoch: int) -> None:
        if epoch < self.first:
            return
        if epoch == self.first:
            self.trim()
        freeze(self.loop.optimizer, self.free)
        self.loop.polishing, self.loop.l1, self.loop.engine = True, constant(PROHIBITIVE), None

    def finish(self, files: RunFolder) -> None:
        thaw(self.loop.optimizer, self.free)


class BestEpoch(Controller):
    """With validation data the epoch with the lowest error and penalty counts; while there is polishing to come, none does."""

    name: ClassVar[str] = "best"

    def __init__(self, loop: Loop):
        super().__init__(loop)
        self.lowest, self.epoch = float("inf"), 0
        # Models with different numbers of anchors are compared by eq. 5, and an attempt is worse for a while.
        self.select_by = "loss" if loop.config.auto else loop.select_by
        self.patience = 0 if loop.config.auto else loop.own.train.patience

    def stops(self, epoch: int) -> bool:
        return bool(self.patience and self.epoch and epoch - 1 - self.epoch >= self.patience)

    def end(self, epoch: int, record: JSON, files: RunFolder) -> None:
        small_later = polished_epochs(self.loop) > 0 or self.loop.own.sparsity.sparsify != "prox"
        if "validation" not in record or (small_later and not self.loop.polishing):
            return
        own = record["objective"] if self.select_by == "loss" else record["validation"][self.select_by] + record["penalty"]
        if own < self.lowest:
            self.lowest, self.epoch = own, epoch
            with self.loop.averaged():
                self.loop.storage.save(files.best, capture(self.loop.model, None, {"epoch": epoch}))

    def finish(self, files: RunFolder) -> None:
        if self.loop.storage.exists(files.best):
            restore(self.loop.storage.load(files.best), self.loop.model)

    def state(self) -> JSON:
        return {"lowest": self.lowest, "epoch": self.epoch}

    def load(self, state: JSON, tensors: dict[str, Tensor]) -> None:
        self.lowest, self.epoch = state["lowest"], state["epoch"]


def dense_epochs(epochs: int, events: int) -> int:
    """Epochs before the first event of a sparsifier."""
    return max(round(DENSE * (epochs - events)), 1)


def polished_epochs(loop: Loop) -> int:
    """How many of the last epochs polish."""
    sparsity = loop.own.sparsity
    if sparsity.sparsify != "prox":  # all after the last event
        return loop.own.epochs - sparsity.events - dense_epochs(loop.own.epochs, sparsity.events)
    share = sparsity.polish or (POLISHED if sparsity.budget else 0.0)
    return max(round(share * loop.own.epochs), 1) if share else 0


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

    def end(self, epoch: int, record: JSON, files: RunFolder) -> None:
        if self.means or "validation" not in record or (polished_epochs(self.loop) and not self.loop.polishing):
            return
        error = record["validation"][self.loop.select_by]
        if len(self.seen) > self.after and error > min(self.seen[: -self.after]):
            self._flush()
            self.means = {name: torch.zeros_like(weight) for name, weight in self.loop.model.named_parameters()}
        self.seen.append(error)

    def finish(self, files: RunFolder) -> None:
        if self.steps:
            self._put(self.means)

    def state(self) -> JSON:
        return {"seen": self.seen, "steps": self.steps}

    def tensors(self) -> dict[str, Tensor]:
        return {f"mean/{name}": mean for name, mean in self.means.items()}

    def load(self, state: JSON, tensors: dict[str, Tensor]) -> None:
        self.seen, self.steps = list(state["seen"]), state["steps"]
        own, kept = dict(self.loop.model.named_parameters()), with_prefix(tensors, "mean/")
        self.means = {name: mean.to(own[name].device) for name, mean in kept.items()}


class Sparsify(Controller):
    """Makes T sparser between epochs until the budget is met; the learning rate stays up so long: anchors must still move."""

    name: ClassVar[str] = "sparsify"

    def __init__(self, loop: Loop, train: Source, loss: LossFunction, biases: Sequence[Embedding]):
        super().__init__(loop)
        model, own, config = loop.model, loop.own, loop.config
        assert isinstance(model, EmbeddingModel)
        self.train, self.loss, events = train, loss, own.sparsity.events
        warmup = dense_epochs(own.epochs, events)
        self.first_tuned = warmup + events + 1
        budget = parse_budget(own.sparsity.budget, model.dense_bytes())
        make = SPARSIFIERS[own.sparsity.sparsify]
        size = partial(model.stored_size, values=config.values, encoding=config.encoding)
        self.sparsifier = make(model, loop.optimizer, budget=budget, events=events, warmup=warmup, also=list(biases), size=size)
        held = (warmup + events) * loop.steps_per_epoch
        loop.lr = held_then_cosine(own.optimizer.lr, held, own.epochs * loop.steps_per_epoch - held)
        loop.l1 = constant(0.0)

    def begin(self, epoch: int) -> None:
        # No epoch counts as the best before the budget is met.
        self.loop.polishing = epoch >= self.first_tuned and self.sparsifier.met

    def end(self, epoch: int, record: JSON, files: RunFolder) -> None:
        record["event"] = self.sparsifier.step(self._batches(epoch), self.loss)
        if record["event"] is not None:
            self.loop.engine = None  # it holds the tensors of before

    def _batches(self, epoch: int) -> Batches:
        """And the same random numbers in all processes that share them."""
        if self.loop.own.train.pieces > 1:
            torch.manual_seed(draw_seed(self.loop.config.machine.seed, APART + epoch, 0))
        return self.train.shuffled(self.loop.config.machine.seed, APART + epoch).batches(self.loop.own.train.batch_size)

    def finish(self, files: RunFolder) -> None:
        budget = self.sparsifier.budget
        if self.sparsifier.size() > budget.amount:  # tuned numbers may be harder to pack
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
