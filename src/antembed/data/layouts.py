"""Files of labelled text as frames of two columns, text and label: detect the columns, and report what is wrong with a file.

Supported are the layouts of AG-News, DBPedia, Yelp and Sogou (CSV without a header: the class, then one or more texts), headers
with usual names, and text without labels (.txt: a document per line).
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

import polars as pl

from antembed.data.text import UNIT, DataError, Format, distinct, is_number, plain_text, records, split_fields, what_is_wrong

Chosen = str | int
LABELS = ("label", "labels", "class", "class index", "class_index", "category", "topic", "target", "stars", "star_rating",
          "rating", "sentiment", "polarity", "intent")  # fmt: skip
TEXTS = ("text", "title", "description", "content", "review", "review_title", "review_text", "review_body", "body", "sentence",
         "question", "question_title", "question_content", "best_answer", "answer", "document", "abstract", "headline",
         "summary", "subject", "message", "tweet", "comment")  # fmt: skip
SUFFIXES = {".tsv": "\t", ".tab": "\t", ".csv": ","}
PIECE = 1 << 15  # documents at a time
SNIFFED = 1000  # JSON lines whose keys are collected


def labelled_text(
    path: Path, text: Chosen | Sequence[Chosen] | None = None, label: Chosen | None = None
) -> Iterator[pl.DataFrame]:
    """The file's documents, piece by piece: a column `text` (several joined by a space), and `label` if there is one.

    `text`, `label`: columns by name, or by number from 1; label "": there is none. Empty lines of a table are skipped; in a
    file without labels, an empty line is an empty document.
    """
    if not path.is_file():
        raise DataError(f"{path} is no file; give labelled text (.csv, .tsv, .jsonl, .parquet, also .gz and .zst)")
    if path.stat().st_size == 0:
        raise DataError(f"{path} is empty (0 bytes); give labelled text, a document per line")
    with _opened(path, text, label) as (frame, names, header):
        label_column, texts = choose_columns(path, names, header, text, label)
        joined = pl.concat_str(pl.col(texts).cast(pl.String).fill_null(""), separator=" ").alias("text")
        labels = (
            []
            if label_column is None
            else [pl.col(label_column).cast(pl.String).str.strip_chars().replace("", None).alias("label")]
        )
        yield from frame.select(joined, *labels).collect_batches(chunk_size=PIECE, maintain_order=True)


Opened = tuple[pl.LazyFrame, list[str], bool]


@contextmanager
def _opened(path: Path, text: Chosen | Sequence[Chosen] | None, label: Chosen | None) -> Iterator[Opened]:
    """The file as a frame, its columns, and whether it has a header."""
    with open(path, "rb") as file:
        parquet = file.read(4) == b"PAR1" or path.suffix == ".parquet"
    if parquet:
        try:
            frame = pl.scan_parquet(path)
            yield frame, frame.collect_schema().names(), True
        except pl.exceptions.PolarsError as error:
            raise DataError(f"{path} could not be read as Parquet: {error}") from error
        return
    with plain_text(path) as plain:
        with open(plain, "rb") as file:
            first = file.readline().decode("utf-8-sig", "replace").strip("\r\n")
        if _suffix(path) in (".jsonl", ".ndjson", ".json") or first.startswith("{"):
            with _json_lines(path, plain, first) as opened:
                yield opened
        else:
            form = _text_lines() if _suffix(path) == ".txt" else format_of_text(path, plain, first, text, label)
            with _delimited(path, plain, form) as opened:
                yield opened


@contextmanager
def _json_lines(path: Path, plain: Path, first: str) -> Iterator[Opened]:
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


@contextmanager
def _delimited(path: Path, plain: Path, form: Format) -> Iterator[Opened]:
    frame = pl.scan_csv(
        plain,
        schema=dict.fromkeys(form.columns, pl.String),
        separator=form.separator,
        has_header=form.header and not form.renamed,
        skip_rows=int(form.renamed),
        quote_char='"' if form.quoted else None,
    )
    if len(form.columns) > 1:
        frame = frame.filter(pl.any_horizontal(pl.all().is_not_null()))
    try:
        yield frame, form.columns, form.header
    except pl.exceptions.PolarsError as error:
        for number, raw in records(plain, form.quoted):
            wrong = what_is_wrong(raw, form, [])
            if wrong is not None:
                shown = raw.decode("utf-8", "replace").strip("\r\n")[:80]
                remedy = "correct it" if "fields" not in wrong else "quote texts that contain the separator"
                raise DataError(f"{path}, line {number}: {wrong}: {shown!r}; {remedy}") from None
        raise DataError(f"{path} could not be read: {error}") from error


def _suffix(path: Path) -> str:
    """The last suffix that is not .gz or .zst."""
    return next((suffix.lower() for suffix in reversed(path.suffixes) if suffix.lower() not in (".gz", ".zst")), "")


def _text_lines() -> Format:
    return Format(UNIT, False, ["column_1"], False, False)


def format_of_text(
    path: Path, plain: Path, first: str, text: Chosen | Sequence[Chosen] | None = None, label: Chosen | None = None
) -> Format:
    """Separator and columns: by a header of known names, else by the file's suffix, else by the first record."""
    chosen = [text, label] if isinstance(text, str | int | None) else [*text, label]
    known = {*LABELS, *TEXTS, *(name.lower() for name in chosen if isinstance(name, str) and not name.isdecimal())}
    if not first.strip():
        raise DataError(f"{path} starts with an empty line; give labelled text, a document per line")
    separators = [SUFFIXES[_suffix(path)]] if _suffix(path) in SUFFIXES else []
    separators += [separator for separator in (UNIT, "\t", ",", ";", "|") if separator not in separators]
    found: Format | None = None
    for separator in separators:
        quoted = separator != UNIT and (separator != "\t" or first.startswith('"') or '\t"' in first)
        record = next(records(plain, quoted))[1].decode("utf-8-sig", "replace").strip("\r\n") if quoted else first
        fields = split_fields(record, separator) if quoted else record.split(separator)
        header = any(field.strip().lower() in known for field in fields) and not any(map(is_number, fields))
        names = distinct([field.strip() for field in fields] if header else [""] * len(fields))
        form = Format(separator, header, names, quoted, header and names != fields)
        if header:
            return form
        if found is None and (len(fields) > 1 or separator == separators[-1]):
            found = form
    assert found is not None
    return found


def choose_columns(
    path: Path, present: list[str], header: bool, text: Chosen | Sequence[Chosen] | None, label: Chosen | None
) -> tuple[str | None, list[str]]:
    """The column of the label, or None, and the columns of the text."""
    texts = [] if text is None else [text] if isinstance(text, str | int) else list(text)
    found = [_column(path, present, name, "text") for name in texts]
    chosen = None if not label else _column(path, present, label, "label")
    if chosen is not None and chosen in found:
        raise DataError(f"{path}: {chosen!r} is chosen as text and as label; choose two columns")
    guess = chosen is None and label != ""
    if header:
        if guess:
            chosen = next((name for name in present if name.lower() in LABELS and name not in found), None)
        found = found or [name for name in present if name.lower() in TEXTS and name != chosen]
    elif guess and len(present) > 1 and present[0] not in found:
        chosen = present[0]
    rest = [name for name in present if name != chosen]
    if not found and (not header or len(rest) == 1):
        found = rest
    if not found:
        raise DataError(f"{path}: which column is the text? It has: {', '.join(present)}; pass text=NAME (--text NAME)")
    return chosen, found


def _column(path: Path, present: list[str], asked: Chosen, role: str) -> str:
    if asked in present:
        return str(asked)
    if str(asked).isdecimal() and 1 <= int(asked) <= len(present):
        return present[int(asked) - 1]
    raise DataError(f"{path} has no column {asked!r} for the {role}; it has {len(present)}: {', '.join(present)}")
