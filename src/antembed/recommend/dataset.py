"""The data of a run on ratings: read once, cut into parts, and the labels of its rows."""

from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import polars as pl
import torch

from antembed.recommend.ratings_table import Ratings
from antembed.recommend.seen import Seen, popularity_of, write_popularity
from antembed.tables.model_folder import RATINGS
from antembed.tables.row_labels import LABELLED, find, write_labels
from antembed.train.examples import Examples
from antembed.train.splits import split
from antembed.train.task import NONE, Splits

CHUNK = 1 << 20  # ratings


@dataclass
class RatingsSplits(Splits):
    """users, items, ratings (and weights) of each part; the labels of all users and items."""

    train: Examples = NONE
    validation: Examples = NONE
    test: Examples = NONE
    labels: dict[str, pl.Series] = field(default_factory=lambda: dict.fromkeys(LABELLED, pl.Series("label", [], pl.String)))
    ratings: Ratings | None = None  # None: a finished run whose data are not at hand, or a stream
    item_counts: np.ndarray | None = None  # ratings of each item, where a stream has counted them
    mean: float = 0.0  # of the training ratings
    deviation: float = 1.0  # their standard deviation
    scale: tuple[float, float] = (float("-inf"), float("inf"))  # their smallest and largest

    @property
    def num_embeddings(self) -> tuple[int, int]:
        return len(self.labels["users"]), len(self.labels["items"])

    @property
    def counts(self) -> list[np.ndarray]:
        """How many training ratings each user and item has."""
        found = [np.zeros(V, np.int64) for V in self.num_embeddings]
        for start in range(0, len(self.train), CHUNK):  # no copy of all ratings
            for counts, ids in zip(found, self.train.columns, strict=False):
                counts += np.bincount(ids[self.train.rows[start : start + CHUNK]], minlength=len(counts))
        return found

    @property
    def count(self) -> int:
        return 0 if self.ratings is None else len(self.ratings)

    @cached_property
    def digest(self) -> str:
        return "" if self.ratings is None else self.ratings.digest

    def save(self, folder: Path) -> None:
        """The labels in the order of the rows, what users have rated, and how often items were."""
        write_labels(folder, self.labels)
        if self.item_counts is not None:
            write_popularity(folder, popularity_of(self.item_counts))
        if self.ratings is not None and not (folder / RATINGS).exists():
            users, items, values, *weights = self.ratings.columns
            trained = np.full(len(values), np.nan, np.float32)
            trained[self.train.rows] = values[self.train.rows]
            Seen.of(users, items, *self.num_embeddings, trained, *weights).save(folder)
            write_popularity(folder, popularity_of(np.bincount(items, minlength=self.num_embeddings[1])))


def columns_of(part: Examples) -> tuple[np.ndarray, ...]:
    """users, items, ratings and maybe weights of a part."""
    return tuple(column.cpu().numpy() for column in part[:])


def seen_of(ratings: Ratings, users: pl.Series, items: pl.Series) -> Seen:
    """What users have rated, as rows of tables with these labels; what they lack is left out. All were learned: a stream."""
    rows, which = find(users, ratings.user_labels)[ratings.users], find(items, ratings.item_labels)[ratings.items]
    both = (rows >= 0) & (which >= 0)
    weights = None if ratings.weights is None else ratings.weights[both]
    return Seen.of(rows[both], which[both], len(users), len(items), ratings.values[both], weights)


def cut(ratings: Ratings, kind: str, seed: int, device: str = "cpu", threads: int | None = 1) -> RatingsSplits:
    """A seeded split of this kind, as "80/10/10"; all ratings of a pair are in one part."""
    rows = split(len(ratings), kind, seed)
    if (first := first_copies(ratings.users, ratings.items, len(ratings.item_labels))) is None:
        return make_splits(ratings, rows, device, threads)
    splits = make_splits(ratings, kept_together(rows, first), device, threads)
    again = np.flatnonzero(first != np.arange(len(first)))
    same = int((ratings.values[again] == ratings.values[first[again]]).sum())
    said = f"{len(again)} of {len(ratings)} ratings repeat a user and item, {same} of them with the same rating"
    return replace(splits, complaints=(*splits.complaints, f"{said}; all of a pair are in the same part of the split"))


def first_copies(users: np.ndarray, items: np.ndarray, num_items: int) -> np.ndarray | None:
    """For each row, the first row of the same user and item; None where no pair is repeated."""
    pairs = users.astype(np.int64) * num_items + items
    ordered = np.sort(pairs)
    if not (ordered[1:] == ordered[:-1]).any():
        return None
    _, first, number = np.unique(pairs, return_index=True, return_inverse=True)
    return first[number]


def kept_together(parts: dict[str, np.ndarray], first: np.ndarray) -> dict[str, np.ndarray]:
    """The same parts, but every row in the part of its first copy; the order of rows stays."""
    order = np.concatenate(list(parts.values()))
    belongs = np.empty(len(order), np.int8)
    belongs[order] = np.repeat(np.arange(len(parts)), [len(rows) for rows in parts.values()])
    belongs = belongs[first]
    found = {name: order[belongs[order] == number] for number, name in enumerate(parts)}
    for name, rows in parts.items():
        if len(rows) and not len(found[name]):
            raise ValueError(
                f"{len(order)} ratings of {len(np.unique(first))} different pairs are too few to split: all copies of a pair "
                f"stay together, and {name} has none left; give more pairs"
            )
    return found


def all_for_training(ratings: Ratings, device: str = "cpu", threads: int | None = None) -> RatingsSplits:
    """No validation and no test data."""
    none = np.empty(0, np.int32)
    rows = {"train": np.arange(len(ratings), dtype=np.int32), "validation": none, "test": none}
    return make_splits(ratings, rows, device, threads)


def make_splits(ratings: Ratings, rows: dict[str, np.ndarray], device: str, threads: int | None) -> RatingsSplits:
    """The parts that have these rows."""
    train, validation, test = (Examples(ratings.columns, rows[n], device, threads) for n in ("train", "validation", "test"))
    values = torch.from_numpy(ratings.values[rows["train"]])
    labels = {"users": ratings.user_labels, "items": ratings.item_labels}
    complaints = ratings.notes
    if ratings.skipped:
        complaints += (f"skipped {ratings.skipped} rows that are no ratings; the first: {ratings.complaint}",)
    found = RatingsSplits(train, validation, test, complaints=complaints, labels=labels, ratings=ratings)
    mean, deviation = float(values.mean()), float(values.double().std(correction=0)) or 1.0
    return replace(found, mean=mean, deviation=deviation, scale=(float(values.min()), float(values.max())))
