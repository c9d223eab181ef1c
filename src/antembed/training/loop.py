"""The loop."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

from antembed.growth.objective import penalties
from antembed.optim.base import ProximalOptimizer
from antembed.training.checkpoint import load_checkpoint, load_extra, save_checkpoint
from antembed.training.engine import Engine, Source, rates
from antembed.training.grower import Grower
from antembed.training.polish import PROHIBITIVE, free_entries, freeze, thaw
from antembed.training.run import RunFolder
from antembed.training.schedule import Schedule, constant, scaled

TELL_EVERY = 0.1  # seconds between two signs of life


@dataclass(frozen=True)
class Plan:
    """What to train on, how long, and how to judge it."""

    engine: Callable[[], Engine]  # made once the model and the optimizer stand where training goes on
    examples: Callable[[int], Source]  # epoch → its examples, shuffled
    batch_size: int
    epochs: int
    lr: Schedule  # step → learning rate
    l1: Schedule  # step → strength of the penalties
    price: float  # the strength at which epochs are compared: l1 may have been lower on the way
    validate: Callable[[], dict[str, float]] | None  # → {"loss": mean D, …}; None without validation data
    count: Callable[[], dict[str, Any]]  # non-zeros and the like, for the log
    grower: Grower | None = None  # moves the number of anchors; None: it stays
    polish: int = 0  # epochs at the end with the support of T frozen and no penalty; they alone may be `best`
    steer: Callable[[int], dict[str, float]] | None = None  # after each epoch before those; → the next `strength`, for the log
    trim: Callable[[], None] = lambda: None  # before the first of them
    best_by: str = "loss"  # what of `validate`, the penalty added, makes an epoch the best
    patience: int = 0  # stop after so many epochs that were no better than the best; 0: never


@dataclass(frozen=True)
class Tick:
    """A sign of life, several times a second."""

    epoch: int
    examples: int  # seen in this epoch
    loss: float  # mean over them
    seconds: float  # of this epoch
    log: dict[str, Any]  # the last epoch's row


def fit(
    model: nn.Module,
    optimizer: ProximalOptimizer,
    plan: Plan,
    folder: RunFolder,
    *,
    resume: bool = False,
    tell: Callable[[Tick], None] = lambda tick: None,
) -> None:
    """Train to the end of the plan, a checkpoint an epoch. With validation data, `best` is the lowest objective so far."""
    done, step, best, best_epoch, grower = 0, 0, float("inf"), 0, plan.grower
    if resume and folder.last.exists():
        progress = load_checkpoint(folder.last, model, optimizer)
        done, step, best, best_epoch = (progress[name] for name in ("epochs", "steps", "best", "best_epoch"))
        if grower is not None:
            grower.load(progress["growth"], load_extra(folder.last))
    folder.forget_after(done)
    row: dict[str, Any] = folder.rows()[-1] if done else {}
    spared, strength = free_entries(optimizer), row.get("strength")
    engine = plan.engine()
    for epoch in range(done + 1, plan.epochs + 1):
        if grower is not None and grower.done(epoch - 1):
            break
        if plan.patience and best_epoch and epoch - 1 - best_epoch >= plan.patience:
            break
        polishing = epoch > plan.epochs - plan.polish
        if polishing:
            if epoch == plan.epochs - plan.polish + 1:
                plan.trim()
            freeze(optimizer, spared)
            engine = plan.engine()
        l1 = constant(PROHIBITIVE) if polishing else plan.l1 if strength is None else scaled(strength / plan.price, plan.l1)
        model.train()
        started = told = time.perf_counter()
        total, seen = 0.0, 0
        for examples, loss in engine.run(plan.examples(epoch), plan.batch_size, step, plan.lr, l1):
            seen += examples
            total += loss
            if (now := time.perf_counter()) - told > TELL_EVERY:
                told = now
                tell(Tick(epoch, seen, total / seen, now - started, row))
        if not math.isfinite(total):
            raise ValueError(f"the loss is {total} after epoch {epoch}: training has diverged; start anew with a lower lr")
        step += -(-seen // plan.batch_size)
        seconds = time.perf_counter() - started
        model.eval()
        row = {"epoch": epoch, "steps": step, "train_loss": total / seen, **rates(optimizer), **plan.count()}
        row["penalty"] = 0.0 if polishing else penalties(optimizer, plan.price)
        if plan.validate is not None:
            if grower is not None:
                row |= grower.judge(plan.validate)
            else:
                row["validation"] = plan.validate()
                row["objective"] = row["validation"]["loss"] + row["penalty"]
            judged = row["objective"] if plan.best_by == "loss" else row["validation"][plan.best_by] + row["penalty"]
            if judged < best and (polishing or not plan.polish):
                best, best_epoch = judged, epoch
                save_checkpoint(folder.best, model, None, {"epochs": epoch})
        if plan.steer is not None and not polishing:
            row |= plan.steer(epoch)
            strength = row["strength"]
        if grower is not None and grower.due(epoch):
            row["growth"] = grower.adjust(epoch, step, row)
            if row["growth"] is not None:
                engine = plan.engine()  # the old one holds the tensors of before
        row["seconds"] = seconds
        tell(Tick(epoch, seen, total / seen, seconds, row))
        folder.log(row)
        progress = {"epochs": epoch, "steps": step, "best": best, "best_epoch": best_epoch}
        if grower is not None:
            progress["growth"] = grower.state()
        save_checkpoint(folder.last, model, optimizer, progress, None if grower is None else grower.tensors())
    thaw(optimizer, spared)
