"""Command-line options made from configs: a field is an option, its description the help, its group the heading.

Typer stays: of the libraries with nested groups it is the fastest to import (66 ms; cyclopts 73, tyro 77, jsonargparse 144,
pydantic-settings 223), its help is good, and it takes generated signatures. Values are validated by the config alone.
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, get_args, get_origin

import typer
from typer.core import TyperOption

from antembed.cli.terminal import printable
from antembed.files import JSON
from antembed.train.config import TaskConfig
from antembed.train.options import AUTO, ConfigError, Option, options_of, typed

POSITIONAL = "data"
# What most people need; the rest is shown by --help-all.
MAIN = {"columns", "implicit", "split", "test", "text", "label", "embedding", "embedding_dim", "model", "anchors", "solver",
        "budget", "tolerance", "ngrams", "seed"}  # fmt: skip
MAIN_PANEL = "Options"
# What is meant where an option is not given, beside which the config's own default says nothing.
RATINGS = {
    "embedding_dim": "searched",
    "anchors": "by the data",
    "solver": "auto: by the data and the other options",
    "tolerance": "1%",
}
SEARCHED = {
    "recommend": RATINGS,
    "recommend-events": RATINGS,
    "classify": {
        "tolerance": "0.5%",
        "model": "auto: hashed n-grams; cnn where another option of a network is given",
        "anchors": "10, of a network",
        "embedding_dim": "256, of a network",
    },
    "classify-ngrams": {},
}
GROUPS = ("input", "tables", "anchors", "solver", "export", "machine")


def parameters_of(config: type[TaskConfig]) -> list[inspect.Parameter]:
    """A parameter for each option of a task's config; None: it was not given."""
    found = []
    groups = [*GROUPS, *config.model_fields]  # in the order in which people think of them
    solvers = len(options_of(config)["solver"].choices) if "solver" in options_of(config) else 1
    by_group = sorted(options_of(config).values(), key=lambda leaf: groups.index(leaf.path[0]))
    for leaf in sorted(by_group, key=lambda leaf: not is_main(leaf)):
        if leaf.name == POSITIONAL:
            annotation: Any = Annotated[str, typer.Argument(help=leaf.field.description, show_default=False, metavar="DATA")]
            default: Any = inspect.Parameter.empty
        else:
            annotation, default = Annotated[kind_of(leaf.field.annotation) | None, option_for(config, leaf, solvers)], None
        found.append(inspect.Parameter(leaf.name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default))
    return found


def is_main(leaf: Option) -> bool:
    """Whether --help shows it."""
    return leaf.name in MAIN and leaf.owners != ("online",)


def option_for(config: type[TaskConfig], leaf: Option, solvers: int) -> Any:
    names = typed(leaf.name)
    if kind_of(leaf.field.annotation) is bool:
        names = f"{names}/--no-{leaf.name.replace('_', '-')}"
    usual = SEARCHED.get(config.name(), {}).get(leaf.name, default_text(leaf.field.default))
    remarks = [f"default {usual}"] if usual else []
    remarks += [f"--solver {' or '.join(leaf.owners)}"] if 0 < len(leaf.owners) < solvers and not is_main(leaf) else []
    choices = (AUTO, *leaf.choices) if usual.startswith(AUTO) and leaf.choices and AUTO not in leaf.choices else leaf.choices
    return typer.Option(
        names,
        help=(leaf.field.description or "") + (f" ({'; '.join(remarks)})" if remarks else ""),
        rich_help_panel=MAIN_PANEL if is_main(leaf) else leaf.heading,
        show_default=False,
        hidden=not is_main(leaf),
        metavar="|".join(choices) or None,
    )


def default_text(value: object) -> str:
    """For the help; empty where there is nothing to show."""
    if value in (None, "", ()):
        return ""
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)


def kind_of(annotation: Any) -> type:
    """The type that the command line parses; everything else is text, which the config reads."""
    if get_origin(annotation) is Annotated:
        return kind_of(get_args(annotation)[0])
    if get_origin(annotation) is Literal:
        return str
    if annotation in (bool, int, float):
        return annotation
    inner = [part for part in get_args(annotation) if part is not type(None)]
    return kind_of(inner[0]) if len(inner) == 1 and get_origin(annotation) is not tuple else str


def with_options_of(
    config: type[TaskConfig], run: Callable[..., None], fixed: Mapping[str, Any], help: str
) -> Callable[..., None]:
    """A command whose options are those of a task's config and `fixed` (name → (annotation, default)).

    `run` is called with the options that were given, and with the fixed ones.
    """

    def command(**typed_in: Any) -> None:
        more = {name: typed_in.pop(name) for name in fixed}
        given: JSON = {name: value for name, value in typed_in.items() if value is not None}
        run(config, given, **more)

    extra = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default)
        for name, (annotation, default) in fixed.items()
    ]
    parameters = [*parameters_of(config), *extra]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    command.__doc__ = help
    return command


def show_all(context: typer.Context, asked: bool) -> None:
    """--help with every option."""
    if not asked:
        return
    for parameter in context.command.params:
        if isinstance(parameter, TyperOption):
            parameter.hidden = False
    typer.echo(context.get_help())
    raise typer.Exit


def usage_error(error: ConfigError) -> typer.BadParameter:
    """A setting that makes no sense is a wrong call: exit code 2."""
    return typer.BadParameter(printable(error), param_hint=typed(error.name) if error.name else None)
