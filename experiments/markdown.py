"""Markdown tables of records: columns by formats, means over seeds, and the commands of runs."""

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from statistics import mean

from antembed.files import JSON
from antembed.report.page import markdown
from antembed.sweep.records import Records
from antembed.sweep.trials import command_of, option_words
from antembed.train.config import TaskConfig
from antembed.train.options import to_options, validated
from antembed.train.registry import TASKS

HIDDEN = ("data", "seed", "threads")
# Heading → a format of the row's fields, "{bytes:,} bytes", or a function of the row.
Columns = Mapping[str, str | Callable[..., str]]


def table(rows: Iterable[JSON] | Iterable[Records], columns: Columns) -> str:
    """A line for each row: a record, or the records of one setting; columns without a value are left out."""
    cells = [[form.format_map(row) if isinstance(form, str) else form(row) for form in columns.values()] for row in rows]
    filled = [column for column in zip(columns, *cells, strict=True) if not cells or {*column[1:]} - {"", "–"}]
    headings, *lines = map(list, zip(*filled, strict=True))
    return markdown(headings, lines)


def grouped(records: Records, key: Callable[[JSON], Hashable]) -> dict[Hashable, Records]:
    """Records that have the same key, in the order of their first."""
    found: dict[Hashable, Records] = {}
    for record in records:
        found.setdefault(key(record), []).append(record)
    return found


def newest(records: Records, *keys: str) -> list[JSON]:
    """The last record of each setting, in their order."""
    return list({tuple(record[key] for key in keys): record for record in records}.values())


def at(record: JSON, path: str) -> float:
    """The number at a path such as test.mse."""
    value = record
    for name in path.split("."):
        value = value[name]
    return float(value)  # type: ignore[arg-type]


def average(path: str, form: str, scale: float = 1.0) -> Callable[[Records], str]:
    """A column: the mean over the runs of a setting, times `scale`."""
    return lambda runs: form.format(scale * mean(at(run, path) for run in runs))


def spread(values: Sequence[float], digits: int = 4) -> str:
    """Mean, and half of how far the seeds lie apart."""
    apart = f" ± {(max(values) - min(values)) / 2:.{digits}f}" if len(values) > 1 else ""
    return f"{mean(values):.{digits}f}{apart}"


def spread_of(path: str, digits: int = 4, scale: float = 1.0) -> Callable[[Records], str]:
    """A column: mean and spread over the runs of a setting."""
    return lambda runs: spread([scale * at(run, path) for run in runs], digits)


def count(runs: Records) -> str:
    """A column: how many runs there are."""
    return str(len(runs))


PARAMETERS = average("parameters", "{:.1f}K", 1e-3)
FILES = average("bytes", "{:.0f} kB", 1e-3)
TRAINING = average("seconds", "{:.0f} s")


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
