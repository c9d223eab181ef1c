"""Searches are repeated for nobody: what was found for the same data and options is in the cache folder, under searches/."""

import hashlib
import json
from collections.abc import Callable, Mapping
from contextlib import ExitStack

from antembed.files import JSON, default_cache, locked, read_checked, write_checked

VERSION = 17  # of what is cached; a change of a search is another version
Report = Callable[[str], None]


def silent(line: str) -> None:
    """The report of those who do not want to know."""


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
