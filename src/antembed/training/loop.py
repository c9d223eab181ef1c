"""The loop."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from antembed.growth.objective import penalties
from antembed.optim.base import ProximalOptimizer
from antembed.training.checkpoint import load_checkpoint, save_checkpoint
from antembed.training.run import RunFolder
from antembed.training.schedule import Schedule

Batch = tuple[Tensor, ...]
TELL_EVERY = 0.1  # seconds between two signs of life


@dataclass(frozen=True)
class Plan:
    """What to train on, how long, and how to judge it. `validate` → {"loss": mean D, …}, or None without validation data."""

    loss: Callable[[nn.Module, Any], Tensor]
    batches: Callable[[int], Iterable[Batch]]  # epoch → its batches
    validate: Callable[[], dict[str, float]] | None
    count: Callable[[], dict[str, Any]]  # non-zeros and the like, for the log
    epochs: int
    lr: Schedule  # step → learning rate
    l1: Schedule  # step → strength of the penalties


@dataclass(frozen=True)
class Tick:
    """A sign of life, several times a second."""

    epoch: int
    examples: int  # seen in this epoch
    loss: float  # mean over them
    seconds: float  # of this epoch
    log: dict[str, Any]  # the last epoch's row


def set_rates(optimiser: ProximalOptimizer, lr: float, l1: float) -> None:
    """Put the step's learning rate and penalty where they live: in the parameter groups."""
    for group in optimiser.param_groups:
        group["lr"] = lr
        if group["prox"] is not None:
            group["prox"].strength = l1


def rates(optimiser: ProximalOptimizer) -> dict[str, float]:
    """What is in force, read back from the groups."""
    strengths = [group["prox"].strength for group in optimiser.param_groups if group["prox"] is not None]
    return {"lr": optimiser.param_groups[0]["lr"], "l1": max(strengths, default=0.0)}


def fit(
    model: nn.Module,
    optimiser: ProximalOptimizer,
    plan: Plan,
    folder: RunFolder,
    *,
    resume: bool = False,
    tell: Callable[[Tick], None] = lambda tick: None,
) -> None:
    """Train to the end of the plan, a checkpoint an epoch. With validation data, `best` is the lowest objective so far."""
    done, step, best = 0, 0, float("inf")
    if resume and folder.last.exists():
        progress = load_checkpoint(folder.last, model, optimiser)
        done, step, best = progress["epochs"], progress["steps"], progress["best"]
        folder.forget_after(done)
    row: dict[str, Any] = folder.rows()[-1] if done else {}
    for epoch in range(done + 1, plan.epochs + 1):
        model.train()
        started = told = time.perf_counter()
        total, seen = 0.0, 0
        for batch in plan.batches(epoch):
            set_rates(optimiser, plan.lr(step), plan.l1(step))
            loss = plan.loss(model, batch)
            loss.backward()
            optimiser.step()
            optimiser.zero_grad()
            step += 1
            seen += len(batch[0])
            total += loss.item() * len(batch[0])
            if (now := time.perf_counter()) - told > TELL_EVERY:
                told = now
                tell(Tick(epoch, seen, total / seen, now - started, row))
        seconds = time.perf_counter() - started
        model.eval()
        row = {"epoch": epoch, "steps": step, "train_loss": total / seen, "penalty": penalties(optimiser)}
        row |= rates(optimiser) | plan.count()
        if plan.validate is not None:
            row["validation"] = plan.validate()
            row["objective"] = row["validation"]["loss"] + row["penalty"]
            if row["objective"] < best:
                best = row["objective"]
                save_checkpoint(folder.best, model, None, {"epochs": epoch})
        row["seconds"] = seconds
        tell(Tick(epoch, seen, total / seen, seconds, row))
        folder.log(row)
        save_checkpoint(folder.last, model, optimiser, {"epochs": epoch, "steps": step, "best": best})
