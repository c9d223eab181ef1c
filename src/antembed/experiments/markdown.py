"""Records, commands and Markdown: what tables are made with."""

import shlex
from typing import Any

Records = list[dict[str, Any]]


def markdown(headings: list[str], rows: list[list[str]]) -> str:
    """A Markdown table, the first column to the left, the others to the right."""
    rule = ["---", *["---:"] * (len(headings) - 1)]
    return "\n".join("| " + " | ".join(row) + " |" for row in [headings, rule, *rows])


def options(command: str, names: tuple[str, ...]) -> str:
    """Only these options of a command."""
    words = shlex.split(command)
    return shlex.join(w for w, before in zip(words, ["", *words], strict=False) if {w, before} & set(names))


def setting(command: str) -> str:
    """A command without what does not change the result: its seed, its threads, and where and how it wrote."""
    words = shlex.split(command)
    passing, flags = {"--seed", "--out", "--record", "--threads"}, {"--json", "--overwrite", "--resume"}
    kept = (w for w, before in zip(words, ["", *words], strict=False) if not {w, before} & passing)
    return shlex.join(w for w in kept if w not in flags)
