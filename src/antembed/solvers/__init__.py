"""How a task is minimised: one class a solver, one line here."""

from antembed.config import TaskConfig
from antembed.distributed import Ranks
from antembed.solvers.base import Callback, Progress, Solver, ignore
from antembed.solvers.coordinate_descent import CoordinateDescent, init_from_dense
from antembed.solvers.ngram_descent import NgramDescent
from antembed.solvers.online import Online
from antembed.solvers.stochastic import Stochastic
from antembed.tasks.base import Splits, Task
from antembed.tasks.model import TaskModel
from antembed.tasks.ratings.config import RatingsConfig, RatingsStochastic
from antembed.tasks.ratings.data import RatingsSplits
from antembed.tasks.ratings.model import MatrixFactorization

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
