"""Delimited text and JSON lines as tables: detect the columns, find what is wrong with a line."""

import csv
import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import BinaryIO

import numpy as np
import polars as pl

from antembed.data.text_file import CHUNK, SEPARATORS, UNIT, DataError
from antembed.files import JSON

JSON_LINES = (".jsonl", ".ndjson", ".json")
SNIFFED = 1000  # objects whose keys are collected
LONGEST = 1000  # lines of one record; a quotation mark still open then was never closed
PLAIN = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
IsHeader = Callable[[list[str]], bool]
Opened = tuple[pl.LazyFrame, list[str], bool]  # columns, and whether they are named
DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+")


@dataclass(frozen=True)
class Format:
    """How to split a file. Columns of a file without a header are called column_1, column_2, …"""

    separator: str
    header: bool
    columns: list[str]
    quoted: bool
    renamed: bool  # the header has repeated or empty names, replaced in `columns`
    decimal_comma: bool = False  # numbers are written 4,5


def guess_format(path: Path, plain: Path, is_header: IsHeader) -> Format:
    """Separator and columns, from the first lines. `path` is used in messages, `is_header` knows usual names of columns."""
    with open(plain, "rb") as file:
        return format_of(path, file.readline(CHUNK), is_header, file.readline(CHUNK))


def format_of(path: Path, line: bytes, is_header: IsHeader, second: bytes = b"") -> Format:
    """The same from the first line itself, and maybe the second."""
    if not line.strip():
        raise DataError(f"{path} is empty, or starts with an empty line; give a file of users, items and ratings")
    text = line.decode("utf-8-sig", "replace").strip("\r\n")
    separator = separator_of(text)
    if separator is None:
        remedy = "separate user, item and rating by '::', a comma, a tab, ';' or '|'"
        raise DataError(f"{path}: no separator found in its first line {text[:80]!r}; {remedy}")
    fields = split_fields(text, separator)
    header = is_header(fields)
    if not header and len(fields) == 2:
        # Labels alone, as in "ann,book": only numbers below them show that these are names.
        below = split_fields(second.decode("utf-8", "replace").strip("\r\n"), separator)
        header = any(is_number(other) and not is_number(field) for field, other in zip(fields, below, strict=False))
    elif not header:
        header = not any(is_number(field) or is_time(field) for field in fields)
    names = distinct(fields if header else [""] * len(fields))
    return Format(separator, header, names, separator != UNIT, header and names != fields)


def separator_of(text: str) -> str | None:
    """The separator of a line; None if it has none."""
    separator = UNIT if UNIT in text else max(SEPARATORS, key=text.count)
    return separator if separator in text else None


def distinct(names: list[str]) -> list[str]:
    """Names without repeats: column_N for an empty name, and the suffix _N for a repeated one."""
    found: list[str] = []
    for number, given in enumerate(names, 1):
        name = given or f"column_{number}"
        found.append(name if name not in found else f"{name}_{number}")
    return found


def records(plain: Path, quoted: bool) -> Iterator[tuple[int, bytes]]:
    """(number of the first line from 1, the record): with open quotation marks, a record continues on the next line."""
    with open(plain, "rb") as file:
        waiting: list[tuple[int, bytes]] = []
        marks = 0
        for number, line in enumerate(file, 1):
            waiting.append((number, line))
            marks += line.count(b'"') if quoted else 0
            if marks % 2 == 0:
                yield waiting[0][0], b"".join(part for _, part in waiting)
            elif len(waiting) < LONGEST:
                continue
            else:  # never closed: each line is a record
                yield from waiting
            waiting, marks = [], 0
        yield from waiting


def without_blank_lines(plain: Path, good: BinaryIO) -> bool:
    """Copy all lines that are not blank; False for a file with quotation marks, between which a blank line is text."""
    with open(plain, "rb") as file:
        while lines := file.readlines(CHUNK):
            if any(b'"' in line for line in lines):
                return False
            good.writelines(line for line in lines if line.strip())
    return True


def bad_lines(
    plain: Path, form: Format, roles: Mapping[str, str], good: BinaryIO | None = None
) -> Iterator[tuple[int, str, str]]:
    """Check every record; → (line from 1, what is wrong, its text). Valid ones are written to `good`, empty ones skipped.
    `roles`: the columns of user, item, rating, weight and time."""
    indices = {role: form.columns.index(name) for role, name in roles.items()}
    for number, raw in records(plain, form.quoted):
        if not raw.strip():
            continue
        wrong = None if number == 1 and form.header else what_is_wrong(raw, form, indices)
        if wrong is not None:
            yield number, wrong, raw.decode("utf-8", "replace").strip("\r\n").replace(UNIT, "::")[:80]
        elif good is not None:
            good.write(raw)


def what_is_wrong(raw: bytes, form: Format, indices: Mapping[str, int]) -> str | None:
    """A message if the record is invalid. `indices` are the columns of user, item, rating, weight and time."""
    try:
        text = raw.decode("utf-8").strip("\r\n")
    except UnicodeDecodeError as error:
        return f"byte {error.start + 1} is not UTF-8"
    if form.quoted and text.count('"') % 2:
        return "a quotation mark is not closed"
    try:
        fields = split_fields(text, form.separator)
    except csv.Error as error:
        return f"it cannot be split ({error})"
    if len(fields) <= max(indices.values(), default=-1) or len(fields) > len(form.columns):
        return f"{len(fields)} fields instead of {len(form.columns)}"
    for role, index in indices.items():
        field = fields[index]
        if not field:
            return f"no {role}"
        if role in ("rating", "weight") and not is_number(field.replace(",", ".") if form.decimal_comma else field):
            comma = DECIMAL_COMMA.fullmatch(field)
            return f"the {role} has a decimal comma, write 4.5 for 4,5" if comma else f"the {role} is no number"
        if role == "time" and not is_number(field) and not is_time(field):
            return "the time is no number and no date"
    return None


def split_fields(text: str, separator: str) -> list[str]:
    if '"' not in text or separator == UNIT:
        return text.split(separator)
    csv.field_size_limit(2**31 - 1)
    return next(csv.reader(text.splitlines(keepends=True), delimiter=separator))


def is_number(text: str) -> bool:
    """Whether the text is a finite number in single precision."""
    with np.errstate(over="ignore"):
        return PLAIN.fullmatch(text) is not None and bool(np.isfinite(np.float32(text)))


def is_time(text: str) -> bool:
    """Whether the text is a date or a time in ISO's form, as 2020-01-31 or 2020-01-31T12:00:00Z."""
    if len(text) < 10 or text[4:5] != "-":
        return False
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return True


def first_line(plain: Path) -> str:
    with open(plain, "rb") as file:
        return file.readline().decode("utf-8-sig", "replace").strip("\r\n")


def suffix_of(path: Path) -> str:
    """The last suffix that is not .gz or .zst."""
    return next((suffix.lower() for suffix in reversed(path.suffixes) if suffix.lower() not in (".gz", ".zst")), "")


def is_json_lines(path: Path, first: str) -> bool:
    """By the name of a file, and its first line."""
    return suffix_of(path) in JSON_LINES or re.match(r'\{\s*["}]', first) is not None


@contextmanager
def json_lines(path: Path, plain: Path) -> Iterator[Opened]:
    """A file of one JSON object per line as a frame of text, its keys (a single line may lack some), and True."""
    names = list(dict.fromkeys(key for found in islice(_objects(path, plain), SNIFFED) for key in found))
    try:
        yield pl.scan_ndjson(plain, schema=dict.fromkeys(names, pl.String)), names, True
    except pl.exceptions.PolarsError as error:
        for _ in _objects(path, plain):  # which line is wrong
            pass
        raise DataError(f"{path} could not be read as JSON lines: {error}") from error


def _objects(path: Path, plain: Path) -> Iterator[JSON]:
    with open(plain, "rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                found, wrong = json.loads(line.decode()), "no object"
            except UnicodeDecodeError as error:
                found, wrong = None, f"byte {error.start + 1} is not UTF-8"
            except ValueError as error:
                found, wrong = None, f"no JSON ({error})"
            if not isinstance(found, dict):
                raise DataError(f"{path}, line {number}: {wrong}: {line[:60]!r}; correct it, one object per line")
            yield found
