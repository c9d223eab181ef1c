"""How results look in a terminal."""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:  # or `antembed inspect` would wait for torch
    from antembed.training import Tick

out, err = Console(), Console(stderr=True)


def print_json(result: Any) -> None:
    """One object on stdout, for machines."""
    sys.stdout.write(json.dumps(result) + "\n")


def size(n: float) -> str:
    """1234567 → 1.23M."""
    for unit, scale in (("G", 1e9), ("M", 1e6), ("K", 1e3)):
        if n >= scale:
            return f"{n / scale:.3g}{unit}"
    return f"{n:g}"


def pairs(value: Any) -> str:
    """{"users": 3, "items": 4} → users 3, items 4."""
    return ", ".join(f"{name} {number}" for name, number in value.items()) if isinstance(value, dict) else str(value)


def result_table(results: dict[str, dict[str, Any]]) -> Table:
    """Results side by side, one row each."""
    table = Table(box=None, header_style="bold")
    metric = next(iter(results.values()))["metric"]
    for heading in ("table", "anchors", {"mse": "test MSE"}.get(metric, f"test {metric}"), "parameters", "bytes", "seconds"):
        table.add_column(heading, justify="left" if heading == "table" else "right")
    for name, result in results.items():
        anchors = result["anchors"]
        table.add_row(
            name,
            pairs(anchors) if any(anchors.values() if isinstance(anchors, dict) else [anchors]) else "–",
            "–" if result["test"] is None else f"{result['test'][metric]:.4f}",
            f"{result['parameters']:,}",
            f"{result['bytes']:,}",
            f"{result['seconds']:.1f}",
        )
    return table


def words(told: dict[str, Any], as_json: bool) -> None:
    """What explain_words found."""
    if as_json:
        print_json(told)
        return
    for anchor in told["anchors"]:
        out.print(f"anchor {anchor['anchor']}{anchor['word']}: {anchor['words']} words", highlight=False, markup=False)
        out.print(f"    {' · '.join(anchor['best'])}", highlight=False, markup=False)
    out.print("largest: " + ", ".join(f"{a} ← {b} {w:.2f}" for a, b, w in told["largest"]), highlight=False, markup=False)
    zero = told["zero_rows"]
    out.print(f"words without a vector: {zero['words']:,}, {zero['seen_once']:.0%} of them seen once", highlight=False)
    out.print(f"    the most frequent: {' · '.join(zero['most_frequent'])}", highlight=False, markup=False)


def facts(about: dict[str, Any]) -> None:
    """One a line."""
    for name, value in about.items():
        out.print(f"{name.replace('_', ' '):20} {pairs(value)}", highlight=False)


def listing(rows: Any, as_json: bool) -> None:
    """A table of polars, one row a line."""
    if as_json:
        print_json(rows.to_dicts())
        return
    table = Table(box=None, header_style="bold")
    for name in rows.columns:
        table.add_column(name, justify="right" if rows[name].dtype.is_float() else "left")
    for row in rows.iter_rows():
        table.add_row(*(f"{value:.3f}" if isinstance(value, float) else str(value) for value in row))
    out.print(table)


def status(text: str) -> AbstractContextManager[Any]:
    """A moving sign beside the text, on stderr, while something goes on."""
    return err.status(text) if err.is_terminal else nullcontext()


@contextmanager
def counting(what: str, total: int) -> Iterator[Callable[[int, float], None]]:
    """A bar that is told (done, seconds); where stderr is no terminal, nothing."""
    if not err.is_terminal:
        yield lambda done, seconds: None
        return
    with Progress(
        TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[told]}"), TimeRemainingColumn(), console=err
    ) as bar:
        task = bar.add_task(what, total=total, told="")
        yield lambda done, seconds: bar.update(task, completed=done, told=f"{size(done / max(seconds, 1e-9))}/s")


@contextmanager
def fetching(what: str) -> Iterator[Callable[[int, int | None], None]]:
    """A bar that is told (bytes so far, of how many); where stderr is no terminal, nothing."""
    if not err.is_terminal:
        yield lambda done, total: None
        return
    with Progress(TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn(), console=err) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


@contextmanager
def progress_bar(label: str, epochs: int, examples: int) -> Iterator["Callable[[Tick], None]"]:
    """A bar over all epochs with loss, non-zeros and speed, on stderr; where that is no terminal, a line an epoch."""
    if not err.is_terminal:
        yield lambda tick: _line(label, tick, epochs) if tick.log.get("epoch") == tick.epoch else None
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[told]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=err) as progress:
        task = progress.add_task(label, total=epochs, told="starting (the first run compiles for some seconds)")

        def tell(tick: "Tick") -> None:
            completed = round(tick.epoch - 1 + tick.examples / max(examples, 1), 2)
            progress.update(task, completed=completed, told=_told(tick))

        yield tell


def _told(tick: "Tick") -> str:
    nnz = f" nnz {size(sum(tick.log['nnz'].values()))}" if "nnz" in tick.log else ""
    return f"loss {tick.loss:.4f}{nnz} {size(tick.examples / max(tick.seconds, 1e-9))}/s"


def _line(label: str, tick: "Tick", epochs: int) -> None:
    err.print(f"{label} epoch {tick.epoch}/{epochs} {_told(tick)}", highlight=False)
