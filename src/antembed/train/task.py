"""What a task is: data, model, loss and metrics. Runs, solvers, sweeps and reports know no more of it.

    class Links(Task[LinksConfig, Splits, LinkModel]):
        name, Config, metric = "links", LinksConfig, Metric("error", "error rate")
        def load(self, config): ...             # → Splits: train, validation and test examples
        def build(self, config, splits): ...    # → a model with `embeddings`
        def loss(self, model, batch): ...       # → a scalar, the mean over the batch
        def evaluate(self, model, splits, part): ...   # → {"loss": …, "error": …}

and one entry in TASKS (antembed/tasks.py). What few tasks can do is a protocol each, at the end of this file.
"""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import ClassVar, Generic, Literal, Protocol, TypeVar, runtime_checkable

import numpy as np
from torch import Tensor

from antembed.files import JSON
from antembed.layer.embedding import Embedding
from antembed.layer.optim.prox import FreeEntries
from antembed.layer.optim.proximal_optimizer import ProximalOptimizer
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


@dataclass(frozen=True)
class Metric:
    """What a task is measured by."""

    name: str  # the number that is to be small, by its name among the metrics
    label: str  # for people
    shown: str = ""  # the name among the metrics that results show, if it is another: accuracy beside error
    select_by: str = "loss"  # the metric that, with the penalty added, makes an epoch the best

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
    complaints: tuple[str, ...] = ()  # what the reader of the data noticed: what was skipped, what is missing

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
        """Identifies these data: SHA-256 over all batches, whatever the split."""
        sums = np.zeros(32, np.uint8)
        for part in (self.train, self.validation, self.test):
            for batch in part.batches(1):
                one = hashlib.sha256(b"".join(np.ascontiguousarray(column.cpu().numpy()).tobytes() for column in batch))
                sums += np.frombuffer(one.digest(), np.uint8)  # in any order
        return hashlib.sha256(sums.tobytes()).hexdigest()

    def save(self, folder: Path) -> None:
        """Write what is needed beside the tables to use them: which row is whose."""


ConfigT = TypeVar("ConfigT", bound=TaskConfig)
SplitsT = TypeVar("SplitsT", bound=Splits)
ModelT = TypeVar("ModelT", bound=TaskModel)


@dataclass(frozen=True)
class Terms:
    """What a task adds to stochastic training."""

    regularizers: Sequence[Regularizer] = ()  # added to the loss
    free_entries: Mapping[str, FreeEntries] = field(default_factory=dict)  # entries of T that cost nothing, by embedding
    biases: Sequence[Embedding] = ()  # tables of single numbers that a sparsifier makes sparse, too
    rates: Sequence[tuple[Tensor, float]] = ()  # parameters, and the multiple of the learning rate that is theirs


class Task(ABC, Generic[ConfigT, SplitsT, ModelT]):
    """Stateless: all that varies comes in as config, splits and model. What needs no torch is in its config (TaskConfig)."""

    name: ClassVar[str]  # antembed train NAME
    Config: ClassVar[type[TaskConfig]]
    metric: ClassVar[Metric]
    examples: ClassVar[str] = "examples"  # what the data consist of

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

    def terms(self, config: ConfigT, splits: SplitsT, model: ModelT) -> Terms:
        """What stochastic training minimises beside the loss."""
        return Terms()

    def pretraining(self, config: ConfigT) -> TaskConfig | None:
        """The run that comes before, of another model; None: there is none."""
        return None

    def use_pretrained(self, splits: SplitsT, model: ModelT) -> None:
        """Keep of its model what `build` needs."""

    def facts(self, splits: SplitsT, model: ModelT) -> JSON:
        """What a run remembers of its data (config.json)."""
        return splits.facts

    def reopen(self, config: ConfigT, facts: JSON, folder: Path) -> Splits:
        """What `build` needs of the data of a finished run: names and sizes, no examples."""
        return Splits(facts=facts)

    def export_extras(self, folder: Path, config: ConfigT, out: Path, seen: bool) -> None:
        """Copy what an export has beside tables and network; `seen`: also what is left out unless asked for."""

    def baselines(self, splits: SplitsT) -> dict[str, float]:
        """Headline metrics of trivial models on the test part, by what they do."""
        return {}


@runtime_checkable
class Published(Protocol):
    """A task with points of the paper, for plots."""

    published: ClassVar[Mapping[str, Sequence[tuple[float, float]]]]  # (parameters, error)

    def is_published(self, splits: Splits) -> bool:
        """Whether these are the data of `published`."""


class Engine(Protocol):
    """One epoch over shuffled examples in batches, from step `first` on; yields (examples, their summed loss) as it goes."""

    def run(self, examples: Source, batch_size: int, first: int, lr: Schedule, l1: Schedule) -> Iterator[tuple[int, float]]: ...


@runtime_checkable
class OffersEngine(Protocol):
    """A task whose models can be trained by a compiled engine of their own."""

    def unsupported(self, model: TaskModel, optimizer: ProximalOptimizer) -> str | None:
        """Why its engine cannot train this model; None: it can."""

    def engine(self, model: TaskModel, optimizer: ProximalOptimizer, threads: int) -> Engine: ...
