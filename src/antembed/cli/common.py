"""Options and texts that several commands share."""

import shlex
import sys
from typing import Annotated, Any

import typer

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace OUT if it exists.")]


def folder_of(what: str) -> Any:
    return typer.Argument(help=f"Folder of {what}.")


def command() -> str:
    """The command line of this process, for records."""
    return shlex.join(["antembed", *sys.argv[1:]])


def times_smaller(full: float, size: float) -> str:
    """Compared with full tables in fp32."""
    return f"{full / size:.3g} times smaller" if size <= full else f"{size / full:.3g} times LARGER"
