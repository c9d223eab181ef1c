"""Searches for what was not given, and their cache: results by digest of data and options, in the cache folder, searches/.

A search ends in options, so the run that follows is an ordinary one, and its config.json says what was found.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pkgutil import resolve_name
from typing import Protocol

from antembed.files import JSON, default_cache, locked, read_checked, write_checked
from antembed.train.config import TaskConfig
from antembed.train.options import Options
from antembed.train.task import Splits

VERSION = 17  # of what is cached; a change of a search is another version
Report = Callable[[str], None]


def silent(line: str) -> None:
    """No-op report."""


class Search(Protocol):
    """The search of a task, where its config's `to_search` leaves the choice to it."""

    def __call__(self, config: TaskConfig, given: Options, splits: Splits, report: Report) -> JSON:
        """Options that were found, to be added to those given."""


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
