"""What a solver is: epochs over the data that yield records, and a state from which it continues; train/run.py writes both."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pkgutil import resolve_name
from typing import ClassVar, Generic, TypeVar, cast

from antembed.files import JSON
from antembed.layer.sharded.collectives import Ranks
from antembed.train.checkpoint import Checkpoint, FileStorage, Storage
from antembed.train.config import SolverConfig, TaskConfig
from antembed.train.model import TaskModel
from antembed.train.run_folder import RunFolder
from antembed.train.task import ConfigT, ModelT, Splits, SplitsT, Task

SolverConfigT = TypeVar("SolverConfigT", bound=SolverConfig)


@dataclass(frozen=True)
class Progress:
    """How far an epoch is; reported several times a second."""

    epoch: int
    examples: int  # seen in this epoch
    loss: float  # mean over them
    seconds: float  # of this epoch
    record: JSON = field(default_factory=dict)  # of the last epoch that is complete


Callback = Callable[[Progress], None]


def ignore(progress: Progress) -> None:
    """No-op callback."""


class Solver(ABC, Generic[ConfigT, SplitsT, ModelT, SolverConfigT]):
    """Minimises a task's loss. `fit` changes the model in place and yields a record an epoch; in between, `state_dict` has all
    that a solver made anew needs to continue as if nothing had happened."""

    name: ClassVar[str]
    epoch: int = 0  # epochs done
    storage: Storage = FileStorage()

    def __init__(
        self, task: Task[ConfigT, SplitsT, ModelT], config: ConfigT, model: ModelT, splits: SplitsT, ranks: Ranks | None = None
    ):
        """`ranks`: the processes that train this model together."""
        self.task, self.config, self.model, self.splits, self.ranks = task, config, model, splits, ranks
        self.own = cast(SolverConfigT, config.solver)
        self.setup()

    @abstractmethod
    def setup(self) -> None:
        """Make what `fit` needs; raise here what would fail there."""

    @abstractmethod
    def fit(self, files: RunFolder, callback: Callback = ignore) -> Iterator[JSON]:
        """Train from where it stands to the end; a record after each epoch."""

    @abstractmethod
    def state_dict(self) -> Checkpoint: ...

    @abstractmethod
    def load_state_dict(self, checkpoint: Checkpoint) -> None: ...

    def result(self) -> JSON:
        """What the solver adds to the result of the run."""
        return {"engine": self.name}


def make_solver(task: Task, config: TaskConfig, model: TaskModel, splits: Splits, ranks: Ranks | None = None) -> Solver:
    """The solver that the config asks for."""
    solver: Solver = resolve_name(config.solver.implementation)(task, config, model, splits, ranks)
    return solver
