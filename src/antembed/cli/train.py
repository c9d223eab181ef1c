"""`antembed train TASK`: one command a task, its options made from the fields of the task's config.

A field is an option, its description the help, its group the heading; values are validated by the config alone. Typer stays: of
the libraries with nested groups it is the fastest to import (66 ms; cyclopts 73, tyro 77, jsonargparse 144, pydantic-settings
223), and it takes generated signatures.
"""

import atexit
import inspect
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin

import typer
from typer.core import TyperOption

from antembed.budget import parse_budget
from antembed.cli import show
from antembed.cli.common import command, times_smaller
from antembed.files import JSON
from antembed.native.threads import usable_cpus
from antembed.train.config import TaskConfig
from antembed.train.configure import check_early, configure, usual_folder
from antembed.train.options import AUTO, ConfigError, Option, options_of, typed
from antembed.train.registry import TASKS

if TYPE_CHECKING:  # what is wrong with a call is said before torch is imported
    from antembed.layer.sharded.collectives import Ranks
    from antembed.train.task import Splits, Task

POSITIONAL = "data"
# What most people need; the rest is shown by --help-all.
MAIN = {"columns", "implicit", "split", "test", "text", "label", "embedding", "embedding_dim", "model", "anchors", "solver",
        "budget", "tolerance", "ngrams", "seed"}  # fmt: skip
MAIN_PANEL, PANEL = "Options", "Run"
# What is meant where an option is not given and the config's own default says nothing.
BY_DATA = "auto: by the data and the other options"
RATINGS = {"embedding_dim": "searched", "anchors": "by the data", "solver": BY_DATA, "tolerance": "1%"}
TEXT = {"tolerance": "0.5%", "anchors": "10, of a network", "embedding_dim": "256, of a network"}
TEXT["model"] = "auto: hashed n-grams; cnn where another option of a network is given"
SEARCHED = {"recommend": RATINGS, "recommend-events": RATINGS, "classify": TEXT}
GROUPS = ("input", "tables", "anchors", "solver", "export", "machine")  # in the order in which people think of them


def show_all(context: typer.Context, asked: bool) -> None:
    """--help with every option."""
    if asked:
        for parameter in context.command.params:
            if isinstance(parameter, TyperOption):
                parameter.hidden = False
        typer.echo(context.get_help())
        raise typer.Exit


def run_option(kind: Any, help: str, *names: str, **more: Any) -> Any:
    """The type of an option that belongs to the run, not to the config."""
    return Annotated[kind, typer.Option(*names, help=help, rich_help_panel=PANEL, **more)]


# Name → type and default.
FIXED: dict[str, tuple[Any, Any]] = {
    "out": (run_option(Path | None, "Folder of the run; default: runs/TASK-EMBEDDING-SEED."), None),
    "resume": (run_option(bool, "Continue the run in --out.", "--resume"), False),
    "overwrite": (run_option(bool, "Replace the run in --out, if there is one.", "--overwrite"), False),
    "dry_run": (run_option(bool, "Only show what --budget means for these data.", "--dry-run", hidden=True), False),
    "record": (run_option(Path | None, "Append the result to this JSONL file of records.", hidden=True), None),
    "help_all": (run_option(bool, "Show every option and exit.", "--help-all", callback=show_all, is_eager=True), False),
    "as_json": (run_option(bool, "Print JSON instead of a table.", "--json"), False),
    "quiet": (run_option(bool, "Show no progress; results stay on stdout.", "--quiet"), False),
}


def make_train_app() -> typer.Typer:
    """A command for each task there is."""
    app = typer.Typer(help="Train a model with small tables from a file of data.", no_args_is_help=True)
    for name, config in TASKS.configs.items():
        app.command(name)(command_of(name, config))
    return app


def command_of(name: str, config: type[TaskConfig]) -> Any:
    """A function whose arguments are the options of a task's config and FIXED; an option that is not given is None."""

    def call(**typed_in: Any) -> None:
        asked = SimpleNamespace(**{name: typed_in.pop(name) for name in FIXED})
        run_training(config, {name: value for name, value in typed_in.items() if value is not None}, asked)

    keyword = inspect.Parameter.KEYWORD_ONLY
    fixed = [inspect.Parameter(each, keyword, annotation=kind, default=default) for each, (kind, default) in FIXED.items()]
    parameters = [*parameters_of(config), *fixed]
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    examples = [f"Example:  antembed train {name} {line}" for line in config.usage]
    call.__doc__ = "\n\n".join([str(inspect.getdoc(config)), *examples])
    return call


def parameters_of(config: type[TaskConfig]) -> list[inspect.Parameter]:
    """A parameter for each option of a task's config, those of --help first."""
    found = []
    groups, options = [*GROUPS, *config.model_fields], options_of(config)
    solvers = len(options["solver"].choices) if "solver" in options else 1
    for leaf in sorted(options.values(), key=lambda leaf: (not is_main(leaf), groups.index(leaf.path[0]))):
        if leaf.name == POSITIONAL:
            annotation: Any = Annotated[str, typer.Argument(help=leaf.field.description, show_default=False, metavar="DATA")]
            default: Any = inspect.Parameter.empty
        else:
            annotation, default = Annotated[kind_of(leaf.field.annotation) | None, option_for(config, leaf, solvers)], None
        found.append(inspect.Parameter(leaf.name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default))
    return found


def is_main(leaf: Option) -> bool:
    return leaf.name in MAIN and leaf.owners != ("online",)


def option_for(config: type[TaskConfig], leaf: Option, solvers: int) -> Any:
    names = typed(leaf.name) + (f"/{typed(f'no_{leaf.name}')}" if kind_of(leaf.field.annotation) is bool else "")
    usual = SEARCHED.get(config.name(), {}).get(leaf.name, default_text(leaf.field.default))
    choices = (AUTO, *leaf.choices) if usual.startswith(AUTO) and leaf.choices and AUTO not in leaf.choices else leaf.choices
    # Not as the metavar: a wide one leaves the text too little of 80 columns.
    remarks = [f"one of {', '.join(choices)}"] if choices else []
    remarks += [f"default {usual}"] if usual else []
    remarks += [f"--solver {' or '.join(leaf.owners)}"] if 0 < len(leaf.owners) < solvers and not is_main(leaf) else []
    return typer.Option(
        names,
        help=(leaf.field.description or "") + (f" ({'; '.join(remarks)})" if remarks else ""),
        rich_help_panel=MAIN_PANEL if is_main(leaf) else leaf.heading,
        show_default=False,
        hidden=not is_main(leaf),
    )


def default_text(value: object) -> str:
    """A default for the help; empty where there is nothing to show."""
    if value in (None, "", ()):
        return ""
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)


def kind_of(annotation: Any) -> type:
    """The type that the command line parses; everything else is text, which the config reads."""
    if get_origin(annotation) is Annotated:
        return kind_of(get_args(annotation)[0])
    if annotation in (bool, int, float):
        return annotation
    inner = [part for part in get_args(annotation) if part is not type(None)]
    return kind_of(inner[0]) if len(inner) == 1 and get_origin(annotation) not in (tuple, Literal) else str


def run_training(kind: type[TaskConfig], given: JSON, asked: SimpleNamespace) -> None:
    """Read the data, train, print. Under torchrun the processes do it together, and rank 0 prints."""
    started = time.perf_counter()
    show.verbosity.quiet |= asked.quiet
    overwrite, resume, search = asked.overwrite, asked.resume, not asked.dry_run
    if "RANK" not in os.environ:  # under torchrun rank 0 reads first
        with show.status(f"reading {given['data']}"), usage_errors():
            check_early(kind, given, asked.out, resume=resume, overwrite=overwrite or asked.dry_run, search=search)
    from antembed.train.processes import launched, restarted, start, stop
    from antembed.train.run import train

    ranks, task = start() if launched() else None, TASKS[kind.name()]
    if ranks is not None:
        show.verbosity.quiet |= not ranks.first
        resume |= restarted()
        atexit.register(stop)  # also after an error: the others learn of it at once
    config, splits = read_options(task, given, search=search) if ranks is None else read_together(task, given, ranks)
    task = TASKS[config.task]
    if asked.dry_run:
        show.facts(budget_facts(task, config, splits), asked.as_json)
        return
    folder = asked.out or usual_folder(config)
    label, advice = f"{task.name} {config.embedding_name}", f"continue with the same command and --resume --out {folder}"
    with show.stoppable(advice), show.training_bar(label, task, config, len(splits.train)) as callback:
        result = train(config, folder, splits=splits, resume=resume, overwrite=overwrite, callback=callback, ranks=ranks)
    if not result:  # of another rank than 0
        return
    result |= {"command": command(), "config": config.model_dump(mode="json")}
    result["wall_seconds"] = round(time.perf_counter() - started, 3)  # with reading, searching and evaluating
    show.finish(result, asked.record, asked.as_json, size_lines(folder, result))


@contextmanager
def usage_errors() -> Iterator[None]:
    """A setting that makes no sense is a wrong call: exit code 2."""
    try:
        yield
    except ConfigError as error:
        raise typer.BadParameter(show.printable(error), param_hint=typed(error.name) if error.name else None) from error


def read_options(task: "Task", given: JSON, *, search: bool = True) -> "tuple[TaskConfig, Splits]":
    """Options → config and data; remarks on both are printed on stderr."""
    import torch

    if "threads" in options_of(task.Config):
        given.setdefault("threads", 1 if given.get("engine") == "torch" else min(2, usable_cpus()))
        torch.set_num_threads(max(int(given["threads"]), 1))  # the config checks whether it may be
    with show.status(f"reading {given['data']}"), usage_errors():
        config, splits = configure(task, given, show.note, search=search)
    for line in splits.complaints:
        show.note(line)
    return config, splits


def read_together(task: "Task", given: JSON, ranks: "Ranks") -> "tuple[TaskConfig, Splits]":
    """The same in several processes: rank 0 reads first, so that what is cached and built is so once."""
    from antembed.train.processes import shared_options

    with usage_errors():
        given |= shared_options(task, given)
    found: list[tuple[TaskConfig, Splits]] = []
    ranks.on_first(lambda: found.append(read_options(task, given, search=False)))
    return found[0] if found else read_options(task, given, search=False)


def size_lines(folder: Path, result: JSON) -> list[str]:
    """Where the files are, how they compare with full tables, and what is shipped."""
    files = f"{folder}/{' and '.join(result['files'])}"
    shipped = f"antembed export {folder} FOLDER writes {show.parts(result['export_bytes'])}"
    if "seen_bytes" in result:
        shipped += f"; --with-seen adds {result['seen_bytes']:,}"
    if "dense_bytes" not in result:
        return [f"{files}: {result['bytes']:,} bytes", shipped]
    return [f"{files}: {times_smaller(result['dense_bytes'], result['bytes'])} than full tables in fp32", shipped]


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
