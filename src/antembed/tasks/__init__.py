"""One folder a task: config, data → splits, model, loss, metrics. One line in TASKS makes it known everywhere.

A task needs torch; its config does not, and is enough for the options of the command line. So tasks are imported on first use.
"""

from collections.abc import Iterator, MutableMapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from antembed.config import TaskConfig
from antembed.tasks.events.config import EventsConfig
from antembed.tasks.language.config import LanguageConfig
from antembed.tasks.ngrams.config import NgramConfig
from antembed.tasks.ratings.config import RatingsConfig
from antembed.tasks.text.config import TextConfig

if TYPE_CHECKING:
    from antembed.tasks.base import Metric, Metrics, Part, Source, Splits, Task
    from antembed.tasks.events.task import Events
    from antembed.tasks.language.task import Language
    from antembed.tasks.model import EmbeddingModel, TaskModel
    from antembed.tasks.ngrams.task import HashedNgramTask
    from antembed.tasks.ratings.task import Ratings
    from antembed.tasks.text.task import Text

_HOMES = {
    **dict.fromkeys(("Metric", "Metrics", "Part", "Source", "Splits", "Task"), "base"),
    **dict.fromkeys(("EmbeddingModel", "TaskModel"), "model"),
    "Events": "events.task",
    "HashedNgramTask": "ngrams.task",
    "Language": "language.task",
    "Ratings": "ratings.task",
    "Text": "text.task",
}


class Tasks(MutableMapping[str, "Task"]):
    """Tasks by name. `known`: the class, by its name in `_HOMES`, and the config of each."""

    def __init__(self, known: dict[str, type[TaskConfig]]):
        self.classes = {config.name(): name for name, config in known.items()}
        self.configs = {config.name(): config for config in known.values()}
        self.loaded: dict[str, Task] = {}

    def __getitem__(self, name: str) -> "Task":
        if name not in self.loaded:
            self.loaded[name] = __getattr__(self.classes[name])()
        return self.loaded[name]

    def __setitem__(self, name: str, task: "Task") -> None:
        self.loaded[name], self.configs[name] = task, task.Config

    def __delitem__(self, name: str) -> None:
        del self.configs[name]
        self.loaded.pop(name, None)

    def __iter__(self) -> Iterator[str]:
        return iter(self.configs)

    def __len__(self) -> int:
        return len(self.configs)

    def __contains__(self, name: object) -> bool:
        return name in self.configs


TASKS = Tasks(
    {
        "Ratings": RatingsConfig,
        "Events": EventsConfig,
        "Text": TextConfig,
        "HashedNgramTask": NgramConfig,
        "Language": LanguageConfig,
    }
)

__all__ = [
    "TASKS",
    "EmbeddingModel",
    "Events",
    "HashedNgramTask",
    "Language",
    "Metric",
    "Metrics",
    "Part",
    "Ratings",
    "Source",
    "Splits",
    "Task",
    "TaskModel",
    "Text",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
