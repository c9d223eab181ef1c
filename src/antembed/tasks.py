"""The table of tasks: one line in TASKS makes a task known to `train`, `evaluate` and run folders.

A task needs torch; its config does not, and is enough for the options of the command line. So tasks are imported on first use.
"""

from collections.abc import Iterator, MutableMapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from antembed.classify.config import NgramConfig, TextConfig
from antembed.language.config import LanguageConfig
from antembed.recommend.config import EventsConfig, RatingsConfig
from antembed.train.config import TaskConfig

if TYPE_CHECKING:
    from antembed.classify.ngram_task import HashedNgramTask
    from antembed.classify.task import Text
    from antembed.language.task import Language
    from antembed.recommend.events import Events
    from antembed.recommend.task import Ratings
    from antembed.train.model import EmbeddingModel, TaskModel
    from antembed.train.task import Metric, Metrics, Part, Source, Splits, Task

_HOMES = {
    **dict.fromkeys(("Metric", "Metrics", "Part", "Source", "Splits", "Task"), "train.task"),
    **dict.fromkeys(("EmbeddingModel", "TaskModel"), "train.model"),
    "Events": "recommend.events",
    "HashedNgramTask": "classify.ngram_task",
    "Language": "language.task",
    "Ratings": "recommend.task",
    "Text": "classify.task",
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
    return getattr(import_module(f"antembed.{_HOMES[name]}"), name)
