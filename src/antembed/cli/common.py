"""What several commands share."""

import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from antembed.files import JSON

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


@contextmanager
def stoppable(folder: Path) -> Iterator[None]:
    """Ctrl-C says how to continue."""
    from antembed.cli import show

    try:
        yield
    except KeyboardInterrupt:
        show.say(f"interrupted; continue with the same command and --resume --out {folder}")
        raise typer.Exit(1) from None


def finish(result: JSON, record: Path | None, as_json: bool, lines: Sequence[str] = (), name: str = "") -> None:
    """Record and print what a run has come to."""
    from antembed.cli import show
    from antembed.sweep.records import append_record

    if record is not None:
        append_record(record, result)
    if as_json:
        show.remarks(result)
        show.print_json(result)
        return
    show.console().print(show.result_table({name or result["embedding"]: result}))
    if baselines := show.baselines(result):
        show.answer(baselines)
    if empty := show.empty_rows(result):
        show.answer(empty)
    for line in lines:
        show.note(line)
    show.remarks(result)


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
