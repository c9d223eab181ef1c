"""What several commands share."""

import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from pathlib import Path
from typing import Annotated, Any, get_args

import typer

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Seed = Annotated[int, typer.Option(help="Same seed, same machine, same threads: same bytes.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with the run in --out after a stop.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the run in --out, if there is one.")]
Record = Annotated[Path | None, typer.Option(help="Append the result to this JSONL file of records.")]
Device = Annotated[str, typer.Option(help="cpu, cuda, …")]
Values = Annotated[str, typer.Option(help="Numbers in the files: fp32, fp16 or int8; auto: fp32, with a budget of bytes int8.")]


def command() -> str:
    """What was typed, for the record."""
    return shlex.join(["antembed", *sys.argv[1:]])


def grouped(groups: Mapping[str, str]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Show a command's options in its --help under these headings: {heading: "names of some options"}."""

    def group(function: Callable[..., None]) -> Callable[..., None]:
        for heading, names in groups.items():
            for name in names.split():
                kind, info = get_args(function.__annotations__[name])
                info = copy(info)  # commands share some
                info.rich_help_panel = heading
                function.__annotations__[name] = Annotated[kind, info]
        return function

    return group


def times_smaller(full: float, size: float) -> str:
    """Beside full tables in fp32."""
    return f"{full / size:.3g} times smaller" if size <= full else f"{size / full:.3g} times LARGER"


@contextmanager
def checked() -> Iterator[None]:
    """Settings that make no sense are a wrong call."""
    try:
        yield
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


@contextmanager
def stoppable(folder: Path) -> Iterator[None]:
    """Ctrl-C says how to go on."""
    from antembed.cli import show

    try:
        yield
    except KeyboardInterrupt:
        show.err.print(f"stopped; go on with the same command and --resume --out {folder}")
        raise typer.Exit(1) from None


def finish(result: dict[str, Any], record: Path | None, as_json: bool, line: str = "", name: str = "") -> None:
    """Record and print what a run has come to."""
    from antembed.cli import show
    from antembed.reporting import append_record

    result["command"] = command()
    if record is not None:
        append_record(record, result)
    if as_json:
        show.print_json(result)
        return
    show.out.print(show.result_table({name or result["embedding"]: result}))
    if line:
        show.err.print(line)
