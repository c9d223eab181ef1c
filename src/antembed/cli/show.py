"""How results look in a terminal. Lines and lists are written plainly; rich is imported for tables, bars and moving signs."""

import json
import sys
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from pathlib import Path
from typing import IO, TYPE_CHECKING, Protocol

import typer

from antembed.cli.terminal import printable, verbosity
from antembed.files import JSON

if TYPE_CHECKING:  # `antembed inspect` must not wait for it
    from rich.console import Console
    from rich.table import Table

    from antembed.train.config import TaskConfig
    from antembed.train.task import Task

LINES = 20  # of progress in a pipe, whatever the number of epochs
NAMES = {"mse": "MSE", "accuracy": "accuracy"}  # metrics that progress shows, the first that is there


@cache
def console(stderr: bool = False) -> "Console":
    """What is printed comes from data and from file names: square brackets and colons in it mean nothing."""
    from rich.console import Console

    return Console(stderr=stderr, markup=False, emoji=False, highlight=False)


def print_json(result: object) -> None:
    """One object on stdout, for machines."""
    sys.stdout.write(json.dumps(result) + "\n")


def say(line: str) -> None:
    """A remark on stderr, in one line whatever the width of the terminal."""
    sys.stderr.write(printable(line) + "\n")


def answer(line: str) -> None:
    """A line of the result, on stdout, whatever the width of the terminal."""
    sys.stdout.write(printable(line) + "\n")


def size(n: float) -> str:
    """1234567 → 1.23M."""
    for unit, scale in (("G", 1e9), ("M", 1e6), ("K", 1e3)):
        if n >= scale:
            return f"{n / scale:.3g}{unit}"
    return f"{n:g}"


def pairs(value: object) -> str:
    """{"users": 3, "items": 4} → users 3, items 4."""
    return ", ".join(f"{name} {number}" for name, number in value.items()) if isinstance(value, dict) else str(value)


def result_table(results: dict[str, JSON]) -> "Table":
    """Results side by side, one row each."""
    from rich.table import Table

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


def empty_rows(result: JSON) -> str:
    """How many objects have no vector, if some have none."""
    empty, rows = result.get("empty_rows", 0), result.get("rows", 0)
    if isinstance(empty, int):
        return f"rows without a vector: {empty:,} of {rows:,}" if empty else ""
    found = ", ".join(f"{name} {empty[name]:,} of {rows[name]:,}" for name in empty)
    return f"rows without a vector: {found}" if any(empty.values()) else ""


def parts(sizes: Mapping[str, int]) -> str:
    """Bytes of a folder: {"tables": 900, "labels": 99, "total": 999} → 999 bytes: tables 900, labels 99."""
    own = ", ".join(f"{name} {size:,}" for name, size in sizes.items() if name != "total")
    return f"{sizes['total']:,} bytes: {own}"


def remarks(result: JSON) -> None:
    """What a user must know of this result, a line each, on stderr."""
    for line in result.get("remarks", ()):
        say(f"warning: {line}")


def facts(about: JSON) -> None:
    """One a line."""
    for name, value in about.items():
        answer(f"{name.replace('_', ' '):20} {pairs(value)}")


def listing(columns: Mapping[str, Sequence[object]], as_json: bool) -> None:
    """One row a line, under the columns' names."""
    rows = list(zip(*columns.values(), strict=True))
    if as_json:
        print_json([dict(zip(columns, row, strict=True)) for row in rows])
        return
    numbers = [bool(column) and isinstance(column[0], float) for column in columns.values()]
    texts = [[f"{value:.3f}" if isinstance(value, float) else printable(value) for value in row] for row in rows]
    widths = [max(map(cells, column)) for column in zip(columns, *texts, strict=True)]
    for row in [list(columns), *texts]:
        gaps = [" " * (width - cells(text)) for text, width in zip(row, widths, strict=True)]
        shown = [gap + text if right else text + gap for gap, text, right in zip(gaps, row, numbers, strict=True)]
        sys.stdout.write(f" {'  '.join(shown)}".rstrip() + "\n")


def cells(text: str) -> int:
    """Columns of a terminal that a text takes."""
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else not unicodedata.combining(c) for c in text)


def status(text: str) -> AbstractContextManager[object]:
    """A moving sign beside the text, on stderr, while something goes on."""
    if not moves():
        return nullcontext()
    from rich.text import Text

    return console(stderr=True).status(Text(printable(text)))


def moves() -> bool:
    """Whether there is somebody to look at a bar."""
    return is_terminal(sys.stderr) and not verbosity.quiet


def is_terminal(file: IO[str]) -> bool:
    """Whether somebody looks; FORCE_COLOR and the like count for rich, not for this."""
    return not file.closed and file.isatty()


@contextmanager
def counting(what: str, total: int) -> Iterator[Callable[[int, float], None]]:
    """A bar that is given (done, seconds); where stderr is no terminal, nothing."""
    if not moves():
        yield lambda done, seconds: None
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    with Progress(
        *(TextColumn("{task.description}", markup=False), BarColumn()),
        *(TextColumn("{task.fields[state]}", markup=False), TimeRemainingColumn()),
        console=console(stderr=True),
    ) as bar:
        task = bar.add_task(printable(what), total=total, state="")
        yield lambda done, seconds: bar.update(task, completed=done, state=f"{size(done / max(seconds, 1e-9))}/s")


@contextmanager
def bar(label: str) -> Iterator[Callable[[str, int, int], None]]:
    """A bar that is given (what is done, how far, of how much); where stderr is no terminal, a line for each thing done."""
    if not moves():
        said = cache(lambda what: note(f"{label}: {what}"))
        yield lambda what, done, total: said(what)
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    with Progress(
        TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), console=console(stderr=True)
    ) as shown:
        task = shown.add_task(printable(label), total=1.0)
        yield lambda what, done, total: shown.update(
            task, completed=done, total=total, description=printable(f"{label}: {what}")
        )


@contextmanager
def fetching(what: str) -> Iterator[Callable[[int, int | None], None]]:
    """A bar that is given (bytes so far, of how many); where stderr is no terminal, nothing."""
    if not moves():
        yield lambda done, total: None
        return
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    name = TextColumn("{task.description}", markup=False)
    with Progress(name, BarColumn(), DownloadColumn(), TransferSpeedColumn(), console=console(stderr=True)) as bar:
        task = bar.add_task(printable(what), total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


class Epoch(Protocol):
    """What a solver reports (train/solver.py has it; this module must not wait for torch)."""

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
    if not is_terminal(sys.stderr):
        lines = Lines(label, epochs, metric)
        yield lines.update
        lines.finish()
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[state]}", markup=False),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console(stderr=True)) as bar:
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


@contextmanager
def stoppable(folder: Path) -> Iterator[None]:
    """Ctrl-C says how to continue."""

    try:
        yield
    except KeyboardInterrupt:
        say(f"interrupted; continue with the same command and --resume --out {folder}")
        raise typer.Exit(1) from None


def finish(result: JSON, record: Path | None, as_json: bool, lines: Sequence[str] = (), name: str = "") -> None:
    """Record and print what a run has come to."""
    from antembed.sweep.records import append_record

    if record is not None:
        append_record(record, result)
    if as_json:
        remarks(result)
        print_json(result)
        return
    console().print(result_table({name or result["embedding"]: result}))
    if trivial := baselines(result):
        answer(trivial)
    if empty := empty_rows(result):
        answer(empty)
    for line in lines:
        note(line)
    remarks(result)
