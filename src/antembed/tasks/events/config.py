"""The config of a run on events. The defaults suit sequences of some ten events a user; a search finds better ones."""

from typing import Literal

from antembed.config import CoordinateDescentConfig, option
from antembed.config.base import Number
from antembed.config.solvers import PenaltyConfig
from antembed.tasks.ratings.config import RatingsConfig, RatingsInput


class EventsInput(RatingsInput):
    """The events."""

    data: str = option("", "Events: user and item (and time), a count instead of a rating, or lines `user item item …`.")
    implicit: bool = option(True, "Ratings are counts of events.")
    split: Literal["last", "time"] = option(
        "last", "Test on the last event of each user and validate on the last but one, or on the last tenths by time."
    )


class EventsPenalties(PenaltyConfig):
    ridge: Number = option(0.3, "½·ridge·‖e‖² on every vector e = t·A.", ge=0)
    ridge_per_rating: Number = option(0.1, "And as much again for each event of the object.", ge=0)
    bias_ridge: Number = option(1.0, "The same on every bias.", ge=0)


UNOBSERVED = 20  # all pairs without an event weigh this much more than all events


def likely_weight(events: int, users: int, items: int) -> float:
    """The weight of a pair without an event that suits most data."""
    return float(f"{min(UNOBSERVED * events / max(users * items, 1), 1.0):.4g}")


class EventsDescent(CoordinateDescentConfig):
    """Coordinate descent in which every pair of a user and an item counts a little, as if it were 0."""

    penalties: EventsPenalties = EventsPenalties()
    unobserved_weight: Number = option(
        0.0, "Weight of a pair without an event, beside 1 for one with an event; 0: by how many pairs there are.", ge=0
    )


class EventsConfig(RatingsConfig):
    """A run on events."""

    task: Literal["recommend-events"] = "recommend-events"  # type: ignore[assignment]
    input: EventsInput = EventsInput()
    solver: EventsDescent = EventsDescent()
