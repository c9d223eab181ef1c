"""How a task is minimised: one class a solver, one line here."""

from antembed.classify.ngram_task import NgramDescent
from antembed.layer.sharded.collectives import Ranks
from antembed.recommend.config import RatingsConfig, RatingsStochastic
from antembed.recommend.coordinate_descent import CoordinateDescent, init_from_dense
from antembed.recommend.dataset import RatingsSplits
from antembed.recommend.model import MatrixFactorization
from antembed.recommend.online import Online
from antembed.train.config import TaskConfig
from antembed.train.model import TaskModel
from antembed.train.solver import Callback, Progress, Solver, ignore
from antembed.train.stochastic import Stochastic
from antembed.train.task import Splits, Task

# name → solver; which of them a task takes is in its config
SOLVERS: dict[str, type[Solver]] = {solver.name: solver for solver in (Stochastic, CoordinateDescent, Online, NgramDescent)}


def make_solver(task: Task, config: TaskConfig, model: TaskModel, splits: Splits, ranks: Ranks | None = None) -> Solver:
    """The solver that the config asks for."""
    if isinstance(config, RatingsConfig) and isinstance(config.solver, RatingsStochastic) and config.solver.init == "dense":
        assert isinstance(model, MatrixFactorization)
        assert isinstance(splits, RatingsSplits)
        init_from_dense(config, model, splits)
    return SOLVERS[config.solver.name](task, config, model, splits, ranks)


__all__ = ["SOLVERS", "Callback", "Progress", "Solver", "ignore", "make_solver"]
