"""Markdown tables, and the commands that they show: rendered from a record's config, not from what was typed."""

from collections.abc import Collection

from antembed.files import JSON
from antembed.report.page import markdown  # noqa: F401 — tables here are written with it
from antembed.sweep.trials import command_of, option_words
from antembed.train.config import TaskConfig
from antembed.train.options import to_options, validated
from antembed.train.registry import TASKS

HIDDEN = ("data", "seed", "threads")


def command(config: JSON) -> str:
    """The command of a run: the options that differ from the defaults, without seed and threads."""
    options = {name: short(value) for name, value in to_options(opened(config)).items() if name not in HIDDEN}
    return command_of(config["input"]["data"], options, TASKS[config["task"]])


def options(config: JSON, names: Collection[str]) -> str:
    """These options of a run, as they are typed; those it does not have are left out."""
    found = to_options(opened(config), all=True)
    return " ".join(option_words({name: short(found[name]) for name in names if name in found}))


def opened(config: JSON) -> TaskConfig:
    """The config that a record has as JSON."""
    return validated(TASKS[config["task"]].Config, config)


def short(value: object) -> object:
    """2, not 2.0."""
    return int(value) if isinstance(value, float) and value.is_integer() else value
