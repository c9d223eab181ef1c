"""What a task is: config, data, model, loss and metrics. Runs, solvers, sweeps and reports know no more of it.

    class Links(Task[LinksConfig, Splits, LinkModel]):
        name, Config, metric = "links", LinksConfig, Metric("error", "error rate")
        def load(self, config): ...             # → Splits: train, validation and test examples
        def build(self, config, splits): ...    # → a model with `embeddings`
        def loss(self, model, batch): ...       # → a scalar, the mean over the batch
        def evaluate(self, model, splits, part): ...   # → {"loss": …, "error": …}

and one entry in TASKS (antembed/tasks.py). The other methods have defaults that suit most tasks.
"""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import ClassVar, Generic, Literal, Protocol, TypeVar, cast, runtime_checkable

import numpy as np
from torch import Tensor

from antembed.files import JSON
from antembed.layer.embedding import Embedding
from antembed.layer.optim.prox import FreeEntries
from antembed.layer.optim.proximal import ProximalOptimizer
from antembed.train.config import TaskConfig
from antembed.train.examples import Examples, Pieces
from antembed.train.model import TaskModel

Batch = tuple[Tensor, ...]
Part = Literal["train", "validation", "test"]
Metrics = dict[str, float]
Schedule = Callable[[int], float]  # of the step
Regularizer = Callable[[Batch, int], Tensor]  # batch, step → a term of the loss
NONE = Examples((np.empty(0),), np.empty(0, np.int64))


class Source(Protocol):
    """Examples of one part of the data."""

    def __len__(self) -> int: ...

    def batches(self, size: int) -> Iterator[Batch]: ...

    def pieces(self, size: int, n: int) -> Iterator[Pieces]: ...

    def shuffled(self, seed: int, epoch: int) -> "Source": ...


@runtime_checkable
class Rows(Protocol):
    """Examples that are rows of columns, in any order."""

    @property
    def rows(self) -> np.ndarray: ...

    def with_rows(self, rows: np.ndarray) -> Source: ...

    def order(self, seed: int, epoch: int) -> np.ndarray:
        """The rows as an epoch takes them."""

    def in_order(self, rows: np.ndarray) -> Source:
        """For training, in this order."""


@dataclass(frozen=True)
class Metric:
    """What a task is measured by."""

    name: str  # the number that is to be small, by its name among the metrics
    label: str  # for people
    shown: str = ""  # the name among the metrics that results show, if it is another: accuracy beside error

    @property
    def headline(self) -> str:
        return self.shown or self.name

    def cost(self, metrics: Metrics) -> float:
        """To be small, and such that 1 % more of it is 1 % worse: the error, or 1/accuracy."""
        return 1 / max(metrics[self.shown], 1e-12) if self.shown else metrics[self.name]

    def beats(self, value: float, baseline: float) -> bool:
        """Whether a headline is better than a baseline's by a thousandth, or perfect; errors are to be small, others large."""
        return value >= min(baseline + 1e-3, 1.0) if self.shown else value <= 0.999 * baseline


@dataclass
class Splits:
    """The data of a run, cut into parts; a part may be empty."""

    train: Source = NONE
    validation: Source = NONE
    test: Source = NONE
    facts: JSON = field(default_factory=dict)  # plain data that `build` needs: sizes, names
    complaints: tuple[str, ...] = ()  # what the reader of the data noticed: rows that were skipped, labels that are missing

    def part(self, name: Part) -> Source:
        return {"train": self.train, "validation": self.validation, "test": self.test}[name]

    @property
    def count(self) -> int:
        """All examples."""
        return len(self.train) + len(self.validation) + len(self.test)

    @property
    def objects(self) -> int:
        """Rows of the table whose size decides some of the defaults; 0: none does."""
        return 0

    @cached_property
    def digest(self) -> str:
        """Tells these data from others: SHA-256 over all batches, whatever the split."""
        sums = np.zeros(32, np.uint8)
        for part in (self.train, self.validation, self.test):
            for batch in part.batches(1):
                one = hashlib.sha256(b"".join(np.ascontiguousarray(column.cpu().numpy()).tobytes() for column in batch))
                sums += np.frombuffer(one.digest(), np.uint8)  # in any order
        return hashlib.sha256(sums.tobytes()).hexdigest()

    def save(self, folder: Path) -> None:
        """Write what is needed beside the tables to use them: which row is whose."""


class Engine(Protocol):
    """One epoch over shuffled examples in batches, from step `first` on; yields (examples, their summed loss) as it goes."""

    def run(self, examples: Source, batch_size: int, first: int, lr: Schedule, l1: Schedule) -> Iterator[tuple[int, float]]: ...


@runtime_checkable
class OffersEngine(Protocol):
    """A task whose models can be trained by a compiled engine of their own."""

    def unsupported(self, model: TaskModel, optimizer: ProximalOptimizer) -> str | None:
        """Why its engine cannot train this model; None: it can."""

    def engine(self, model: TaskModel, optimizer: ProximalOptimizer, threads: int) -> Engine: ...


ConfigT = TypeVar("ConfigT", bound=TaskConfig)
SplitsT = TypeVar("SplitsT", bound=Splits)
ModelT = TypeVar("ModelT", bound=TaskModel)


class Task(ABC, Generic[ConfigT, SplitsT, ModelT]):
    """Stateless: all that varies comes in as config, splits and model. What needs no torch is in its config (TaskConfig)."""

    name: ClassVar[str]  # antembed train NAME
    Config: ClassVar[type[TaskConfig]]
    metric: ClassVar[Metric]
    evaluates_fast: ClassVar[bool] = True  # else validation data are looked at only where something is decided by them
    select_by: ClassVar[str] = "loss"  # the metric that, with the penalty added, makes an epoch the best
    examples: ClassVar[str] = "examples"  # what the data consist of
    sweep_options: ClassVar[JSON] = {}  # that a sweep adds to those it is given
    published: ClassVar[Mapping[str, Sequence[tuple[float, float]]]] = {}  # the paper's (parameters, error), for plots

    @abstractmethod
    def load(self, config: ConfigT) -> SplitsT:
        """Read the data and cut them into parts."""

    @abstractmethod
    def build(self, config: ConfigT, splits: SplitsT) -> ModelT:
        """A seeded model."""

    @abstractmethod
    def loss(self, model: ModelT, batch: Batch) -> Tensor:
        """The mean loss of a batch."""

    @abstractmethod
    def evaluate(self, model: ModelT, splits: SplitsT, part: Part) -> Metrics:
        """Metrics over the examples of a part; "loss" is the mean loss."""

    # What has a default.

    def task_for(self, splits: SplitsT) -> str:
        """The task that suits these data: events without ratings, say, are another task than ratings."""
        return self.name

    def pretraining(self, config: ConfigT) -> ConfigT | None:
        """A run that comes before this one, and whose model `use_pretrained` takes; None: there is none."""
        return None

    def use_pretrained(self, splits: SplitsT, model: ModelT) -> None:
        """Keep of that model what `build` needs."""

    def regularizers(self, config: ConfigT, splits: SplitsT, model: ModelT) -> list[Regularizer]:
        """Terms that are added to the loss while training."""
        return []

    def free_entries(self, splits: SplitsT, model: ModelT) -> dict[str, FreeEntries]:
        """Entries of T that cost nothing, by embedding."""
        return {}

    def sparse_biases(self, model: ModelT) -> list[Embedding]:
        """Tables of single numbers that a sparsifier makes sparse, too."""
        return []

    def rates(self, config: ConfigT, splits: SplitsT, model: ModelT) -> list[tuple[Tensor, float]]:
        """Parameters whose learning rate is another, and how many times as large it is."""
        return []

    def facts(self, splits: SplitsT, model: ModelT) -> JSON:
        """What a run remembers of its data (config.json), so that it is evaluated on the same."""
        return {**splits.facts, "examples": splits.count, "sha256": splits.digest}

    def is_published(self, splits: SplitsT) -> bool:
        """Whether these are the data of `published`."""
        return False

    def baselines(self, splits: SplitsT) -> dict[str, float]:
        """What models that know nothing of the examples come to on the test part, in the headline metric, by what they do."""
        return {}

    def details(self, config: ConfigT, splits: SplitsT, model: ModelT) -> JSON:
        """What the task adds to the result of a run."""
        return {}

    def reopen(self, config: ConfigT, facts: JSON, folder: Path) -> SplitsT:
        """What `build` needs of the data of a finished run that are not at hand: names and sizes, no examples."""
        return cast(SplitsT, Splits(facts=facts))  # a task with splits of its own kind has its own way

    def for_evaluation(self, config: ConfigT) -> ConfigT:
        """The config by which a finished run is built again: without what is for the start of training alone."""
        return config

    def export_extras(self, folder: Path, config: ConfigT, out: Path, seen: bool) -> None:
        """Write what an export needs of a run's folder beside its tables; `seen`: also what users have rated."""
