"""Searches are repeated for nobody: what was found for the same data and options is in the cache folder, under searches/."""

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path

from antembed.data import default_cache
from antembed.files import JSON, write_atomically

VERSION = 14  # of what is cached; a change of a search is another version
Report = Callable[[str], None]


def silent(line: str) -> None:
    """The report of those who do not want to know."""


def cached(key: Mapping[str, object], search: Callable[[], JSON], report: Report) -> JSON:
    """What the search finds, or has found for this key before."""
    name = hashlib.sha256(json.dumps({"version": VERSION, **key}, sort_keys=True).encode()).hexdigest()[:32]
    file = default_cache() / "searches" / f"{name}.json"
    if (known := _read(file)) is not None:
        report(f"search: as found before ({file})")
        return known
    found = search()
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, json.dumps(found).encode())
    except OSError as error:
        report(f"the search could not be cached: {error}; set ANTEMBED_CACHE to another folder")
    return found


def _read(file: Path) -> JSON | None:
    try:
        found: JSON = json.loads(file.read_text())
    except (OSError, ValueError):
        return None
    return found if isinstance(found.get("options"), dict) else None
