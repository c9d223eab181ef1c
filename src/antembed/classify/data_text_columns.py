"""The columns of a file of labelled text: whether it has a header, which column is the class, and which are the text."""

from collections.abc import Sequence
from itertools import islice
from pathlib import Path

from antembed.data.data_plain import UNIT, DataError
from antembed.data.delimited import Format, distinct, is_number, records, split_fields

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


def suffix_of(path: Path) -> str:
    """The last suffix that is not .gz or .zst."""
    return next((suffix.lower() for suffix in reversed(path.suffixes) if suffix.lower() not in (".gz", ".zst")), "")


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
