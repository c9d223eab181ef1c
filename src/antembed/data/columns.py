"""Which columns of a table are the user, the item, the rating, its weight and its time."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import polars as pl

from antembed.data.text import DataError, is_time

NAMES = {
    "user": ("user", "userid", "user_id", "uid", "reviewerid", "reviewer_id", "customer", "customer_id"),
    "item": ("item", "itemid", "item_id", "iid", "movie", "movieid", "movie_id", "asin", "product", "productid",
             "product_id", "book_id", "isbn", "song_id"),
    "rating": ("rating", "ratings", "score", "overall", "stars", "value"),
}  # fmt: skip
TIMES = ("timestamp", "time", "date", "datetime", "ts", "unix_timestamp", "unixreviewtime", "event_time", "created_at")
KNOWN = {name for names in (*NAMES.values(), TIMES) for name in names}
UNIX = 1e8  # seconds since 1970: March 1973; no ratings and few counts are as large


@dataclass(frozen=True)
class Columns:
    """Names of columns. Without a rating, rows are events (implicit feedback)."""

    user: str
    item: str
    rating: str | None = None
    weight: str | None = None
    time: str | None = None

    @property
    def roles(self) -> dict[str, str]:
        """Role → name, of the columns that there are."""
        found = {"user": self.user, "item": self.item, "rating": self.rating, "weight": self.weight, "time": self.time}
        return {role: name for role, name in found.items() if name is not None}

    def note(self, path: Path, present: Sequence[str]) -> tuple[str, ...]:
        """A line that says that rows are taken for events, and how to say otherwise."""
        if self.rating is not None:
            return ()
        others = [name for name in present if name not in self.roles.values()]
        remedy = (
            f"; if one of {', '.join(others)} is the rating, pass --columns USER,ITEM,RATING (columns=[…] in Python)"
            if others
            else ""
        )
        taken = f"users are {self.user!r}, items {self.item!r}"
        return (f"{path}: there is no column of ratings, so every row is an event (implicit feedback); {taken}{remedy}",)


def names_in(columns: Sequence[str] | None) -> set[str]:
    """Names that show that a line is a header: the usual ones and those given; numbers of columns are no names."""
    return KNOWN | {name.lower() for name in columns or () if not name.isdecimal()}


def choose_columns(path: Path, present: list[str], columns: Sequence[str] | None = None) -> Columns:
    """By the names or numbers given (two of them for events), else by usual names, else the first three of a bare file."""
    time = next((name for name in present if name.lower() in TIMES), None)
    if columns is not None:
        named = _named(path, present, columns)
        chosen = Columns(*named)
    elif present[0] == "column_1":
        if len(present) < 2:
            raise DataError(f"{path} has 1 column; give users and items, or users, items and ratings")
        chosen = Columns(*present[:3])
    else:
        found = {role: next((name for name in present if name.lower() in usual), None) for role, usual in NAMES.items()}
        for role in ("user", "item"):
            if found[role] is None:
                raise DataError(
                    f"{path}: which column is the {role}? It has: {', '.join(present)}; "
                    "pass --columns USER,ITEM,RATING (columns=[…] in Python), or USER,ITEM for events"
                )
        chosen = Columns(str(found["user"]), str(found["item"]), found["rating"])
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
