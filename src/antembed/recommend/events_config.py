"""The config of a run on events. The defaults suit sequences of some ten events a user; a search finds better ones."""

from collections.abc import Sequence
from typing import ClassVar, Literal

from antembed.files import JSON
from antembed.recommend.config import RatingsConfig, RatingsInput, read_input
from antembed.train.config import CoordinateDescentConfig, PenaltyConfig
from antembed.train.config_base import Number, option
from antembed.train.options import Options


class EventsInput(RatingsInput):
    """The events."""

    data: str = option("", "Events: user and item (and time), a count instead of a rating, or lines `user item item …`.")
    implicit: bool = option(True, "Ratings are quantities of events.")
    split: Literal["last", "time"] = option(
        "last", "Test on the last event of each user and validate on the last but one, or on the last tenths by time."
    )


class EventsPenalties(PenaltyConfig):
    ridge: Number = option(0.3, "½·ridge·‖e‖² on every vector e = t·A.", ge=0)
    ridge_per_rating: Number = option(0.1, "And as much again for each event of the object.", ge=0)
    bias_ridge: Number = option(1.0, "The same on every bias.", ge=0)


EVENT_SETTINGS = {"ridge", "ridge_per_rating", "bias_ridge", "unobserved_weight", "l0_penalty", "epochs", "basis"}


class EventsDescent(CoordinateDescentConfig):
    """Coordinate descent in which every pair of a user and an item counts a little, as if it were 0."""

    penalties: EventsPenalties = EventsPenalties()
    unobserved_weight: Number = option(
        0.0, "Weight of a pair without an event, beside 1 for one with an event; 0: by how many pairs there are.", ge=0
    )


class EventsConfig(RatingsConfig):
    """Learn users' and items' tables from events (clicks, purchases, listens), and write them as small files.

    `antembed train recommend` does this by itself where a file has no ratings.
    """

    task: Literal["recommend-events"] = "recommend-events"  # type: ignore[assignment]
    input: EventsInput = EventsInput()
    solver: EventsDescent = EventsDescent()
    usage: ClassVar[Sequence[str]] = ("events.csv --out runs/shop", "plays.csv --columns listener,song,plays --budget 1MB")

    @classmethod
    def defaults(cls, examples: int, given: Options, objects: int = 0) -> JSON:
        return {}

    @classmethod
    def to_search(cls, given: Options) -> tuple[str, Options] | None:
        if given.get("embedding", "anchor") not in ("anchor", "full") or EVENT_SETTINGS & set(given):
            return None
        return cls.name(), {option: value for option, value in given.items() if option != "solver"}

    def read(self) -> str:
        read_input(self.input)
        return self.task
