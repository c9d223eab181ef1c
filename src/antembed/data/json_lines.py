"""Files with one JSON object per line."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

import polars as pl

from antembed.data.text_file import DataError

JSON_LINES = (".jsonl", ".ndjson", ".json")
SNIFFED = 1000  # JSON lines whose keys are collected
Opened = tuple[pl.LazyFrame, list[str], bool]  # columns, and whether they are named


def first_line(plain: Path) -> str:
    with open(plain, "rb") as file:
        return file.readline().decode("utf-8-sig", "replace").strip("\r\n")


def is_json_lines(path: Path, first: str) -> bool:
    """By the name of a file, and its first line."""
    return suffix_of(path) in JSON_LINES or re.match(r'\{\s*["}]', first) is not None


@contextmanager
def json_lines(path: Path, plain: Path, first: str) -> Iterator[Opened]:
    """A file of one JSON object per line as a frame of text, its keys, and True."""
    try:
        names = _keys(plain, first)
        yield pl.scan_ndjson(plain, schema=dict.fromkeys(names, pl.String)), names, True
    except (pl.exceptions.PolarsError, ValueError) as error:
        if isinstance(error, DataError):
            raise
        with open(plain, "rb") as file:
            for number, line in enumerate(file, 1):
                if line.strip() and not isinstance(wrong := _parsed(line), dict):
                    raise DataError(f"{path}, line {number}: {wrong}: {line[:60]!r}; correct it, one object per line") from None
        raise DataError(f"{path} could not be read as JSON lines: {error}") from error


def suffix_of(path: Path) -> str:
    """The last suffix that is not .gz or .zst."""
    return next((suffix.lower() for suffix in reversed(path.suffixes) if suffix.lower() not in (".gz", ".zst")), "")


def _keys(plain: Path, first: str) -> list[str]:
    """Keys of the first lines' objects, since a single one may lack some."""
    if not isinstance(json.loads(first), dict):
        raise ValueError("the first line is no object")
    names: dict[str, None] = {}
    with open(plain, "rb") as file:
        for line in islice(file, SNIFFED):
            if isinstance(found := _parsed(line), dict):
                names |= dict.fromkeys(found)
    return list(names)


def _parsed(line: bytes) -> dict[str, object] | str:
    """The object, or what is wrong with the line."""
    try:
        found = json.loads(line.decode())
        return found if isinstance(found, dict) else "no object"
    except UnicodeDecodeError as error:
        return f"byte {error.start + 1} is not UTF-8"
    except ValueError as error:
        return f"no JSON ({error})"
