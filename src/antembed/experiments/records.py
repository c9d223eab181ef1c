"""One JSONL row a run: the only source of every table and plot."""

import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from antembed.files import append_json, read_json_lines

TOLD_VERSIONS = ("antembed", "torch", "numpy", "numba", "polars")


def commit() -> str | None:
    """The commit this package was run from, "+" added if its files were changed since; None if no git repository tracks it."""
    here = Path(__file__).parent

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=here, capture_output=True, text=True, check=True).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", __file__)  # a virtual environment may lie inside a repository that is not ours
        return git("rev-parse", "--short=12", "HEAD") + ("+" if git("status", "--porcelain", "--", "..") else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def surroundings() -> dict[str, Any]:
    """Where and with what a figure was measured."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "versions": {name: version(name) for name in TOLD_VERSIONS} | {"python": platform.python_version()},
        "threads": torch.get_num_threads(),
    }


def append_record(path: str | Path, record: dict[str, Any]) -> None:
    """Add a row to a file of records."""
    append_json(path, {**record, **surroundings()})


def read_records(path: str | Path) -> list[dict[str, Any]]:
    """All rows of a file of records."""
    return read_json_lines(path)
