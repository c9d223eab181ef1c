"""Which columns of a table are the user, the item, the rating, its weight and its time: by usual names, or as given."""

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import polars as pl

from antembed.data.delimited import is_time
from antembed.data.text_file import DataError

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
PLAIN = {*"user userid item itemid movieid rating ratings timestamp time".split(), *(f"column{n}" for n in range(1, 6))}  # noqa: SIM905
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
        return {role: name for role, name in vars(self).items() if isinstance(name, str)}

    def implicit(self, asked: bool) -> bool:
        """Whether rows are events."""
        return asked or self.rating is None or self.quantities

    def note(self, path: Path, present: Sequence[str], implicit: bool, given: bool) -> tuple[str, ...]:
        """A line that says which columns are taken, if that is in doubt and none were given; or that rows are events."""
        if not self.implicit(implicit):
            unusual = any(plain_name(name) not in PLAIN for name in self.roles.values())
            taken = ", ".join(f"{role} from {name!r}" for role, name in self.roles.items())
            return (f"{path}: {taken}; others with --columns USER,ITEM,RATING",) if unusual and not given else ()
        if self.rating is not None:
            weighed = f"every row is an event (implicit feedback); {self.rating!r} is its quantity q, 1 + ln q its weight"
            other = "--columns USER,ITEM" if implicit else "--columns USER,ITEM, or USER,ITEM,RATING if these are ratings"
            return (f"{path}: {weighed}; to count every row once, pass {other}",)
        taken = f"users are {self.user!r}, items {self.item!r}"
        if others := ", ".join(name for name in present if name not in self.roles.values()):
            taken += f"; if one of {others} is the rating, pass --columns USER,ITEM,RATING (columns=[…] in Python)"
        return (f"{path}: there is no column of ratings, so every row is an event (implicit feedback); {taken}",)


def plain_name(name: str) -> str:
    """Letters and digits alone, in lower case, without accents: "user_id" is userid, "Quantité" quantite."""
    return "".join(letter for letter in unicodedata.normalize("NFKD", name.casefold()) if letter.isalnum())


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
        chosen = Columns(*_named(path, present, columns))
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
