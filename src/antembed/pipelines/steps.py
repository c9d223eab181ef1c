"""The stochastic solver, whatever is learned: mini-batches, a gradient rule, the prox; budget, polishing and nbANT on top."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol

from torch import nn

from antembed.data import Examples
from antembed.embedding import Embedding, keep_largest
from antembed.growth.policy import Plateau, Trend
from antembed.optim.base import ProximalOptimizer
from antembed.pipelines.meeting import Meeting
from antembed.training import Engine, Grower, Plan, RunFolder, Tick, fit, load_checkpoint
from antembed.training.budget import Budget
from antembed.training.schedule import Schedule, constant, cosine, halving, ramp, scaled

POLISHED = 0.2  # share of the epochs, if there is a budget
ANNEALED = 0.2  # share of the epochs that is left for the end, once the number of anchors stands
PIECE = 1 << 20  # rows


class Work(Protocol):
    """Data and model of a run, as the solver sees them."""

    @property
    def settings(self) -> Any: ...

    @property
    def model(self) -> nn.Module: ...

    @property
    def tables(self) -> Mapping[str, Embedding]: ...

    @property
    def parts(self) -> Mapping[str, Examples]: ...

    def engine(self, optimizer: Any) -> Engine: ...

    def validate(self) -> dict[str, float]: ...

    def size(self, unit: str) -> float: ...

    def budget(self) -> Budget: ...


def schedules(settings: Any, examples: int) -> tuple[Schedule, Schedule]:
    """Learning rate and penalty by step."""
    steps = settings.epochs * -(-examples // settings.batch_size)
    shapes = {"constant": constant(), "halving": halving(settings.halve_every), "cosine": cosine(steps)}
    rise = ramp(round(settings.l1_ramp * steps))
    return scaled(settings.lr, shapes[settings.schedule]), scaled(settings.l1, rise)


def nonzeros(table: Embedding) -> int:
    """nnz over a table's rows, cheap enough for every epoch."""
    return sum(int(piece.count_nonzero()) for rows in table.tables for piece in rows.current.split(PIECE))


def drop_small(work: Work) -> None:
    """What hardly counts becomes zero."""
    if work.settings.keep and len(work.tables) == 1:
        for table in work.tables.values():
            table.keep(work.settings.keep)  # some know better than by size what counts
    elif work.settings.keep:
        keep_largest(work.tables.values(), work.settings.keep)
    else:
        for table in work.tables.values():
            table.prune(work.settings.prune)


def grower_for(work: Work, optimizer: ProximalOptimizer, folder: RunFolder) -> Grower | None:
    """Who moves the number of anchors, if it is to be found."""
    settings = work.settings
    if settings.anchors != "auto":
        return None
    plateau = settings.growth == "plateau"
    # The paper's rule goes on to the last epoch of its usual schedule.
    anneal = max(round(ANNEALED * settings.epochs), 1) if plateau else 0
    return Grower(
        work.model,
        work.tables,
        optimizer,
        Plateau(tables=len(work.tables)) if plateau else Trend(settings.anchor_step),
        folder.snapshot,
        lambda1=settings.lambda1,
        lambda2=getattr(settings, "lambda2", settings.l1),
        epochs=settings.epochs,
        warm=round(settings.l1_ramp * anneal),
        anneal=anneal,
        prune=settings.prune,
        seed=settings.seed,
    )


def learn(
    work: Work,
    optimizer: ProximalOptimizer,
    folder: RunFolder,
    *,
    best_by: str = "loss",
    patience: int = 0,
    resume: bool = False,
    tell: Callable[[Tick], None] = lambda tick: None,
) -> None:
    """Train the model to its end: the best epoch, small weights dropped, a budget met or an error."""
    settings, training = work.settings, work.parts["train"]
    lr, l1 = schedules(settings, len(training))
    grower = grower_for(work, optimizer, folder)
    if grower is not None and grower.anneal:
        batches = -(-len(training) // settings.batch_size)
        lr, l1 = grower.annealed(settings.lr, batches), scaled(settings.l1, ramp(grower.warm * batches))
    share = settings.polish or (POLISHED if settings.budget else 0.0)
    polish = max(round(share * settings.epochs), 1) if share else 0
    meeting = Meeting(work, folder, settings.epochs - polish) if settings.budget else None
    plan = Plan(
        engine=lambda: work.engine(optimizer),
        examples=lambda epoch: training.shuffled(settings.seed, epoch),
        batch_size=settings.batch_size,
        epochs=settings.epochs,
        lr=lr,
        l1=l1,
        price=settings.l1,
        validate=work.validate if len(work.parts["validation"]) else None,
        count=lambda: {"nnz": {name: nonzeros(table) for name, table in work.tables.items()}},
        grower=grower,
        polish=polish,
        steer=None if meeting is None else meeting.steer,
        trim=partial(drop_small, work) if meeting is None else meeting.trim,
        best_by="loss" if grower else best_by,  # models of different K are compared by eq. 5
        patience=0 if grower else patience,  # a trial of more anchors is worse for a while
    )
    fit(work.model, optimizer, plan, folder, resume=resume, tell=tell)
    if folder.best.exists():
        load_checkpoint(folder.best, work.model)
    if not polish:  # or it was done before
        drop_small(work)
    if meeting is not None:
        if work.size(meeting.budget.unit) > meeting.budget.amount:  # polished numbers may be harder to pack
            meeting.trim()
        meeting.budget.check(work.size(meeting.budget.unit))
