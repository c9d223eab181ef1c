"""The stochastic solver, for any task: mini-batches, a gradient rule, the prox; callbacks.py acts between epochs."""

import math
import time
from collections.abc import Iterator
from functools import partial
from typing import ClassVar

import torch

from antembed.files import JSON
from antembed.layer.embedding import param_groups
from antembed.layer.growth_rule import penalties
from antembed.layer.optim import OPTIMIZERS
from antembed.layer.optim.proximal_optimizer import ProximalOptimizer
from antembed.train.anchor_growth import GrowthControl
from antembed.train.callbacks import Averaging, BestEpoch, BudgetSteering, Controller, Polish, Pruning, Sparsify
from antembed.train.checkpoint import Checkpoint, capture, restore
from antembed.train.config import StochasticConfig, ThreadsConfig
from antembed.train.engine import Loop, PieceEngine, TorchEngine, constant, cosine, halving, ramp, rates, scaled
from antembed.train.examples import RowExamples
from antembed.train.options import ConfigError
from antembed.train.processes import one_copy
from antembed.train.run_folder import RunFolder
from antembed.train.solver import Callback, Progress, Solver, ignore
from antembed.train.task import Batch, ConfigT, Engine, ModelT, OffersEngine, Schedule, Source, SplitsT

REPORT_EVERY = 0.1  # seconds between two calls of the callback


class Stochastic(Solver[ConfigT, SplitsT, ModelT, StochasticConfig]):
    """Update, then prox, batch by batch; with validation data the best epoch counts."""

    name: ClassVar[str] = "stochastic"

    def setup(self) -> None:
        task, config, own, model, splits = self.task, self.config, self.own, self.model, self.splits
        examples = len(splits.train)
        lr, l1 = schedules(own, examples)
        self.terms = task.terms(config, splits, model)
        if self.ranks is not None and config.auto and any(len(free) for free in self.terms.free_entries.values()):
            under = f"under torchrun ({self.ranks.size} processes)"
            raise ConfigError(f"{under} anchors auto goes without relations; give --anchors", "anchors")
        optimizer = self._optimizer(lr(0), l1(0))
        if self.ranks is not None:
            from antembed.train.sharded_checkpoint import ShardedStorage  # its parts of torch take a second to import

            self.storage = ShardedStorage(self.ranks, model, optimizer)
        self.fused = self._takes_fused(optimizer)
        self.threads = config.machine.threads if isinstance(config.machine, ThreadsConfig) else 1
        if config.auto and not len(splits.validation):
            raise ValueError("anchors auto compares numbers of anchors on validation data, and there are 0; give --anchors")
        self.warmup = ramp(round(own.sparsity.l1_warmup * own.epochs * examples / own.train.batch_size))
        self.loop = Loop(config, own, model, optimizer, examples, task.metric.select_by, lr, l1, storage=self.storage)
        self.growth = GrowthControl(self.loop) if config.auto else None
        steered = config.budget and own.sparsity.sparsify == "prox"
        budget, pruning = BudgetSteering(self.loop) if steered else None, Pruning(self.loop)
        polish = Polish(self.loop, pruning.apply if budget is None else budget.trim)
        made: tuple[Controller | None, ...] = (polish, BestEpoch(self.loop), pruning, budget, self.growth)
        if own.sparsity.sparsify != "prox":
            made = (Sparsify(self.loop, splits.train, partial(task.loss, model), self.terms.biases), BestEpoch(self.loop))
        averaging = Averaging(self.loop, own.train.averaging) if own.train.averaging else None
        self.controllers: list[Controller] = [controller for controller in (averaging, *made) if controller is not None]

    def _optimizer(self, lr: float, l1_penalty: float) -> ProximalOptimizer:
        own = self.own.optimizer
        groups = param_groups(self.model, l1_penalty, own.weight_decay)
        for name, free in self.terms.free_entries.items():
            (rows, _), *_ = self.model.embeddings[name].pairs
            next(group for group in groups if group.get("table") is rows)["prox"].free = rows.own_entries(free)
        for weight, rate in self.terms.rates:
            next(group for group in groups if any(weight is other for other in group["params"]))["rate"] = rate
        optimizer = OPTIMIZERS[own.optimizer].create(groups, lr, own.eps, own.beta2)
        optimizer.max_grad_norm = self.own.train.clip
        return optimizer

    def loss(self, batch: Batch, step: int) -> torch.Tensor:
        """What a step minimises: the task's loss, the KL of variational tables (warmed up), the task's regularizers."""
        total = self.task.loss(self.model, batch)
        for table in self.model.embeddings.values():
            kl = table.divergence()
            if kl is not None:
                total = total + self.warmup(step) / self.loop.examples * kl
        for regularizer in self.terms.regularizers:
            total = total + regularizer(batch, step)
        return total

    def fit(self, files: RunFolder, callback: Callback = ignore) -> Iterator[JSON]:
        record: JSON = {}
        for epoch in range(self.epoch + 1, self.own.epochs + 1):
            if any(controller.stops(epoch) for controller in self.controllers):
                break
            for controller in self.controllers:
                controller.begin(epoch)
            record = self._train(epoch, callback, record)
            with self.loop.averaged():
                record |= self._evaluate()
            if self.ranks is not None:  # what is decided by it must be decided alike, also on other processors
                record = self.ranks.from_first(record)
            for controller in self.controllers:
                controller.end(epoch, record, files)
            self.epoch = epoch
            callback(Progress(epoch, self.loop.examples, record["train_loss"], record["seconds"], record))
            yield record
        for controller in self.controllers:
            controller.finish(files)

    def _train(self, epoch: int, callback: Callback, before: JSON) -> JSON:
        """One epoch of steps."""
        loop, batch_size = self.loop, self.own.train.batch_size
        engine = loop.engine = loop.engine or self._engine()
        self.model.train()
        started = reported = time.perf_counter()
        total, seen = 0.0, 0
        for examples, loss in engine.run(self._shuffled(epoch), batch_size, loop.step, loop.lr, loop.l1):
            seen += examples
            total += loss
            for controller in self.controllers:
                controller.step()
            if (now := time.perf_counter()) - reported > REPORT_EVERY:
                reported = now
                callback(Progress(epoch, seen, total / seen, now - started, before))
        if not math.isfinite(total):
            raise ValueError(f"the loss is {total} after epoch {epoch}: training has diverged; start anew with a lower --lr")
        loop.step += -(-seen // batch_size)
        return {"epoch": epoch, "steps": loop.step, "train_loss": total / seen, "seconds": time.perf_counter() - started}

    def _shuffled(self, epoch: int) -> Source:
        seed, train = self.config.machine.seed, self.splits.train
        if self.ranks is None or not isinstance(train, RowExamples):
            return train.shuffled(seed, epoch)
        return train.in_order(one_copy(self.ranks, partial(train.order, seed, epoch), len(train), train.rows.dtype))

    def _takes_fused(self, optimizer: ProximalOptimizer) -> bool:
        """Whether the fused engine does the work; an error if it was asked for and cannot."""
        asked, pieces = self.own.train.engine, self.own.train.pieces
        if pieces > 1:
            reason: str | None = f"it takes undivided batches, not {pieces} parts"
        elif isinstance(self.task, OffersEngine):
            reason = self.task.unsupported(self.model, optimizer)
        else:
            reason = f"{self.task.name} has none"
        if asked == "fused" and reason is not None:
            raise ValueError(f"the fused engine cannot train this model: {reason}; use --engine torch")
        return asked != "torch" and reason is None

    def _engine(self) -> Engine:
        if self.fused:
            assert isinstance(self.task, OffersEngine)
            return self.task.engine(self.model, self.loop.optimizer, self.threads)
        if self.ranks is None and self.own.train.pieces == 1:
            return TorchEngine(self.loop.optimizer, self.loss)
        seed, pieces = self.config.machine.seed, self.own.train.pieces
        return PieceEngine(self.loop.optimizer, self.loss, self.model, pieces, seed, self.ranks)

    def _evaluate(self) -> JSON:
        """Sizes, and metrics on validation data with the penalty added."""
        self.model.eval()
        tables = self.model.embeddings.items()
        counts = {name: sum(rows.count_nonzeros() for rows in table.tables) for name, table in tables}
        record: JSON = {**rates(self.loop.optimizer), "nnz": counts}
        record["penalty"] = 0.0 if self.loop.polishing else penalties(self.loop.optimizer, self.own.sparsity.l1_penalty)
        if len(self.splits.validation):
            validate = partial(self.task.evaluate, self.model, self.splits, "validation")
            if self.growth is not None:
                return record | self.growth.evaluate(validate)
            record["validation"] = validate()
            record["objective"] = record["validation"]["loss"] + record["penalty"]
        return record

    def state_dict(self) -> Checkpoint:
        states = {controller.name: controller.state() for controller in self.controllers}
        extra = {name: tensor for controller in self.controllers for name, tensor in controller.tensors().items()}
        progress = {"epoch": self.epoch, "step": self.loop.step, "controllers": states}
        return capture(self.model, self.loop.optimizer, progress, extra)

    def load_state_dict(self, checkpoint: Checkpoint) -> None:
        progress = restore(checkpoint, self.model, self.loop.optimizer)
        self.epoch, self.loop.step = progress["epoch"], progress["step"]
        for controller in self.controllers:
            controller.load(progress["controllers"][controller.name], checkpoint.part("extra/"))

    def result(self) -> JSON:
        engine = {"engine": "fused" if self.fused else "torch"}
        return engine if self.growth is None else engine | {"growth": self.growth.summary()}


def schedules(own: StochasticConfig, examples: int) -> tuple[Schedule, Schedule]:
    """Learning rate and λ2 by step."""
    steps = own.epochs * -(-examples // own.train.batch_size)
    shapes = {"constant": constant(), "halving": halving(own.optimizer.halve_every), "cosine": cosine(steps)}
    warmup = ramp(round(own.sparsity.l1_warmup * steps))
    return scaled(own.optimizer.lr, shapes[own.optimizer.schedule]), scaled(own.sparsity.l1_penalty, warmup)
