"""How results look in a terminal."""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Protocol

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.table import Table
from rich.text import Text

from antembed.cli.printable import printable
from antembed.cli.verbosity import verbosity
from antembed.files import JSON

if TYPE_CHECKING:  # `antembed inspect` must not wait for it
    from polars import DataFrame

    from antembed.config import TaskConfig
    from antembed.tasks import Task

# What is printed comes from data and from file names: square brackets and colons in it mean nothing.
out, err = (Console(stderr=stderr, markup=False, emoji=False, highlight=False) for stderr in (False, True))
LINES = 20  # of progress in a pipe, whatever the number of epochs
NAMES = {"mse": "MSE", "accuracy": "accuracy"}  # metrics that progress shows, the first that is there


def print_json(result: object) -> None:
    """One object on stdout, for machines."""
    sys.stdout.write(json.dumps(result) + "\n")


def say(line: str) -> None:
    """A remark on stderr, in one line whatever the width of the terminal."""
    err.print(printable(line), soft_wrap=True)


def answer(line: str) -> None:
    """A line of the result, on stdout, whatever the width of the terminal."""
    out.print(printable(line), soft_wrap=True)


def size(n: float) -> str:
    """1234567 → 1.23M."""
    for unit, scale in (("G", 1e9), ("M", 1e6), ("K", 1e3)):
        if n >= scale:
            return f"{n / scale:.3g}{unit}"
    return f"{n:g}"


def pairs(value: object) -> str:
    """{"users": 3, "items": 4} → users 3, items 4."""
    return ", ".join(f"{name} {number}" for name, number in value.items()) if isinstance(value, dict) else str(value)


def result_table(results: dict[str, JSON]) -> Table:
    """Results side by side, one row each."""
    table = Table(box=None, header_style="bold")
    metric = next(iter(results.values()))["metric"]
    for heading in ("table", "anchors", {"mse": "test MSE"}.get(metric, f"test {metric}"), "parameters", "bytes", "seconds"):
        table.add_column(heading, justify="left" if heading == "table" else "right")
    for name, result in results.items():
        anchors = result["anchors"]
        table.add_row(
            printable(name),
            pairs(anchors) if any(anchors.values() if isinstance(anchors, dict) else [anchors]) else "–",
            "–" if result["test"] is None else f"{result['test'][metric]:.4f}",
            f"{result['parameters']:,}",
            f"{result['bytes']:,}",
            f"{result['seconds']:.1f}",
        )
    return table


def note(line: str) -> None:
    """A line on stderr, unless --quiet."""
    if not verbosity.quiet:
        say(line)


def baselines(result: JSON) -> str:
    """What models that know nothing come to: a metric alone says little."""
    found = result.get("baselines") or {}
    return "beside it: " + ", ".join(f"{name} {value:.4f}" for name, value in found.items()) if found else ""


def remarks(result: JSON) -> None:
    """What a user must know of this result, a line each, on stderr."""
    for line in result.get("remarks", ()):
        say(f"warning: {line}")


def facts(about: JSON) -> None:
    """One a line."""
    for name, value in about.items():
        answer(f"{name.replace('_', ' '):20} {pairs(value)}")


def listing(rows: "DataFrame", as_json: bool) -> None:
    """A table of polars, one row a line."""
    if as_json:
        print_json(rows.to_dicts())
        return
    table = Table(box=None, header_style="bold")
    for name in rows.columns:
        table.add_column(printable(name), justify="right" if rows[name].dtype.is_float() else "left")
    for row in rows.iter_rows():
        table.add_row(*(f"{value:.3f}" if isinstance(value, float) else printable(value) for value in row))
    out.print(table)


def status(text: str) -> AbstractContextManager[object]:
    """A moving sign beside the text, on stderr, while something goes on."""
    return err.status(Text(printable(text))) if moves() else nullcontext()


def moves() -> bool:
    """Whether there is somebody to look at a bar."""
    return err.is_terminal and not verbosity.quiet


@contextmanager
def counting(what: str, total: int) -> Iterator[Callable[[int, float], None]]:
    """A bar that is given (done, seconds); where stderr is no terminal, nothing."""
    if not moves():
        yield lambda done, seconds: None
        return
    with Progress(
        *(TextColumn("{task.description}", markup=False), BarColumn()),
        *(TextColumn("{task.fields[state]}", markup=False), TimeRemainingColumn()),
        console=err,
    ) as bar:
        task = bar.add_task(printable(what), total=total, state="")
        yield lambda done, seconds: bar.update(task, completed=done, state=f"{size(done / max(seconds, 1e-9))}/s")


@contextmanager
def bar(label: str) -> Iterator[Callable[[str, int, int], None]]:
    """A bar that is given (what is done, how far, of how much); where stderr is no terminal, nothing."""
    if not moves():
        yield lambda what, done, total: None
        return
    with Progress(TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), console=err) as shown:
        task = shown.add_task(printable(label), total=1.0)
        yield lambda what, done, total: shown.update(task, completed=done, total=total)


@contextmanager
def fetching(what: str) -> Iterator[Callable[[int, int | None], None]]:
    """A bar that is given (bytes so far, of how many); where stderr is no terminal, nothing."""
    if not moves():
        yield lambda done, total: None
        return
    name = TextColumn("{task.description}", markup=False)
    with Progress(name, BarColumn(), DownloadColumn(), TransferSpeedColumn(), console=err) as bar:
        task = bar.add_task(printable(what), total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


class Epoch(Protocol):
    """What a solver reports (solvers/base.py has it; this module must not wait for torch)."""

    @property
    def epoch(self) -> int: ...

    @property
    def examples(self) -> int: ...

    @property
    def loss(self) -> float: ...

    @property
    def seconds(self) -> float: ...

    @property
    def record(self) -> JSON: ...


@contextmanager
def progress_bar(label: str, epochs: int, examples: int, metric: str = "") -> Iterator[Callable[[Epoch], None]]:
    """A bar over all epochs with the error, non-zeros and speed, on stderr; where that is no terminal, some lines.

    `epochs` is 0 where their number is not known: a stream. `metric`: "MSE" if the loss is half of it.
    """
    if verbosity.quiet:
        yield lambda now: None
        return
    if not err.is_terminal:
        lines = Lines(label, epochs, metric)
        yield lines.update
        lines.finish()
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[state]}", markup=False),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=err) as bar:
        task = bar.add_task(printable(label), total=epochs or None, state="starting (the first run compiles for some seconds)")

        def update(now: Epoch) -> None:
            completed = round(now.epoch - 1 + now.examples / max(examples, 1), 2) if epochs else now.epoch
            bar.update(task, completed=completed, state=state(now, metric))

        yield update


class Lines:
    """Progress for a file or a pipe: the first epoch, the last, and some in between, evenly spaced.

    Of a stream nobody knows how long it is: batches 1, 2, 4, 8, … and the last.
    """

    def __init__(self, label: str, epochs: int, metric: str):
        self.label, self.epochs, self.metric = label, epochs, metric
        self.last: Epoch | None = None  # complete, and not printed

    def update(self, now: Epoch) -> None:
        if now.record.get("epoch") != now.epoch:
            return
        self.last = now
        if self.due(now.epoch):
            self.finish()

    def due(self, epoch: int) -> bool:
        if not self.epochs:
            return epoch & (epoch - 1) == 0
        most = LINES - 1  # beside the first
        return epoch == 1 or epoch * most // self.epochs > (epoch - 1) * most // self.epochs or self.epochs <= LINES

    def finish(self) -> None:
        """Print the last epoch, if it is not yet."""
        if self.last is not None:
            number = f"epoch {self.last.epoch}/{self.epochs}" if self.epochs else f"batch {self.last.epoch}"
            say(f"{self.label} {number} {state(self.last, self.metric)}")
            self.last = None


def training_bar(
    label: str, task: "Task", config: "TaskConfig", examples: int
) -> AbstractContextManager[Callable[[Epoch], None]]:
    """The progress of a run of this task."""
    weighted = config.model_dump()["solver"].get("unobserved_weight")  # then the loss is about pairs without a rating, too
    metric = "MSE" if task.metric.label == "MSE" and not weighted else ""
    return progress_bar(label, config.solver.records, examples, metric)


def state(now: Epoch, metric: str) -> str:
    """The error on validation data if there are any, else on what was trained; the size of T; the speed."""
    measured, before = now.record.get("validation"), now.record.get("mse_before")
    if before is not None:
        error = f"MSE before learning {before:.4f}"
    elif measured:
        name = next((name for name in NAMES if name in measured), "loss")
        error = f"validation {NAMES.get(name, name)} {measured[name]:.4f}"
    else:
        error = f"train MSE {2 * now.loss:.4f}" if metric == "MSE" else f"train loss {now.loss:.4f}"
    nnz = f" nnz {size(sum(now.record['nnz'].values()))}" if "nnz" in now.record else ""
    # ℓ1 leaves many weights that hardly count; they are pruned at the end, and only the rest are parameters.
    pruned = " before pruning" if nnz and now.record.get("l1_penalty") else ""
    return f"{error}{nnz}{pruned} {size(now.examples / max(now.seconds, 1e-9))}/s"
