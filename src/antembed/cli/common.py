"""What several commands share."""

import re
import shlex
import sys
from dataclasses import dataclass
from typing import Annotated

import typer

# MERGED Text that comes from data, made safe for a terminal.
# What --quiet and --debug say; every call of the program sets it.

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Seed = Annotated[int, typer.Option(help="Same seed, same machine, same threads: same bytes.")]


def command() -> str:
    """What was typed, for the record."""
    return shlex.join(["antembed", *sys.argv[1:]])


def times_smaller(full: float, size: float) -> str:
    """Beside full tables in fp32."""
    return f"{full / size:.3g} times smaller" if size <= full else f"{size / full:.3g} times LARGER"


# Controls (ESC begins a terminal's commands), line and paragraph separators, overrides of the direction, halves of characters.
UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: object) -> str:
    """One line that shows what is in it: \\x1b for ESC, \\n for a line end."""
    return UNSAFE.sub(lambda found: found[0].encode("unicode_escape").decode(), str(text))


@dataclass
class Verbosity:
    """Whether progress is left out, and whether an error shows where it was raised."""

    quiet: bool = False
    debug: bool = False


verbosity = Verbosity()
