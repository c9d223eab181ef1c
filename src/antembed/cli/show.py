"""What the command line prints: results on stdout; progress, warnings and errors on stderr, safe for a terminal.

Errors are printed with it where typer and rich are not installed: both are imported by the functions that need them.
"""

import json
import re
import sys
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from antembed.files import JSON

if TYPE_CHECKING:  # `antembed inspect` must not wait for torch
    from rich.console import Console

    from antembed.train.config import TaskConfig
    from antembed.train.solver import Callback, Progress
    from antembed.train.task import Task

LINES = 20  # of progress in a pipe, whatever the number of epochs
NAMES = {"mse": "MSE", "accuracy": "accuracy"}  # metrics that progress shows, the first that is there
# Controls (ESC begins a terminal's commands), line and paragraph separators, overrides of the direction, halves of characters.
UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


@dataclass
class Verbosity:
    """What --quiet and --debug ask for; set by every call of the program."""

    quiet: bool = False
    debug: bool = False


verbosity = Verbosity()


def printable(text: object) -> str:
    """The text as one safe line: \\x1b for ESC, \\n for a line end."""
    return UNSAFE.sub(lambda found: found[0].encode("unicode_escape").decode(), str(text))


# Lines


def answer(line: str) -> None:
    """Print a line of the result on stdout."""
    sys.stdout.write(printable(line) + "\n")


def say(line: str) -> None:
    """Print a line on stderr."""
    sys.stderr.write(printable(line) + "\n")


def note(line: str) -> None:
    """Print a line on stderr, unless --quiet."""
    if not verbosity.quiet:
        say(line)


def print_json(result: object) -> None:
    """Print one JSON object on stdout."""
    sys.stdout.write(json.dumps(result) + "\n")


def print_result(found: object, lines: Iterable[str], as_json: bool) -> None:
    """Print a result as JSON, or the lines that say it."""
    if as_json:
        print_json(found)
        return
    for line in lines:
        answer(line)


def facts(about: JSON, as_json: bool) -> None:
    """Print names and values, one a line."""
    print_result(about, (f"{name.replace('_', ' '):20} {pairs(value)}" for name, value in about.items()), as_json)


def listing(columns: Mapping[str, Sequence[object]], as_json: bool) -> None:
    """Print columns side by side under their names; numbers are right-aligned."""
    rows = list(zip(*columns.values(), strict=True))
    if as_json:
        print_json([dict(zip(columns, row, strict=True)) for row in rows])
    else:
        numbers = [bool(column) and isinstance(column[0], float) for column in columns.values()]
        texts = [[f"{value:.3f}" if isinstance(value, float) else str(value) for value in row] for row in rows]
        table(list(columns), texts, numbers)


def table(headings: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[bool]) -> None:
    """Print rows under headings; `right`: which columns are right-aligned."""
    texts = [[printable(cell) for cell in row] for row in (headings, *rows)]
    widths = [max(map(width, column)) for column in zip(*texts, strict=True)]
    for row in texts:
        gaps = [" " * (widest - width(text)) for text, widest in zip(row, widths, strict=True)]
        cells = [gap + text if to_right else text + gap for gap, text, to_right in zip(gaps, row, right, strict=True)]
        sys.stdout.write(f" {'  '.join(cells)}".rstrip() + "\n")


def width(text: str) -> int:
    """Columns of a terminal that a text takes."""
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else not unicodedata.combining(c) for c in text)


def size(n: float) -> str:
    """1234567 → 1.23M."""
    unit, scale = next((each for each in (("G", 1e9), ("M", 1e6), ("K", 1e3)) if n >= each[1]), ("", 1))
    return f"{n / scale:.3g}{unit}" if unit else f"{n:g}"


def pairs(value: object) -> str:
    """{"users": 3, "items": 4} → users 3, items 4."""
    return ", ".join(f"{name} {number}" for name, number in value.items()) if isinstance(value, dict) else str(value)


def parts(sizes: Mapping[str, int]) -> str:
    """Bytes of a folder: {"tables": 900, "labels": 99, "total": 999} → 999 bytes: tables 900, labels 99."""
    own = ", ".join(f"{name} {size:,}" for name, size in sizes.items() if name != "total")
    return f"{sizes['total']:,} bytes: {own}"


# Results


def result_table(results: dict[str, JSON]) -> None:
    """Print results side by side, one row each."""
    metric = next(iter(results.values()))["metric"]
    rows = []
    for name, result in results.items():
        anchors = result["anchors"]
        used = any(anchors.values() if isinstance(anchors, dict) else [anchors])
        test = "–" if result["test"] is None else f"{result['test'][metric]:.4f}"
        sizes = (f"{result['parameters']:,}", f"{result['bytes']:,}", f"{result['seconds']:.1f}")
        rows.append((name, pairs(anchors) if used else "–", test, *sizes))
    headings = ("table", "anchors", f"test {NAMES.get(metric, metric)}", "parameters", "bytes", "seconds")
    table(headings, rows, [False, *[True] * (len(headings) - 1)])


def baselines(result: JSON) -> str:
    """The metric of trivial models, to compare with."""
    found = result.get("baselines") or {}
    return "beside it: " + ", ".join(f"{name} {value:.4f}" for name, value in found.items()) if found else ""


def empty_rows(result: JSON) -> str:
    """How many objects have no vector; empty if all have one."""
    empty, rows = result.get("empty_rows", 0), result.get("rows", 0)
    if isinstance(empty, int):
        return f"rows without a vector: {empty:,} of {rows:,}" if empty else ""
    found = ", ".join(f"{name} {empty[name]:,} of {rows[name]:,}" for name in empty)
    return f"rows without a vector: {found}" if any(empty.values()) else ""


def remarks(result: JSON) -> None:
    """Print the warnings of a result on stderr."""
    for line in result.get("remarks", ()):
        say(f"warning: {line}")


def finish(result: JSON, record: Path | None, as_json: bool, lines: Sequence[str] = ()) -> None:
    """Record and print the result of a run."""
    from antembed.sweep.records import append_record

    if record is not None:
        append_record(record, result)
    if as_json:
        remarks(result)
        print_json(result)
        return
    result_table({result["embedding"]: result})
    for line in filter(None, (baselines(result), empty_rows(result))):
        answer(line)
    for line in lines:
        note(line)
    remarks(result)


# Progress


def is_terminal(file: IO[str]) -> bool:
    """Whether somebody looks; FORCE_COLOR and the like count for rich, not for this."""
    return not file.closed and file.isatty()


def moves() -> bool:
    return is_terminal(sys.stderr) and not verbosity.quiet


@cache
def console() -> "Console":
    """stderr. Text comes from data and file names: square brackets and colons in it mean nothing."""
    from rich.console import Console

    return Console(stderr=True, markup=False, emoji=False, highlight=False)


def status(text: str) -> AbstractContextManager[object]:
    """A spinner beside the text while something goes on."""
    if not moves():
        return nullcontext()
    from rich.text import Text

    return console().status(Text(printable(text)))


@contextmanager
def moving(label: str, columns: Sequence[Any], total: float | None, **fields: Any) -> Iterator[Callable[..., None]]:
    """A bar with these columns behind it → its update(completed=…, total=…, …)."""
    from rich.progress import BarColumn, Progress, TextColumn

    with Progress(TextColumn("{task.description}", markup=False), BarColumn(), *columns, console=console()) as shown:
        yield partial(shown.update, shown.add_task(printable(label), total=total, **fields))


@contextmanager
def bar(label: str) -> Iterator[Callable[[str, int, int], None]]:
    """A bar that is given (what is done, how far, of how much); where stderr is no terminal, a line for each thing done."""
    if not moves():
        once = cache(lambda what: note(f"{label}: {what}"))
        yield lambda what, done, total: once(what)
        return
    from rich.progress import MofNCompleteColumn

    with moving(label, [MofNCompleteColumn()], 1.0) as update:
        yield lambda what, done, total: update(completed=done, total=total, description=printable(f"{label}: {what}"))


@contextmanager
def fetching(what: str) -> Iterator[Callable[[int, int | None], None]]:
    """A bar that is given (bytes so far, of how many); where stderr is no terminal, nothing."""
    if not moves():
        yield lambda done, total: None
        return
    from rich.progress import DownloadColumn, TransferSpeedColumn

    with moving(what, [DownloadColumn(), TransferSpeedColumn()], None) as update:
        yield lambda done, total: update(completed=done, total=total)


@contextmanager
def progress_bar(label: str, epochs: int, examples: int, metric: str = "") -> "Iterator[Callback]":
    """A bar over all epochs with the error, non-zeros and speed; where stderr is no terminal, some lines.

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
    from rich.progress import MofNCompleteColumn, TextColumn, TimeRemainingColumn

    columns = [MofNCompleteColumn(), TextColumn("{task.fields[state]}", markup=False), TimeRemainingColumn()]
    with moving(label, columns, epochs or None, state="starting (the first run compiles for some seconds)") as update:

        def show_epoch(now: "Progress") -> None:
            completed = round(now.epoch - 1 + now.examples / max(examples, 1), 2) if epochs else now.epoch
            update(completed=completed, state=state(now, metric))

        yield show_epoch


class Lines:
    """Progress for a file or a pipe: the first epoch, the last, and some in between, evenly spaced.

    A stream has no known length: batches 1, 2, 4, 8, … and the last.
    """

    def __init__(self, label: str, epochs: int, metric: str):
        self.label, self.epochs, self.metric = label, epochs, metric
        self.last: Progress | None = None  # complete, and not printed

    def update(self, now: "Progress") -> None:
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


def training_bar(label: str, task: "Task", config: "TaskConfig", examples: int) -> "AbstractContextManager[Callback]":
    weighted = config.model_dump()["solver"].get("unobserved_weight")  # then the loss is about pairs without a rating, too
    metric = "MSE" if task.metric.label == "MSE" and not weighted else ""
    return progress_bar(label, config.solver.records, examples, metric)


def state(now: "Progress", metric: str) -> str:
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
def stoppable(advice: str) -> Iterator[None]:
    """Ctrl-C prints how to continue and exits with 1."""
    try:
        yield
    except KeyboardInterrupt:
        say(f"interrupted; {advice}")
        sys.exit(1)
