"""`antembed train TASK`: one command a task, made from its config."""

import atexit
import inspect
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from antembed.budget import parse_budget
from antembed.cli import show
from antembed.cli.common import command, times_smaller
from antembed.cli.config_options import show_all, usage_error, with_options_of
from antembed.cli.show import finish, stoppable
from antembed.cli.terminal import verbosity
from antembed.files import JSON
from antembed.native.threads import usable_cpus
from antembed.train.config import TaskConfig
from antembed.train.early_checks import check_early, usual_folder
from antembed.train.options import ConfigError, options_of
from antembed.train.registry import TASKS

if TYPE_CHECKING:  # what is wrong with a call is said before torch is imported
    from antembed.layer.sharded.collectives import Ranks
    from antembed.train.task import Splits, Task

PANEL = "Run"
FIXED: dict[str, tuple[Any, Any]] = {
    "out": (
        Annotated[
            Path | None, typer.Option(help="Folder of the run; default: runs/TASK-EMBEDDING-SEED.", rich_help_panel=PANEL)
        ],
        None,
    ),
    "resume": (Annotated[bool, typer.Option("--resume", help="Continue the run in --out.", rich_help_panel=PANEL)], False),
    "overwrite": (
        Annotated[bool, typer.Option("--overwrite", help="Replace the run in --out, if there is one.", rich_help_panel=PANEL)],
        False,
    ),
    "dry_run": (
        Annotated[
            bool,
            typer.Option("--dry-run", help="Only say what --budget means for these data.", rich_help_panel=PANEL, hidden=True),
        ],
        False,
    ),
    "record": (
        Annotated[
            Path | None,
            typer.Option(help="Append the result to this JSONL file of records.", rich_help_panel=PANEL, hidden=True),
        ],
        None,
    ),
    "help_all": (
        Annotated[
            bool,
            typer.Option(
                "--help-all", callback=show_all, is_eager=True, help="Show every option and exit.", rich_help_panel=PANEL
            ),
        ],
        False,
    ),
    "as_json": (Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.", rich_help_panel=PANEL)], False),
}


def make_train_app() -> typer.Typer:
    """A command for each task there is."""
    app = typer.Typer(help="Train a model with small tables from a file of data.", no_args_is_help=True)
    for name, config in TASKS.configs.items():
        examples = "\n\n".join(f"Example:  antembed train {name} {line}" for line in config.usage)
        app.command(name)(with_options_of(config, run_training, FIXED, f"{inspect.getdoc(config)}\n\n{examples}"))
    return app


def run_training(
    kind: type[TaskConfig],
    given: JSON,
    out: Path | None,
    resume: bool,
    overwrite: bool,
    dry_run: bool,
    record: Path | None,
    help_all: bool,
    as_json: bool,
) -> None:
    """Read the data, train, print. Under torchrun the processes do it together, and rank 0 prints."""
    started = time.perf_counter()
    if "RANK" not in os.environ:  # under torchrun rank 0 reads first
        check_call(kind, given, out, resume=resume, overwrite=overwrite or dry_run, search=not dry_run)
    from antembed.train.processes import launched, restarted, start, stop
    from antembed.train.run import train

    ranks, task = start() if launched() else None, TASKS[kind.name()]
    if ranks is not None:
        verbosity.quiet |= not ranks.first
        resume |= restarted()
        atexit.register(stop)  # also after an error: the others are told at once
    config, splits = read_options(task, given, search=not dry_run) if ranks is None else read_together(task, given, ranks)
    task = TASKS[config.task]
    if dry_run:
        facts = budget_facts(task, config, splits)
        show.print_json(facts) if as_json else show.facts(facts)
        return
    folder = out or usual_folder(config)
    label = f"{task.name} {config.embedding_name}"
    with stoppable(folder), show.training_bar(label, task, config, len(splits.train)) as callback:
        result = train(config, folder, splits=splits, resume=resume, overwrite=overwrite, callback=callback, ranks=ranks)
    if not result:  # of another rank than 0
        return
    result |= {"command": command(), "config": config.model_dump(mode="json")}
    result["wall_seconds"] = round(time.perf_counter() - started, 3)  # with reading, searching and evaluating
    finish(result, record, as_json, size_lines(folder, result))


def check_call(kind: type[TaskConfig], given: JSON, out: Path | None, *, resume: bool, overwrite: bool, search: bool) -> None:
    """Raise what can be said before torch is imported."""
    try:
        with show.status(f"reading {given['data']}"):
            check_early(kind, given, out, resume=resume, overwrite=overwrite, search=search)
    except ConfigError as error:
        raise usage_error(error) from error


def read_options(task: "Task", given: JSON, *, search: bool = True) -> "tuple[TaskConfig, Splits]":
    """Options → config and data, with what there is to say of both on stderr."""
    import torch

    from antembed.train.run import configure

    if "threads" in options_of(task.Config):
        given.setdefault("threads", 1 if given.get("engine") == "torch" else min(2, usable_cpus()))
        torch.set_num_threads(max(int(given["threads"]), 1))  # whether it may be is for the config to say
    try:
        with show.status(f"reading {given['data']}"):
            config, splits = configure(task, given, show.note, search=search)
    except ConfigError as error:
        raise usage_error(error) from error
    for line in splits.complaints:
        show.note(line)
    return config, splits


def read_together(task: "Task", given: JSON, ranks: "Ranks") -> "tuple[TaskConfig, Splits]":
    """The same of several processes: rank 0 reads first, so that what is cached and built is so once."""
    from antembed.train.shared_run import shared_options

    try:
        given |= shared_options(task, given)
    except ConfigError as error:
        raise usage_error(error) from error
    found: list[tuple[TaskConfig, Splits]] = []
    ranks.on_first(lambda: found.append(read_options(task, given, search=False)))
    return found[0] if found else read_options(task, given, search=False)


def size_lines(folder: Path, result: JSON) -> list[str]:
    """Where the files are, how they compare with full tables, and what is shipped."""
    files = " and ".join(result["files"])
    shipped = f"antembed export {folder} FOLDER writes {show.parts(result['export_bytes'])}"
    if "seen_bytes" in result:
        shipped += f"; --with-seen adds {result['seen_bytes']:,}"
    if "dense_bytes" not in result:
        return [f"{folder}/{files}: {result['bytes']:,} bytes", shipped]
    return [f"{folder}/{files}: {times_smaller(result['dense_bytes'], result['bytes'])} than full tables in fp32", shipped]


def budget_facts(task: "Task", config: TaskConfig, splits: "Splits") -> JSON:
    """What a budget means for these data, before anything is trained."""
    from antembed.train.model import EmbeddingModel

    model = task.build(config, splits)
    if not isinstance(model, EmbeddingModel):
        raise typer.BadParameter(f"a dry run is about tables, and {task.name} has none", param_hint="--dry-run")
    if not config.budget:
        raise typer.BadParameter("a dry run says what a budget means; give one with --budget", param_hint="--dry-run")
    budget = parse_budget(config.budget, model.dense_bytes())
    rows = {name: table.num_embeddings for name, table in model.embeddings.items()}
    anchors = sum(A.numel() for table in model.embeddings.values() for _, A in table.pairs)
    value = {"fp32": 4, "fp16": 2}.get(config.values, 1)
    if budget.unit == "parameters":
        left = budget.amount - anchors
    else:  # a weight takes its value and its column, a row the number of its weights
        left = (budget.amount - sum(rows.values()) - max(value, 2) * anchors) / (value + 1)
    return {
        "rows": rows,
        "full_tables_bytes": model.dense_bytes(),
        "budget": str(budget),
        "values": config.values,
        "anchors": "auto" if config.auto else {name: table.pairs[0][1].shape[0] for name, table in model.embeddings.items()},
        "weights": max(int(left), 0),
        "weights_per_row": round(max(left, 0.0) / max(sum(rows.values()), 1), 2),
    }
