"""What the anchors of a run on ratings stand for: its items by anchor, their genres, its largest weights, and rows of zeros."""

from collections import Counter
from pathlib import Path

import numpy as np
import polars as pl

from antembed.data.download import find_data
from antembed.data.explain_words import contributions
from antembed.data.text_file import DataError
from antembed.files import JSON
from antembed.recommend.seen import Seen
from antembed.tables.model_folder import check_files
from antembed.tables.row_labels import find, read_labels
from antembed.tables.save import load_table

GENRES = "|"  # between the genres of an item


def read_items(path: Path) -> pl.DataFrame:
    """label, title, genres (a list) from MovieLens movies.dat (which is Latin-1), or a delimited file of item, title and maybe
    genres."""
    if not path.is_file():
        raise DataError(f"{path} is no file; give the items, one a line: label, title, genres")
    raw = path.read_bytes()
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        text = raw.decode("latin-1")
    lines = [line for line in text.splitlines() if line.strip()]
    separator = next((s for s in ("::", "\t", ",", ";") if lines and s in lines[0]), None)
    if separator is None:
        raise DataError(
            f"{path}: no separator found in its first line; label, title and genres are separated by '::', a tab or a comma"
        )
    fields = [line.split(separator) for line in lines]
    # A title may hold the separator: the label is first, the genres last.
    rows = [(f[0], separator.join(f[1:-1]) if len(f) > 2 else f[1], f[-1].split(GENRES) if len(f) > 2 else []) for f in fields]
    return pl.DataFrame(rows, schema={"label": pl.String, "title": pl.String, "genres": pl.List(pl.String)}, orient="row")


def explain_items(folder: Path, top: int, items: Path | None) -> tuple[JSON, list[str]]:
    """→ anchors (their items, the commonest genre and its share), purity over all, largest weights, rows that are all zero; and
    the same as lines."""
    check_files(folder, "items.ant")
    users, labels = read_labels(folder).values()
    titles, genres = _described(labels, items)
    parts = contributions(load_table(folder / "items.ant"))
    alive = np.asarray(parts.any(1))
    home = np.where(alive, parts.argmax(1), -1)
    groups = {k: np.flatnonzero(home == k) for k in np.unique(home[alive]).tolist()}
    anchors = [_anchor(k, own, parts[:, k], titles, genres, top) for k, own in groups.items()]
    pure = [(anchor["items"], anchor["purity"]) for anchor in anchors if anchor["purity"] is not None]
    order, K = np.argsort(-parts, axis=None)[:top], parts.shape[1]
    found: JSON = {
        "anchors": sorted(anchors, key=lambda anchor: -anchor["items"]),
        "purity": round(sum(n * p for n, p in pure) / sum(n for n, _ in pure), 3) if pure else None,
        "largest": [{"item": titles[i // K], "anchor": int(i % K), "part": float(parts.flat[i])} for i in order],
        "zero_rows": zero_rows(Seen.read(folder, len(users), len(labels)), alive),
    }
    return found, _lines(found)


def _described(labels: pl.Series, items: Path | None) -> tuple[list[str], list[list[str]]]:
    """A title and genres for each item; its label and none where nothing is known."""
    titles: list[str] = labels.cast(pl.String).to_list()
    genres: list[list[str]] = [[] for _ in titles]
    if items is not None:
        known = read_items(find_data(items))
        for row, title, kinds in zip(find(labels, known["label"]), known["title"], known["genres"].to_list(), strict=True):
            if row >= 0:
                titles[row], genres[row] = title, kinds
    return titles, genres


def _anchor(k: int, own: np.ndarray, part: np.ndarray, titles: list[str], genres: list[list[str]], top: int) -> JSON:
    counts = Counter(genre for item in own for genre in set(genres[item]))
    genre, n = counts.most_common(1)[0] if counts else (None, 0)
    known = sum(bool(genres[item]) for item in own)
    best, purity = own[np.argsort(-part[own])][:top], round(n / known, 3) if known else None
    return {"anchor": k, "items": len(own), "genre": genre, "purity": purity, "best": [titles[item] for item in best]}


def zero_rows(seen: Seen | None, alive: np.ndarray) -> JSON:
    """How many items are left with their bias alone, and how often they were rated, if the folder knows."""
    found: JSON = {"count": int((~alive).sum()), "of": len(alive)}
    if seen is not None:
        counts = np.bincount(seen.items, minlength=len(alive))
        found["median_ratings"] = float(np.median(counts[~alive])) if (~alive).any() else None
        found["median_ratings_of_the_others"] = float(np.median(counts[alive])) if alive.any() else None
        found["share_rated_once"] = round(float((counts[~alive] == 1).mean()), 3) if (~alive).any() else None
    return found


def _lines(found: JSON) -> list[str]:
    lines = []
    for anchor in found["anchors"]:
        genre = f"{anchor['genre']} {anchor['purity']:.0%}" if anchor["genre"] else ""
        lines += [f"anchor {anchor['anchor']}: {anchor['items']} items {genre}", f"    {' · '.join(anchor['best'])}"]
    if found["purity"] is not None:
        lines.append(f"purity, all anchors            {found['purity']:.1%}")
    zero = ", ".join(f"{name} {value}" for name, value in found["zero_rows"].items())
    return [*lines, f"items without a vector         {zero}"]
