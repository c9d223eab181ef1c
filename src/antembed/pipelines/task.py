"""What a sweep asks of a task: its options, its data, how one trial is trained, and the error that is to be small."""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, get_type_hints

from antembed.data.documents import Documents
from antembed.pipelines import classify, recommend, tiny
from antembed.pipelines.settings import Settings, paper_settings
from antembed.pipelines.text import TextSettings
from antembed.reporting.front import PAPER
from antembed.training import RunFolder

Point = dict[str, Any]
Row = dict[str, Any]


class Data(Protocol):
    """What all trials of a sweep learn from."""

    @property
    def digest(self) -> str:
        """Tells the data from others: SHA-256."""

    def __len__(self) -> int:
        """How many examples there are."""


@dataclass(frozen=True)
class Task:
    """A task that can be swept over; all that differs between ratings and text is asked here."""

    name: str  # one trial alone is: antembed train NAME DATA
    settings: type[Any]
    once: tuple[str, ...]  # settings that are the same for all trials, since they say what the data are
    hashed: tuple[str, ...]  # settings that the data's digest stands for
    examples: str  # what the data consist of
    error: str  # its name in what is measured
    heading: str  # and for people
    metric: str  # the name its records give the whole
    loss: Callable[[Mapping[str, float]], float]  # what is measured → the mean loss of eq. 5
    size: str  # what the number of parameters counts
    read: Callable[[Any], Any]  # settings → Data
    train: Callable[[Any, Path, bool, Any], Row]  # settings, folder, resume, Data → what was measured
    usual: Callable[[int], Point]  # settings for so many examples, where they are not the class's defaults
    published: Mapping[str, list[tuple[float, float]]]  # the paper's (parameters, error)

    @property
    def options(self) -> tuple[str, ...]:
        return tuple(field.name for field in fields(self.settings) if field.name != "data")

    @property
    def kinds(self) -> dict[str, Any]:
        """The type of each option."""
        return get_type_hints(self.settings)

    @property
    def defaults(self) -> Point:
        """Of all that decides a result, but for the data and for how fast it goes."""
        passing = (*self.hashed, "threads")
        return {field.name: field.default for field in fields(self.settings) if field.name not in passing}


class Texts:
    """Labelled text. It is read when it is needed, and again for a trial that wants it read otherwise: `max_vocab`, say."""

    def __init__(self, settings: TextSettings):
        self.first = settings
        self.how: tuple[Any, ...] = ()
        self.held: tuple[Documents, Documents | None] | None = None  # as read last

    @cached_property
    def digest(self) -> str:
        """Of the bytes of both files."""
        both = hashlib.sha256()
        for name in filter(None, (self.first.data, self.first.test)):
            with Path(name).open("rb") as file:
                both.update(hashlib.file_digest(file, "sha256").digest())
        return both.hexdigest()

    @cached_property
    def count(self) -> int:
        return len(self.documents(self.first)[0])

    def __len__(self) -> int:
        return self.count

    def documents(self, settings: TextSettings) -> tuple[Documents, Documents | None]:
        """To learn from and to be tested by, read as these settings say."""
        small = settings.model == "tiny"
        how = (small, settings.text, settings.label, settings.length, settings.min_count, settings.max_vocab)
        if self.held is None or how != self.how:
            self.held = None  # two readings need not be in memory at once
            self.held, self.how = (tiny if small else classify).read(settings), how
        return self.held


def train_ratings(settings: Settings, folder: Path, resume: bool, ratings: Any) -> Row:
    return recommend.train(settings, folder, resume=resume, ratings=ratings)


def train_text(settings: TextSettings, folder: Path, resume: bool, texts: Texts) -> Row:
    learned, test = texts.documents(settings)
    if settings.model == "tiny":  # is fitted in one go, so there is nothing to go on with
        RunFolder(folder).remove()
        return tiny.train(settings, folder, learned=learned, test=test, validate=True)
    return classify.train(settings, folder, resume=resume, learned=learned, test=test)


def half_mse(measured: Mapping[str, float]) -> float:
    return measured["mse"] / 2


def cross_entropy(measured: Mapping[str, float]) -> float:
    return measured["loss"]


def nothing_else(examples: int) -> Point:
    return {}


RECOMMEND = Task(
    name="recommend",
    settings=Settings,
    once=("data", "columns", "on_error"),
    hashed=("data", "columns", "on_error"),
    examples="ratings",
    error="mse",
    heading="MSE",
    metric="mse",
    loss=half_mse,
    size="parameters, biases counted",
    read=recommend.read,
    train=train_ratings,
    usual=paper_settings,
    published=PAPER,
)
CLASSIFY = Task(
    name="classify",
    settings=TextSettings,
    once=("data", "test", "label"),
    hashed=("data", "test"),
    examples="documents",
    error="error",
    heading="error rate",
    metric="accuracy",
    loss=cross_entropy,
    size="parameters of the words",
    read=Texts,
    train=train_text,
    usual=nothing_else,
    published={},
)
TASKS = {task.name: task for task in (RECOMMEND, CLASSIFY)}
