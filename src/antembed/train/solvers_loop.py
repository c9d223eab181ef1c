"""The state of the stochastic loop, which its controllers read and change between epochs."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

from antembed.layer.optim.proximal import ProximalOptimizer
from antembed.train.checkpoint import FileStorage, Storage
from antembed.train.config import StochasticConfig
from antembed.train.config_shared import TaskConfig
from antembed.train.engine import Engine
from antembed.train.model import TaskModel
from antembed.train.solvers_schedule import Schedule


@dataclass
class Loop:
    """What is trained, by what, and how far it is."""

    config: TaskConfig
    own: StochasticConfig
    model: TaskModel
    optimizer: ProximalOptimizer
    examples: int  # for training
    select_by: str  # the metric that makes an epoch the best
    lr: Schedule  # step → learning rate
    l1: Schedule  # step → λ2
    engine: Engine | None = None  # None: made anew before the next epoch, since tensors were replaced
    step: int = 0
    polishing: bool = field(default=False)
    storage: Storage = field(default_factory=FileStorage)
    averaged: Callable[[], AbstractContextManager[None]] = nullcontext  # the weights that are evaluated and kept, for so long

    @property
    def steps_per_epoch(self) -> int:
        return -(-self.examples // self.own.train.batch_size)
