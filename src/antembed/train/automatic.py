"""What happens without options: the solver, the widths and the penalties that suit the data, by a short search.

A task with an entry in AUTOMATIC is searched if no option was given that belongs to one solver. The search ends in options, so
the run that follows is an ordinary one, and its config.json says what was found. Searches are cached (search_cache.py).
"""

from typing import Protocol

from antembed.classify.search import SearchText
from antembed.files import JSON
from antembed.recommend.search import SearchEvents, SearchRatings
from antembed.train.config import TaskConfig
from antembed.train.options import Options
from antembed.train.search_cache import Report, silent
from antembed.train.task import Splits


class Automatic(Protocol):
    """The search of a task, where its config's `to_search` leaves the choice to it."""

    def __call__(self, config: TaskConfig, given: Options, splits: Splits, report: Report) -> JSON:
        """Options that were found, to be added to those given."""


AUTOMATIC: dict[str, Automatic] = {
    "recommend": SearchRatings(),
    "recommend-events": SearchEvents(),
    "classify": SearchText(),
    "classify-ngrams": SearchText(),
}

__all__ = ["AUTOMATIC", "Automatic", "Report", "silent"]
