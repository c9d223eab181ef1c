"""One folder a task: config, data → splits, model, loss, metrics. One line here makes it known everywhere."""

from antembed.tasks.base import Metric, Metrics, Part, Source, Splits, Task
from antembed.tasks.events.task import Events
from antembed.tasks.language.task import Language
from antembed.tasks.model import EmbeddingModel, TaskModel
from antembed.tasks.ngrams.task import HashedNgramTask
from antembed.tasks.ratings.task import Ratings
from antembed.tasks.text.task import Text

TASKS: dict[str, Task] = {task.name: task for task in (Ratings(), Events(), Text(), HashedNgramTask(), Language())}

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
