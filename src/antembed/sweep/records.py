"""One JSONL row a run: the only source of every table and plot. The options of a run are in its `config`, as in config.json."""

import json
import platform
import subprocess
from collections.abc import Iterable
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import torch

from antembed.files import JSON, append_json, read_json_lines
from antembed.train.options import ConfigError, validated
from antembed.train.registry import TASKS

Records = list[JSON]
VERSIONS_OF = ("antembed", "torch", "numpy", "numba", "polars")
# Parts of a config that change no result, or that the digest of the data stands for: which files, and of ratings which columns.
IRRELEVANT = (("machine", "threads"), *(("input", name) for name in ("data", "test", "columns", "on_error")))
SEED = ("machine", "seed")


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


def environment() -> JSON:
    """Where and with what a figure was measured."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "versions": {name: version(name) for name in VERSIONS_OF} | {"python": platform.python_version()},
        "threads": torch.get_num_threads(),
    }


def append_record(path: str | Path, record: JSON) -> None:
    append_json(path, {**record, **environment()})


def read_records(path: str | Path) -> Records:
    """All rows of a file of records. Options that are newer than a record have their defaults in its config."""
    return [upgraded(row) for row in read_json_lines(path)]


def upgraded(record: JSON) -> JSON:
    """The record with the complete config of today, so that it can be compared with others."""
    config = record.get("config")
    if not isinstance(config, dict) or config.get("task") not in TASKS:
        return record
    try:
        return record | {"config": validated(TASKS[config["task"]].Config, config).model_dump(mode="json")}
    except ConfigError:  # an option that is gone: no run of today is the same
        return record


def key_of(config: JSON, without: Iterable[tuple[str, str]] = IRRELEVANT) -> str:
    """Equal for equal configs, whatever the fields `without` are."""
    kept = {group: dict(fields) if isinstance(fields, dict) else fields for group, fields in config.items()}
    for group, name in without:
        if group in kept:
            kept[group].pop(name, None)
    return json.dumps(kept, sort_keys=True)


def by_setting(records: Iterable[JSON]) -> list[Records]:
    """Runs that differ in their seeds alone, together; failed runs are left out."""
    found: dict[str, Records] = {}
    for record in records:
        if "failed" not in record:
            found.setdefault(key_of(record["config"], (*IRRELEVANT, SEED)), []).append(record)
    return list(found.values())
