"""What several commands share."""

import shlex
import sys
from typing import Annotated

import typer

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Seed = Annotated[int, typer.Option(help="Same seed, same machine, same threads: same bytes.")]


def command() -> str:
    """What was typed, for the record."""
    return shlex.join(["antembed", *sys.argv[1:]])
