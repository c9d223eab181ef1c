"""The commands. Each imports what it needs when it is called: `antembed inspect` does not wait for torch."""

import logging
import sys
import tomllib
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from antembed import __version__
from antembed.cli import compress, demo, predict, runs, sweep
from antembed.cli.data import data_app
from antembed.cli.terminal import verbosity

QUIET = "No progress on stderr; results stay on stdout."

app = typer.Typer(
    help="Small embedding tables: every vector a sparse mix of a few anchors.\n\nStart with: antembed demo",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


class TaskGroup(TyperGroup):
    """`antembed train`: its commands are made from the tasks' configs, when somebody asks for them."""

    def made(self) -> TyperGroup:
        from antembed.cli.train import make_train_app

        group = typer.main.get_command(make_train_app())
        assert isinstance(group, TyperGroup)
        for command in group.commands.values():
            command.params.append(quiet_option())
        return group

    def list_commands(self, ctx: typer.Context) -> list[str]:  # type: ignore[override]
        return list(self.made().commands)

    def get_command(self, ctx: typer.Context, cmd_name: str) -> TyperCommand | None:  # type: ignore[override]
        return self.made().commands.get(cmd_name)  # type: ignore[return-value]


def set_quiet(given: bool) -> None:
    verbosity.quiet |= given


def quiet_option() -> Any:
    """--quiet behind `train TASK`; it is no option of a config, so the command does not see it."""
    hidden = typer.Option("--quiet", callback=set_quiet, expose_value=False, help=QUIET, rich_help_panel="Run")
    bearer = typer.Typer(add_completion=False)  # typer's own way to make one has changed between its versions

    @bearer.command()
    def bear(quiet: Annotated[bool, hidden] = False) -> None:
        pass

    return typer.main.get_command(bearer).params[0]


def version(asked: bool) -> None:
    if asked:
        typer.echo(f"antembed {__version__}")
        raise typer.Exit


@app.callback()
def common(
    show_version: Annotated[bool, typer.Option("--version", callback=version, is_eager=True, help="Say which.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help=QUIET)] = False,
    debug: Annotated[bool, typer.Option("--debug", help="An error shows its traceback.")] = False,
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
app.add_typer(data_app, name="data")
for function in (
    runs.evaluate,
    runs.export,
    runs.explain,
    runs.inspect,
    runs.report,
    predict.recommend,
    predict.similar,
    predict.predict,
    predict.generate,
    compress.compress,
    compress.neighbours,
    sweep.sweep,
    sweep.select,
    demo.demo,
):
    app.command()(function)


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def run(
    context: typer.Context,
    recipe: Annotated[Path, typer.Argument(help="A recipe, FILE.toml.")],
) -> None:
    """Run an experiment that is written down: a command with its options. More options may follow; they win.

    Example:  antembed run recipes/amazon.toml --ratings 2330000
    """
    quiet = ["--quiet"] if verbosity.quiet else []
    raise typer.Exit(app([*quiet, *recipe_words(recipe), *context.args], standalone_mode=False) or 0)


@app.command()
def warmup() -> None:
    """Compile all kernels for this processor (a minute or two), so that later commands start at once.

    Example:  antembed warmup
    """
    from contextlib import redirect_stderr, redirect_stdout
    from io import StringIO
    from tempfile import TemporaryDirectory
    from time import perf_counter

    from antembed.cli import show
    from antembed.cli.warmup import COMMANDS, compiled_functions, warm_up

    asked, started = (verbosity.quiet, verbosity.debug), perf_counter()

    def call(words: list[str]) -> None:
        try:
            with redirect_stdout(StringIO()), redirect_stderr(StringIO()):  # small models have much to remark
                app(["--quiet", *words], standalone_mode=False)
        finally:
            verbosity.quiet, verbosity.debug = asked

    with TemporaryDirectory() as name, show.bar("compiling") as done:
        for n, about in enumerate(warm_up(Path(name), call)):
            done(about, n, len(COMMANDS) + 1)
    seconds = perf_counter() - started
    show.console().print(f"{compiled_functions()} functions are compiled for this processor; it took {seconds:.0f} s")


def recipe_words(recipe: Path) -> list[str]:
    """What would be typed instead: command = "train recommend", arguments = […], and the table [options]."""
    if not recipe.is_file():
        raise ValueError(f"{recipe} is no file; recipes are .toml files with a command and its options")
    try:
        written = tomllib.loads(recipe.read_text())
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{recipe} is no TOML: {error}") from error
    unknown = set(written) - {"about", "command", "arguments", "options"}
    if unknown or not isinstance(written.get("command"), str) or not written["command"].split():
        wrong = f"has {min(unknown)!r}" if unknown else "has no command"
        raise ValueError(f"{recipe} {wrong}; a recipe has about, command, arguments and [options]")
    words = [*written["command"].split(), *(str(argument) for argument in written.get("arguments", []))]
    if words[0] == "run":
        raise ValueError(f"{recipe} runs a recipe; write down its command instead")
    for name, value in written.get("options", {}).items():
        for each in value if isinstance(value, list) else [value]:  # a list: the option as often as that
            words += [f"--{name}"] if each is True else [f"--no-{name}"] if each is False else [f"--{name}", str(each)]
    return words
