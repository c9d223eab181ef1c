"""Pieces of a table of ratings or events → `Ratings`: ids, numbers, sorted labels; in memory or in the cache.

The columns of a piece are called by their roles: user, item, and rating, weight and time, those that there are.
"""

import hashlib
import unicodedata
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import polars as pl

from antembed.data.cache import CacheEntry, Column, Writer
from antembed.data.delimited import is_time
from antembed.data.text_file import DataError
from antembed.recommend.label_numbers import IdColumn, Irregular

# MERGED Which columns of a table are the user, the item, the rating, its weight and its time.

PIECE = 1 << 20  # rows at a time
LARGEST, SMALLEST = 1e15, 1e-6  # of the largest rating; tried in powers of ten: beyond, squares overflow or are lost
KINDS = {"rating": ("values", np.float32), "weight": ("weights", np.float32), "time": ("times", np.float64)}


@dataclass(frozen=True)
class Ratings:
    """Row n: user users[n] gave item items[n] the rating values[n]. Ids are indices into the sorted labels.

    Implicit: row n is a pair that occurs once here; values are 1, weights[n] is its count, times[n] its last time.
    """

    users: np.ndarray  # (n,) int32
    items: np.ndarray  # (n,) int32
    values: np.ndarray  # (n,) float32
    user_labels: pl.Series
    item_labels: pl.Series
    weights: np.ndarray | None = None  # (n,) float32, of the ratings
    skipped: int = 0  # invalid lines
    complaint: str = ""  # a warning about the first of them
    notes: tuple[str, ...] = ()  # what was assumed of the file, a line each
    implicit: bool = False
    times: np.ndarray | None = None  # (n,) float64: seconds, or any number that grows; None: rows are in order, or not asked

    def __len__(self) -> int:
        return len(self.values)

    @property
    def objects(self) -> tuple[int, int]:
        """The numbers of users and items."""
        return len(self.user_labels), len(self.item_labels)

    @property
    def columns(self) -> tuple[np.ndarray, ...]:
        """users, items, values, and weights if there are any."""
        found = (self.users, self.items, self.values)
        return found if self.weights is None else (*found, self.weights)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the columns."""
        digest = hashlib.sha256()
        for column in self.columns:
            for start in range(0, len(column), PIECE):
                digest.update(np.ascontiguousarray(column[start : start + PIECE]).data)
        return digest.hexdigest()


@dataclass(frozen=True)
class Remarks:
    """What there is to say of a file."""

    skipped: int = 0
    complaint: str = ""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Gathered:
    """All rows, before events are merged."""

    users: np.ndarray
    items: np.ndarray
    labels: tuple[pl.Series, pl.Series]
    numbers: dict[str, np.ndarray]  # by role

    @property
    def times(self) -> np.ndarray | None:
        return self.numbers.get("time")


def collect(
    path: Path,
    pieces: Iterator[pl.DataFrame],
    entry: CacheEntry,
    numeric: list[bool],
    remarks: Remarks = Remarks(),  # noqa: B008 (frozen)
    implicit: bool = False,
) -> Ratings:
    """All pieces. `numeric`: whether labels of users and items that are text are parsed as integers."""
    if implicit:
        return _events(path, pieces, entry, numeric, remarks)
    with entry.writing() as writer:
        found = _gather(path, pieces, writer, numeric)
        check_magnitude(str(path), found.numbers["rating"])
        weights = found.numbers.get("weight")
        if weights is not None and not (weights.min() >= 0 and weights.max() > 0):
            raise DataError(
                f"{path}: weights must be ≥ 0 and not all 0; the smallest is {weights.min()}, the largest {weights.max()}"
            )
        _finish(writer, found.labels, remarks, implicit)
    return _ratings(found.users, found.items, found.numbers["rating"], found.labels, weights, remarks, False, found.times)


def _ratings(
    users: np.ndarray,
    items: np.ndarray,
    values: np.ndarray,
    labels: tuple[pl.Series, pl.Series],
    weights: np.ndarray | None,
    remarks: Remarks,
    implicit: bool,
    times: np.ndarray | None,
) -> Ratings:
    skipped, complaint, notes = remarks.skipped, remarks.complaint, remarks.notes
    return Ratings(users, items, values, *labels, weights, skipped, complaint, notes, implicit, times)


def _gather(path: Path, pieces: Iterator[pl.DataFrame], writer: Writer, numeric: list[bool]) -> _Gathered:
    with ThreadPoolExecutor(2) as pool:
        ids = [writer.column(name, np.int32) for name in ("users", "items")]
        sides = [IdColumn(column, whole) for column, whole in zip(ids, numeric, strict=True)]
        numbers: dict[str, Column] = {}
        for piece in pieces:
            user, item, *rest = (epoch(column) if column.name == "time" else column for column in piece.get_columns())
            if any(column.null_count() for column in (user, item, *rest)) or not all(c.is_finite().all() for c in rest):
                raise Irregular("a row is no rating")
            list(pool.map(IdColumn.add, sides, (user, item)))
            numbers = numbers or {column.name: writer.column(*KINDS[column.name]) for column in rest}
            for part in rest:
                numbers[part.name].append(part.to_numpy())
        if not len(ids[0]):
            raise DataError(f"{path} has no ratings: 0 rows after the header")
        (users, user_labels), (items, item_labels) = (side.finish() for side in sides)
    return _Gathered(users, items, (user_labels, item_labels), {role: column.finish() for role, column in numbers.items()})


def _finish(writer: Writer, labels: tuple[pl.Series, pl.Series], remarks: Remarks, implicit: bool) -> None:
    for side, own in zip(("user", "item"), labels, strict=True):
        writer.labels(side, own)
    about = {"skipped": remarks.skipped, "complaint": remarks.complaint, "notes": remarks.notes, "implicit": implicit}
    writer.done(about)


def _events(path: Path, pieces: Iterator[pl.DataFrame], entry: CacheEntry, numeric: list[bool], remarks: Remarks) -> Ratings:
    """Pairs with their counts: each pair once."""
    found = _gather(path, (_counted(path, piece) for piece in pieces), Writer(None), numeric)
    users, items, weights, times = merged(
        found.users, found.items, found.numbers.get("weight"), found.times, len(found.labels[1])
    )
    arrays = {"users": users, "items": items, "values": np.ones(len(users), np.float32), "weights": weights, "times": times}
    with entry.writing() as writer:
        for name, array in arrays.items():
            column = writer.column(name, array.dtype)
            column.append(array)
            arrays[name] = column.finish()
        _finish(writer, found.labels, remarks, True)
    users, items, values, weights, times = arrays.values()
    return _ratings(users, items, values, found.labels, weights, remarks, True, times)


def _counted(path: Path, piece: pl.DataFrame) -> pl.DataFrame:
    """Ratings as counts of events: 0 is none."""
    if "rating" not in piece.columns:
        return piece
    if "weight" in piece.columns:
        raise DataError(f"{path}: a rating and a weight were given for events, one is the count; pass three columns at most")
    smallest = piece["rating"].min()
    if isinstance(smallest, float):  # None: no rows
        check_counts(str(path), smallest)
    return piece.filter(pl.col("rating").ne_missing(0)).rename({"rating": "weight"})


def check_counts(source: str, smallest: float) -> None:
    if smallest < 0:
        raise DataError(
            f"{source}: counts of events must be ≥ 0, the smallest rating is {smallest}; "
            "remove such rows, or train on ratings (without --implicit)"
        )


def check_magnitude(source: str, ratings: np.ndarray) -> None:
    """Raise if squares of the ratings overflow, or vanish."""
    largest = float(max(ratings.max(), -ratings.min()))
    if largest and not SMALLEST <= largest <= LARGEST:
        raise DataError(
            f"{source}: the largest rating is {largest:.3g} in magnitude, and must be between {SMALLEST:g} and {LARGEST:g}; "
            f"{'divide' if largest > LARGEST else 'multiply'} all ratings by {10.0 ** abs(round(np.log10(largest))):g}"
        )


def merged(
    users: np.ndarray, items: np.ndarray, weights: np.ndarray | None, times: np.ndarray | None, num_items: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Each pair once, in the order of first occurrence: users, items, the sum of its weights (or its count), its last time.

    Without times, the time of a pair is the number of its last row.
    """
    keys = users.astype(np.int64) * num_items + items
    order = np.argsort(keys, kind="stable")
    starts = np.flatnonzero(np.concatenate([[True], np.diff(keys[order]) != 0]))
    sizes = np.diff(np.append(starts, len(order)))
    counts = sizes if weights is None else np.add.reduceat(weights[order].astype(np.float64), starts)
    last = order[starts + sizes - 1] if times is None else np.maximum.reduceat(times[order], starts)
    firsts = order[starts]
    rows = np.argsort(firsts)
    firsts = firsts[rows]
    return users[firsts], items[firsts], counts[rows].astype(np.float32), last[rows].astype(np.float64)


def epoch(times: pl.Series) -> pl.Series:
    """Numbers as they are, dates as seconds since 1970: float64."""
    if times.dtype == pl.String:
        numbers = times.cast(pl.Float64, strict=False)
        if numbers.null_count() == 0:
            return numbers
        try:
            times = times.str.to_datetime(strict=False)
        except pl.exceptions.PolarsError as error:
            raise Irregular("a time is no number and no date") from error
    if times.dtype.is_temporal():
        return times.cast(pl.Datetime("us")).cast(pl.Int64).cast(pl.Float64) / 1e6
    return times.cast(pl.Float64, strict=False)


# Usual names in English, German, French, Spanish and Italian, as `plain_name` writes them.
WORDS = {
    "user": """user uid reviewer customer client buyer shopper visitor member reader listener viewer
               kunde kunden nutzer benutzer kaufer kaeufer besucher mitglied leser horer hoerer
               utilisateur acheteur usager abonne membre lecteur visiteur usuario cliente comprador socio lector visitante
               utente acquirente lettore visitatore""",
    "item": """item iid movie film book song track product article sku asin isbn ean gtin upc business
               artikel produkt buch lied produit livre chanson articulo producto libro pelicula cancion
               articolo prodotto canzone""",
    "rating": """rating ratings score overall star stars starrating userrating bookrating reviewscore grade value
                 bewertung bewertungen wertung sterne note etoiles evaluation puntuacion calificacion valoracion puntaje
                 estrellas nota voto voti valutazione punteggio stelle""",
    "quantity": """qty quantity count counts units plays playcount listens listencount clicks views purchases frequency
                   menge anzahl stuck stueck stuckzahl stueckzahl haufigkeit haeufigkeit quantite qte cantidad unidades
                   quantita pezzi""",
    "time": "timestamp time date datetime ts unixtimestamp unixreviewtime eventtime createdat",
}
ROLES = {word: role for role, words in WORDS.items() for word in words.split()}
# Before or behind a word: user_id, Kundennummer, id_cliente, código de producto.
AFFIXES = ("id", "nr", "no", "num", "number", "code", "key", "nummer", "numero", "codigo", "codigode", "codice")
# Single words of a header that hardly stand in a row of data; of others it takes two.
CERTAIN = {"user", "uid", "customer", "item", "iid", "movie", "product", "asin", "isbn", "rating", "ratings", "score",
           "overall", "stars", "value", *WORDS["time"].split()}  # fmt: skip
REMEDY = "pass --columns USER,ITEM,RATING (columns=[…] in Python), or USER,ITEM for events"
# Names that leave no doubt, and those of files without names.
PLAIN = {
    "user",
    "userid",
    "item",
    "itemid",
    "movieid",
    "rating",
    "ratings",
    "timestamp",
    "time",
    *(f"column{n}" for n in range(1, 6)),
}
UNIX = 1e8  # seconds since 1970: March 1973; no ratings and few counts are as large


@dataclass(frozen=True)
class Columns:
    """Names of columns. Without a rating, rows are events (implicit feedback)."""

    user: str
    item: str
    rating: str | None = None
    weight: str | None = None
    time: str | None = None
    quantities: bool = field(default=False, kw_only=True)  # `rating` says how often, or how many, not how good: rows are events

    @property
    def roles(self) -> dict[str, str]:
        """Role → name, of the columns that there are."""
        found = {"user": self.user, "item": self.item, "rating": self.rating, "weight": self.weight, "time": self.time}
        return {role: name for role, name in found.items() if name is not None}

    def implicit(self, asked: bool) -> bool:
        """Whether rows are events."""
        return asked or self.rating is None or self.quantities

    def note(self, path: Path, present: Sequence[str], implicit: bool, given: bool) -> tuple[str, ...]:
        """A line that says which columns are taken, if their names leave a doubt and none were given; or that rows are events,
        what weighs them, and how to say otherwise."""
        if not self.implicit(implicit):
            unusual = any(plain_name(name) not in PLAIN for name in self.roles.values())
            taken = ", ".join(f"{role} from {name!r}" for role, name in self.roles.items())
            return (f"{path}: {taken}; others with --columns USER,ITEM,RATING",) if unusual and not given else ()
        if self.rating is not None:
            weighed = f"every row is an event (implicit feedback); {self.rating!r} is its quantity q, 1 + ln q its weight"
            other = "--columns USER,ITEM" if implicit else "--columns USER,ITEM, or USER,ITEM,RATING if these are ratings"
            return (f"{path}: {weighed}; to count every row once, pass {other}",)
        others = [name for name in present if name not in self.roles.values()]
        remedy = (
            f"; if one of {', '.join(others)} is the rating, pass --columns USER,ITEM,RATING (columns=[…] in Python)"
            if others
            else ""
        )
        taken = f"users are {self.user!r}, items {self.item!r}"
        return (f"{path}: there is no column of ratings, so every row is an event (implicit feedback); {taken}{remedy}",)


def plain_name(name: str) -> str:
    """Letters and digits alone, in lower case, without accents: "user_id" is userid, "Quantité" quantite."""
    letters = unicodedata.normalize("NFKD", name.casefold())
    return "".join(letter for letter in letters if letter.isalnum())


def role_of(name: str) -> tuple[str, bool] | None:
    """The role that a name of a column usually has, and whether the name alone shows a header; None: it is no usual name."""
    plain = plain_name(name)
    if plain in ROLES:
        return ROLES[plain], plain in CERTAIN
    for affix in AFFIXES:
        for word in (plain.removesuffix(affix), plain.removeprefix(affix)):
            if word != plain and ROLES.get(word) in ("user", "item"):
                return ROLES[word], True
    return None


def is_header(fields: Sequence[str], columns: Sequence[str] | None) -> bool:
    """Whether these are names of columns: usual ones, or one of those given; numbers of columns are no names."""
    given = {name.lower() for name in columns or () if not name.isdecimal()}
    roles = [role for role in map(role_of, fields) if role is not None]
    return len(roles) > 1 or any(certain for _, certain in roles) or any(field.lower() in given for field in fields)


def choose_columns(path: Path, present: list[str], columns: Sequence[str] | None = None, implicit: bool = False) -> Columns:
    """By the names or numbers given (two of them for events), else by usual names, else the first three of a bare file."""
    by_role: dict[str, list[str]] = {role: [] for role in WORDS}
    for name in present:
        if (usual := role_of(name)) is not None:
            by_role[usual[0]].append(name)
    time = next(iter(by_role["time"]), None)
    if columns is not None:
        named = _named(path, present, columns)
        chosen = Columns(*named)
    elif present[0] == "column_1":
        if len(present) < 2:
            raise DataError(f"{path} has 1 column; give users and items, or users, items and ratings")
        chosen = Columns(*present[:3])
    else:
        numbers = by_role["quantity"] if implicit and by_role["quantity"] else by_role["rating"] + by_role["quantity"]
        for role, names in (("user", by_role["user"]), ("item", by_role["item"]), ("rating", numbers)):
            if len(names) > 1 or (role != "rating" and not names):
                which = f", {' or '.join(names)}" if names else ""
                raise DataError(f"{path}: which column is the {role}{which}? It has: {', '.join(present)}; {REMEDY}")
        rating = next(iter(numbers), None)
        chosen = Columns(by_role["user"][0], by_role["item"][0], rating, quantities=rating in by_role["quantity"])
    return chosen if time in chosen.roles.values() else replace(chosen, time=time)


def _named(path: Path, present: list[str], columns: Sequence[str]) -> list[str]:
    if len(columns) not in (2, 3, 4):
        raise DataError(
            "give two columns, user and item, for events; three, user, item and rating; or four with a weight; "
            f"got {len(columns)}: {', '.join(columns)}"
        )
    named = [present[int(name) - 1] if name.isdecimal() and 1 <= int(name) <= len(present) else name for name in columns]
    missing = [name for name in named if name not in present]
    if missing:
        raise DataError(f"{path} has no column {missing[0]!r}; it has: {', '.join(present)}")
    if len(set(named)) != len(named):
        raise DataError(f"columns must differ, got {', '.join(named)}")
    return named


def check_time(path: Path, chosen: Columns, head: pl.DataFrame, named: bool, implicit: bool) -> Columns:
    """Of a file without a header, find the time in its first rows. `named`: by the caller; `implicit`: rows are events."""
    if chosen.rating is not None and not named and len(head.columns) == 3 and looks_like_time(head[chosen.rating]):
        if not implicit:
            raise DataError(
                f"{path}: the third column looks like a time ({head[chosen.rating][0]}): "
                "pass --columns 1,2 for events, or 1,2,3 for ratings"
            )
        return Columns(chosen.user, chosen.item, time=chosen.rating)
    others = [name for name in head.columns if name not in chosen.roles.values()]
    return replace(chosen, time=next((name for name in others if looks_like_time(head[name])), None))


def looks_like_time(texts: pl.Series) -> bool:
    """Whether all are seconds since 1970, or dates."""
    if not len(texts) or texts.null_count():
        return False
    numbers = texts.cast(pl.Float64, strict=False)
    if numbers.null_count():
        return all(map(is_time, texts))
    return bool((numbers > UNIX).all())
