"""Files of labelled text as frames of two columns, text and label: detect the columns, and report what is wrong with a file.

Supported are the layouts of AG-News, DBPedia, Yelp and Sogou (CSV without a header: the class, then one or more texts), headers
with usual names, and text without labels (.txt: a document per line).
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import polars as pl

from antembed.data.delimited import (
    JSON_LINES,
    Format,
    Opened,
    distinct,
    first_line,
    is_json_lines,
    is_number,
    json_lines,
    records,
    split_fields,
    suffix_of,
    what_is_wrong,
)
from antembed.data.text_file import UNIT, DataError, Dialect, assumed, dialect_of_file, plain_text
from antembed.files import JSON

Chosen = str | int
LABELS = ("label", "labels", "class", "class index", "class_index", "category", "topic", "target", "stars", "star_rating",
          "rating", "sentiment", "polarity", "intent", "klasse", "kategorie", "thema", "classe", "catégorie", "categorie",
          "clase", "categoría", "categoria", "etiqueta", "etichetta", "étiquette")  # fmt: skip
TEXTS = ("text", "title", "description", "content", "review", "review_title", "review_text", "review_body", "body", "sentence",
         "question", "question_title", "question_content", "best_answer", "answer", "document", "abstract", "headline",
         "summary", "subject", "message", "tweet", "comment", "inhalt", "titel", "beschreibung", "kommentar", "nachricht",
         "texte", "titre", "contenu", "texto", "título", "contenido", "testo", "titolo", "contenuto")  # fmt: skip
SUFFIXES = {".tsv": "\t", ".tab": "\t", ".csv": ","}
BELOW = 20  # records that are compared with the first one


def format_of_text(
    path: Path, plain: Path, first: str, text: Chosen | Sequence[Chosen] | None = None, label: Chosen | None = None
) -> Format:
    """Separator and columns: by a header of known names, else by the file's suffix, else by the first record."""
    chosen = [text, label] if isinstance(text, str | int | None) else [*text, label]
    known = {*LABELS, *TEXTS, *(name.lower() for name in chosen if isinstance(name, str) and not name.isdecimal())}
    if not first.strip():
        raise DataError(f"{path} starts with an empty line; give labelled text, a document per line")
    separators = [SUFFIXES[suffix_of(path)]] if suffix_of(path) in SUFFIXES else []
    separators += [separator for separator in (UNIT, "\t", ",", ";", "|") if separator not in separators]
    forms: list[Format] = []
    for separator in separators:
        quoted = separator != UNIT and (separator != "\t" or first.startswith('"') or '\t"' in first)
        record = next(records(plain, quoted))[1].decode("utf-8-sig", "replace").strip("\r\n") if quoted else first
        fields = split_fields(record, separator) if quoted else record.split(separator)
        header = not any(map(is_number, fields)) and (
            any(field.strip().lower() in known for field in fields) or _names_above_numbers(plain, separator, quoted, fields)
        )
        names = distinct([field.strip() for field in fields] if header else [""] * len(fields))
        form = Format(separator, header, names, quoted, header and names != fields)
        if header:
            return form
        if len(fields) > 1 or separator == separators[-1]:
            forms.append(form)
    # A comma may stand in a text between semicolons: the number of fields shows it.
    return next((form for form in forms if len(form.columns) > 1 and _splits_evenly(plain, form)), forms[0])


def _splits_evenly(plain: Path, form: Format) -> bool:
    """Whether the first records have as many fields as there are columns."""
    sizes = (len(fields) for fields in _records(plain, form.separator, form.quoted, 0))
    return all(size == len(form.columns) for size in sizes)


def _records(plain: Path, separator: str, quoted: bool, start: int) -> list[list[str]]:
    """The fields of the first records that are not empty, from this one on."""
    some = islice((raw for _, raw in records(plain, quoted) if raw.strip()), start, BELOW)
    texts = (raw.decode("utf-8-sig", "replace").strip("\r\n") for raw in some)
    return [split_fields(text, separator) if quoted else text.split(separator) for text in texts]


def _names_above_numbers(plain: Path, separator: str, quoted: bool, fields: list[str]) -> bool:
    """Whether a column has numbers in the next records, two or more: then the first record, which has none, is of names."""
    if len(fields) < 2:
        return False
    below = _records(plain, separator, quoted, 1)
    return len(below) > 1 and any(all(map(is_number, column)) for column in zip(*below, strict=False))


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
        if guess and chosen is None and not found and len(present) > 1:
            raise DataError(
                f"{path}: which column is the class? It has: {', '.join(present)}; "
                "pass label=NAME (--label NAME), and text=NAME (--text NAME)"
            )
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


PIECE = 1 << 15  # documents at a time


class OtherDialect(Exception):
    """The file is of another dialect than its first piece showed; read it anew with this one."""

    def __init__(self, dialect: Dialect):
        self.dialect = dialect


@dataclass
class LabelledText:
    """The file's documents, piece by piece: a column `text` (several joined by a space), and `label` if there is one. `text`,
    `label`: columns by name, or by number from 1; label "": there is none. Empty lines of a table are skipped; in a file
    without labels, an empty line is an empty document. `notes` are complete once a piece is there."""

    path: Path
    text: Chosen | Sequence[Chosen] | None = None
    label: Chosen | None = None
    dialect: Dialect | None = None  # None: what the first piece shows
    notes: tuple[str, ...] = ()  # what was assumed
    columns: JSON | None = None  # {"text": [names], "label": name or None}, once a piece is there

    def __iter__(self) -> Iterator[pl.DataFrame]:
        path = self.path
        if not path.is_file():
            raise DataError(
                f"{path} is no file; give text as .csv, .tsv, .jsonl or .parquet (also .gz, .zst); `predict` takes - for lines"
            )
        if path.stat().st_size == 0:
            raise DataError(f"{path} is empty (0 bytes); give labelled text, a document per line")
        with self._opened() as (frame, names, header):
            label, texts = choose_columns(path, names, header, self.text, self.label)
            if label is None and self.label != "" and len(names) > len(texts):
                present = ", ".join(names)
                self.notes += (f"{path}: which column is the class? It has: {present}; pass label=NAME (--label NAME)",)
            self.columns = {"text": texts, "label": label}
            joined = pl.concat_str(pl.col(texts).cast(pl.String).fill_null(""), separator=" ").alias("text")
            labels = [] if label is None else [_as_text(frame, label).str.strip_chars().replace("", None).alias("label")]
            yield from frame.select(joined, *labels).collect_batches(chunk_size=PIECE, maintain_order=True)

    @contextmanager
    def _opened(self) -> Iterator["Opened"]:
        """The file as a frame, its columns, and whether it has a header."""
        path = self.path
        with open(path, "rb") as file:
            parquet = file.read(4) == b"PAR1" or path.suffix == ".parquet"
        if parquet:
            try:
                frame = pl.scan_parquet(path)
                yield frame, frame.collect_schema().names(), True
            except pl.exceptions.PolarsError as error:
                raise DataError(f"{path} could not be read as Parquet: {error}") from error
            return
        escapes = suffix_of(path) not in (".txt", *JSON_LINES)
        with plain_text(path, None, self.dialect, escapes) as (plain, found):
            try:
                with self._text(plain, found) as opened:
                    yield opened
            except DataError:
                # What the first piece did not show may be further down.
                if self.dialect is None and found.usual and not (other := dialect_of_file(plain, escapes)).usual:
                    raise OtherDialect(other) from None
                raise

    @contextmanager
    def _text(self, plain: Path, dialect: Dialect) -> Iterator["Opened"]:
        path = self.path
        first = first_line(plain)
        if is_json_lines(path, first):
            self.notes = assumed(path, dialect, "")
            with json_lines(path, plain) as opened:
                yield opened
        else:
            form = Format(UNIT, False, ["column_1"], False, False)
            if suffix_of(path) != ".txt":
                form = format_of_text(path, plain, first, self.text, self.label)
            self.notes = assumed(path, dialect, form.separator)
            with _delimited(path, plain, form) as opened:
                yield opened


def _as_text(frame: pl.LazyFrame, label: str) -> pl.Expr:
    """The labels; lists of them (Parquet) as in JSON lines."""
    if isinstance(frame.collect_schema()[label], pl.List | pl.Array):
        return pl.format('["{}"]', pl.col(label).cast(pl.List(pl.String)).list.join('", "'))
    return pl.col(label).cast(pl.String)


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
            wrong = what_is_wrong(raw, form, {})
            if wrong is not None:
                shown = raw.decode("utf-8", "replace").strip("\r\n")[:80]
                remedy = "correct it" if "fields" not in wrong else "quote texts that contain the separator"
                raise DataError(f"{path}, line {number}: {wrong}: {shown!r}; {remedy}") from None
        raise DataError(f"{path} could not be read: {error}") from error
