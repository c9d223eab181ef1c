"""What the anchors of a run have come to mean: its items by anchor, their genres, its largest weights, and rows of nothing."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from antembed.data.labels import find
from antembed.data.text import DataError
from antembed.pipelines.recommend import read, settings_of
from antembed.serving import Table, load_table
from antembed.training import RunFolder

GENRES = "|"  # between the genres of an item


def read_items(path: Path) -> pl.DataFrame:
    """label, title, genres (a list) from MovieLens movies.dat, or a delimited file of item, title and maybe genres.

    Text that is not UTF-8 is taken for Latin-1, as MovieLens has it.
    """
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


def contributions(table: Table) -> np.ndarray:
    """t_k·‖a_k‖: how much each anchor has part in each object's vector, (V, K)."""
    if table.anchors is None:
        raise ValueError("full tables have no anchors to explain; train with --embedding anchor")
    return table.rows(np.arange(len(table))) * np.linalg.norm(table.anchors, axis=1)


def explain(run: str | Path, items_file: Path | None = None, top: int = 5) -> dict[str, Any]:
    """→ anchors (their items, the commonest genre and its share), purity over all, largest weights, rows that are all zero."""
    folder = RunFolder(run)
    folder.must_be_finished()
    table = load_table(folder.path / "items.ant")
    labels = pl.read_parquet(folder.path / "items.labels.parquet").to_series()
    titles: list[str] = labels.cast(pl.String).to_list()
    genres: list[list[str]] = [[] for _ in titles]
    if items_file is not None:
        about = read_items(items_file)
        told = about["title"].to_list(), about["genres"].to_list()
        for place, title, kinds in zip(find(labels, about["label"]), *told, strict=True):
            if place >= 0:
                titles[place], genres[place] = title, kinds
    parts = contributions(table)
    alive = np.asarray(parts.any(1))
    home = np.where(alive, parts.argmax(1), -1)
    anchors: list[dict[str, Any]] = []
    for k in range(parts.shape[1]):
        mine = np.flatnonzero(home == k)
        if not len(mine):
            continue
        counts = Counter(genre for item in mine for genre in set(genres[item]))
        genre, n = counts.most_common(1)[0] if counts else (None, 0)
        known = sum(bool(genres[item]) for item in mine)
        best = mine[np.argsort(-parts[mine, k])][:top]
        anchors.append(
            {
                "anchor": k,
                "items": len(mine),
                "genre": genre,
                "purity": round(n / known, 3) if known else None,
                "best": [titles[item] for item in best],
            }
        )
    pure = [(a["items"], a["purity"]) for a in anchors if a["purity"] is not None]
    order = np.argsort(-parts, axis=None)[:top]
    return {
        "anchors": sorted(anchors, key=lambda anchor: -anchor["items"]),
        "purity": round(sum(n * p for n, p in pure) / sum(n for n, _ in pure), 3) if pure else None,
        "largest": [
            {"item": titles[i // parts.shape[1]], "anchor": int(i % parts.shape[1]), "part": float(parts.flat[i])}
            for i in order
        ],
        "zero_rows": zero_rows(folder, alive),
    }


def zero_rows(folder: RunFolder, alive: np.ndarray) -> dict[str, Any]:
    """How many items are left with their bias alone, and how often they were rated, if the data are still there."""
    told: dict[str, Any] = {"count": int((~alive).sum()), "of": len(alive)}
    settings, _ = settings_of(folder)
    if Path(settings.data).is_file():
        counts = np.bincount(read(settings).items, minlength=len(alive))
        told["median_ratings"] = float(np.median(counts[~alive])) if (~alive).any() else None
        told["median_ratings_of_the_others"] = float(np.median(counts[alive])) if alive.any() else None
        told["share_rated_once"] = round(float((counts[~alive] == 1).mean()), 3) if (~alive).any() else None
    return told
