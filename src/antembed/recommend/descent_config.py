"""Options of coordinate descent, on ratings in memory (recommend/descent_solver.py) and on a stream (recommend/online.py)."""

from typing import ClassVar, Literal

from pydantic import model_validator

from antembed.train.config import NO_TARGET, BudgetText, SolverConfig, ToleranceText
from antembed.train.options import Config, Integer, Number, option


class PenaltyConfig(Config):
    """What coordinate descent adds to the summed ½·squared error."""

    heading: ClassVar[str] = "Coordinate descent"
    l0_penalty: Number = option(
        2.0, "λ2: a weight stays only if it lowers the summed ½·squared error by more.", ge=0, only_with=NO_TARGET
    )
    penalize_biases: bool = option(True, "Biases pay --l0-penalty too, and are zero where they are not worth it.")
    ridge: Number = option(7.0, "½·ridge·‖e‖² on every vector e = t·A.", ge=0)
    ridge_per_rating: Number = option(0.02, "And as much again for each rating of the object.", ge=0)
    bias_ridge: Number = option(6.0, "The same on every bias.", ge=0)


class CoordinateDescentConfig(SolverConfig):
    """Exact alternating descent on the ℓ0 objective itself: ratings, anchored and full tables."""

    implementation: ClassVar[str] = "antembed.recommend.descent_solver:CoordinateDescent"
    shared: ClassVar[bool] = True  # every process has the full model, and works on some of its rows
    embeddings: ClassVar[tuple[str, ...]] = ("anchor", "full")
    heading: ClassVar[str] = "Coordinate descent"
    name: Literal["coordinate_descent"] = option("coordinate_descent", "How the loss is minimised.")
    epochs: Integer = option(25, "Sweeps over all users and items.", ge=1, only_with={"tolerance": ""})
    penalties: PenaltyConfig = PenaltyConfig()
    unobserved_weight: Number = option(0.0, "Weight of every pair there is, as if rated 0: a model of what is chosen.", ge=0)
    budget: BudgetText = option("", "40x (times smaller), 400k (parameters) or 2MB (bytes): λ2 is adjusted to meet it.")
    tolerance: ToleranceText = option(
        "", "1%: the smallest file whose validation error is at most so much above the dense model's. Not with --budget."
    )

    basis: Literal["learned", "axes"] = option(
        "learned", "The anchors: learned, or the principal axes and their opposites (fast for wide tables; with a tolerance)."
    )

    @property
    def records(self) -> int:
        return 0 if self.tolerance else self.epochs

    @property
    def size_goal(self) -> tuple[str, str]:
        return self.budget, self.tolerance

    @model_validator(mode="after")
    def _one_target(self) -> "CoordinateDescentConfig":
        if self.basis == "axes" and not self.tolerance:
            raise ValueError("basis axes goes with a tolerance; add --tolerance 1%, or leave it at learned")
        if self.budget and self.tolerance:
            raise ValueError(f"budget {self.budget} and tolerance {self.tolerance} both decide the size; give one of them")
        return self


class OnlineConfig(SolverConfig):
    """Coordinate descent on a stream: batches are learned once, in the file's order, and never seen again."""

    implementation: ClassVar[str] = "antembed.recommend.online:Online"
    embeddings: ClassVar[tuple[str, ...]] = ("anchor",)
    heading: ClassVar[str] = "Online"
    inferred: ClassVar[bool] = False
    name: Literal["online"] = option("online", "How the loss is minimised.")
    epochs: Integer = option(25, "Sweeps over a batch, at most.", ge=1)
    batch_size: Integer = option(100_000, "Ratings in a batch of the stream.", ge=1)
    test: str = option("", "Ratings to be tested on at the end.")
    penalties: PenaltyConfig = PenaltyConfig()

    @property
    def records(self) -> int:
        return 0
