"""The commands. Each imports what it needs when it is called: `antembed inspect` does not wait for torch."""

import logging
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from antembed import __version__
from antembed.cli import compress, first_steps, predict, runs, sweep
from antembed.cli.show import verbosity

# Commands of before, and what is typed instead.
MOVED = {
    "select": "antembed sweep --select RUN… --anchor-penalty λ1",
    "bench": "python -m experiments bench NAME, in a clone of antembed",
    "run": "python -m experiments recipe FILE.toml, in a clone of antembed",
}


class Commands(TyperGroup):
    """All commands; one that has moved is an error that names the new one."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] in MOVED:
            ctx.fail(f"`antembed {args[0]}` is now: {MOVED[args[0]]}")
        return super().resolve_command(ctx, args)


class TaskGroup(TyperGroup):
    """`antembed train`: its commands are made from the tasks' configs when they are asked for."""

    def made(self) -> TyperGroup:
        from antembed.cli.train import make_train_app

        group = typer.main.get_command(make_train_app())
        assert isinstance(group, TyperGroup)
        return group

    def list_commands(self, ctx: typer.Context) -> list[str]:  # type: ignore[override]
        return list(self.made().commands)

    def get_command(self, ctx: typer.Context, cmd_name: str) -> TyperCommand | None:  # type: ignore[override]
        return self.made().commands.get(cmd_name)  # type: ignore[return-value]


app = typer.Typer(
    cls=Commands,
    help="Small embedding tables: every vector is a sparse mix of a few anchors.\n\nStart with: antembed demo",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def version(asked: bool) -> None:
    if asked:
        typer.echo(f"antembed {__version__}")
        raise typer.Exit


@app.callback()
def common(
    show_version: Annotated[
        bool, typer.Option("--version", callback=version, is_eager=True, help="Show the version and exit.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress; results stay on stdout.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    verbosity.quiet, verbosity.debug = quiet, debug
    if sys.stderr.isatty():
        logging.basicConfig(format="%(message)s")
        logging.getLogger("antembed").setLevel(logging.WARNING if quiet else logging.INFO)


train_app = typer.Typer(cls=TaskGroup, help="Train a model with small tables from a file of data.", no_args_is_help=True)


@train_app.callback()
def train() -> None:
    pass


app.add_typer(train_app, name="train")
app.add_typer(first_steps.data_app, name="data")
of_runs = (runs.evaluate, runs.export, runs.explain, runs.inspect, runs.report)
answers = (predict.recommend, predict.similar, predict.predict, predict.generate, predict.neighbours)
for function in (*of_runs, *answers, compress.compress, sweep.sweep, first_steps.demo):
    app.command()(function)


@app.command(hidden=True)  # for those who build images
def warmup() -> None:
    """Compile all kernels for this processor (a minute or two), so that later commands start at once.

    Example:  antembed warmup

    Example:  NUMBA_CACHE_DIR=/opt/kernels antembed warmup
    """
    first_steps.warm_up(lambda words: app(words, standalone_mode=False))
