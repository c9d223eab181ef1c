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


def times_smaller(full: float, size: float) -> str:
    """Beside full tables in fp32."""
    return f"{full / size:.3g} times smaller" if size <= full else f"{size / full:.3g} times LARGER"
