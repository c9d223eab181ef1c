"""From options to a config: what the data decide, what a search finds (and its cache), and what can be said before either.

Needs no torch but for the task that it is handed. A search ends in options, so the run that follows is an ordinary one, and its
config.json says what was found. Results of searches are kept by the digest of data and options, in the cache folder, searches/.
"""

import hashlib
import json
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING

from antembed.files import JSON, default_cache, locked, read_checked, write_checked
from antembed.train.config import TaskConfig
from antembed.train.options import ConfigError, Options, from_options
from antembed.train.registry import TASKS
from antembed.train.run_folder import RunFolder

if TYPE_CHECKING:
    from antembed.train.task import Splits, Task

VERSION = 17  # of what is cached; a change of a search is another version
# Options that decide the parts of the data, or how they are read.
SPLITTING = {"hold_out", "split", "word_dropout", "sequence_length"}
Report = Callable[[str], None]
# Of a task, where its config's `to_search` leaves choices to it: finds options, to be added to those given.
Search = Callable[[TaskConfig, Options, "Splits", Report], JSON]


def silent(line: str) -> None:
    """No-op report."""


def configure(task: "Task", given: Options, report: Report = silent, *, search: bool = True) -> "tuple[TaskConfig, Splits]":
    """Options → a config and the data it names. What was not given follows from the data: by a search, where there is one, else
    from the number of examples. `report` gets a line for what is found; without `search` nothing is searched."""
    searched = task.Config.to_search(given) if search else None
    name, first = searched or (task.name, without_auto(given))
    if searched is not None:
        task = TASKS[name]
    config = first_config(task.Config, first)
    if (other := config.read()) != name:
        report(f"{TASKS.configs[other].why(given)}: trained as {other}")
        return configure(TASKS[other], suited(TASKS.configs[other], given), report)
    splits = task.load(config)
    if searched is None:
        found = task.Config.defaults(splits.count, first, splits.objects)
        config = from_options(task.Config, first, found)
    else:
        found = search_of(task.Config)(config, given, splits, report)
        config = from_options(task.Config, {key: value for key, value in first.items() if key not in found} | found)
    return config, task.load(config) if found.keys() & SPLITTING else splits


def check_early(
    config: type[TaskConfig], given: Options, out: Path | None, *, resume: bool, overwrite: bool, search: bool = True
) -> None:
    """Raise what `configure` and `train` would raise later. The data that are read here stay in memory for them."""
    if out is not None:
        RunFolder(out).check_free(resume=resume, overwrite=overwrite)
    name, first = (config.to_search(given) if search else None) or (config.name(), without_auto(given))
    chosen = first_config(TASKS.configs[name], first)
    other = chosen.read()
    if other != chosen.task:
        check_early(TASKS.configs[other], suited(TASKS.configs[other], given), out, resume=resume, overwrite=overwrite)
    elif out is None:
        RunFolder(usual_folder(chosen)).check_free(resume=resume, overwrite=overwrite)


def usual_folder(config: TaskConfig) -> Path:
    """Where a run is, if nothing is said."""
    return Path("runs") / f"{config.task}-{config.embedding_name}-{config.machine.seed}"


def without_auto(given: Options) -> Options:
    """Without a model "auto", which is no model of its own."""
    return {name: value for name, value in given.items() if not (name == "model" and value == "auto")}


def first_config(config: type[TaskConfig], given: Options) -> TaskConfig:
    """Before the number of examples is known; what does not suit few examples may suit many."""
    try:
        return from_options(config, given)
    except ConfigError as error:
        try:
            return from_options(config, given, config.defaults(sys.maxsize, given))
        except ConfigError:
            raise error from None


def suited(config: type[TaskConfig], given: Options) -> Options:
    """Options for another task than was asked for; a solver that it does not have is an error."""
    solver = str(given.get("solver", "auto"))
    own = str(config.model_fields["solver"].default.name)
    if solver not in ("auto", own):
        raise ConfigError(f"{config.name()} is trained by {own}, not {solver}; leave out --solver", "solver")
    return {name: value for name, value in given.items() if name != "solver"}


def search_of(config: type[TaskConfig]) -> Search:
    """The search that the config of a task names."""
    search: Search = resolve_name(config.searches)()
    return search


def cached(key: Mapping[str, object], search: Callable[[], JSON], report: Report) -> JSON:
    """What the search finds, or has found for this key before."""
    name = hashlib.sha256(json.dumps({"version": VERSION, **key}, sort_keys=True).encode()).hexdigest()[:32]
    file = default_cache() / "searches" / f"{name}.json"
    with ExitStack() as stack:
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            stack.enter_context(locked(file.with_suffix(".lock"), file, wait=True))  # who asks the same waits for the answer
        except OSError as error:
            report(f"the search cannot be cached: {error}; set ANTEMBED_CACHE to another folder")
            return search()
        if (known := read_checked(file)) is not None and isinstance(known.get("options"), dict):
            report(f"search: as found before ({file})")
            return known
        found = search()
        try:
            write_checked(file, found)
        except OSError as error:
            report(f"the search could not be cached: {error}; set ANTEMBED_CACHE to another folder")
        return found
