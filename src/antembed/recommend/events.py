"""Events → users' and items' tables: rank the items that a user will choose next."""

from dataclasses import replace
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from antembed.data.text_file import DataError
from antembed.files import JSON
from antembed.recommend.config import EventsConfig, RatingsConfig, read_input
from antembed.recommend.dataset import RatingsSplits, make_splits
from antembed.recommend.in_memory import as_events
from antembed.recommend.model import MatrixFactorization
from antembed.recommend.ranking import TOP, held_items, list_metrics, popular
from antembed.recommend.ratings_table import Ratings as RatingsData
from antembed.recommend.task import RatingsBase
from antembed.train.task import Batch, Metric, Metrics, Part

FEWEST = 3  # events of a user from whom two are held out


class Events(RatingsBase):
    """Users' and items' tables from events."""

    name: ClassVar[str] = "recommend-events"
    Config = EventsConfig
    metric: ClassVar[Metric] = Metric("miss", f"1 − NDCG@{TOP}", f"ndcg@{TOP}")
    evaluates_fast: ClassVar[bool] = False
    examples: ClassVar[str] = "events"

    def load(self, config: RatingsConfig) -> RatingsSplits:
        return self.split(config, read_input(config.input))

    def split(self, config: RatingsConfig, ratings: RatingsData, *, test: bool = True) -> RatingsSplits:
        """The parts of events in memory. Without `test`, nothing is held out but for validation."""
        events = self.weighted(ratings)
        rows = split_events(events, config.input.split)
        if not test:
            rows = {
                "train": np.union1d(rows["train"], rows["validation"]),
                "validation": rows["test"],
                "test": rows["test"][:0],
            }
        return make_splits(events, rows, "cpu", config.machine.threads)

    @staticmethod
    def weighted(ratings: RatingsData) -> RatingsData:
        """Events whose weights grow slowly with their counts: the hundredth says less than the first."""
        events = as_events(ratings)
        assert events.weights is not None
        return replace(events, weights=(1 + np.log(np.maximum(events.weights, 1))).astype(np.float32))

    def loss(self, model: MatrixFactorization, batch: Batch) -> Tensor:
        raise TypeError("events are trained by coordinate descent, on all pairs at once")

    @torch.no_grad()
    def evaluate(self, model: MatrixFactorization, splits: RatingsSplits, part: Part) -> Metrics:
        """Lists of the best items that a user has not chosen before, against those that were held out."""
        _, items = splits.num_embeddings
        everything = torch.arange(items)
        vectors, bias = model.items(everything).numpy(), np.zeros(items, np.float32)
        if model.item_bias is not None:
            bias = model.item_bias(everything)[:, 0].numpy()
        held = held_items(splits, part)
        found = list_metrics(lambda users: model.users(torch.from_numpy(users)).numpy(), vectors, bias, held)
        return {"loss": 1 - found[f"ndcg@{TOP}"], "miss": 1 - found[f"ndcg@{TOP}"], **found, "examples": len(held.users)}

    def baselines(self, splits: RatingsSplits) -> dict[str, float]:
        return {"the most popular items": popular(splits, "test")[f"ndcg@{TOP}"]} if len(splits.test) else {}

    def facts(self, splits: RatingsSplits, model: MatrixFactorization) -> JSON:
        return super().facts(splits, model) | {"events": True}


def split_events(events: RatingsData, kind: str) -> dict[str, np.ndarray]:
    """Rows of each part: the last event of each user for the test and the last but one for validation, or the last by time."""
    n = len(events)
    times = np.arange(n, dtype=np.float64) if events.times is None else events.times
    if kind == "time":
        order = np.argsort(times, kind="stable")
        a, b = round(0.8 * n), round(0.9 * n)
        parts = {"train": order[:a], "validation": order[a:b], "test": order[b:]}
    else:
        order = np.lexsort((times, events.users))
        users = events.users[order]
        behind = np.searchsorted(users, users, side="right") - np.arange(n)  # 1: the last event of its user
        enough = np.bincount(users)[users] >= FEWEST
        held = np.where(enough, np.minimum(behind, 3), 3)
        parts = {"train": order[held == 3], "validation": order[held == 2], "test": order[held == 1]}
    if not all(len(rows) for rows in parts.values()):
        raise DataError(
            f"{n} events of {len(events.user_labels)} users are too few to hold some out: users need {FEWEST} or more; "
            "give more, or use --split time"
        )
    return {name: np.sort(rows).astype(np.int32) for name, rows in parts.items()}
