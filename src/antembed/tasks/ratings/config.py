"""The config of a run on ratings. The defaults are the paper's for MovieLens 1M, with biases, a warm-up of λ2 and pruning."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from antembed.config import (
    Config,
    CoordinateDescentConfig,
    EmbeddingConfig,
    EmbeddingTaskConfig,
    OnlineConfig,
    StochasticConfig,
    option,
)
from antembed.config.base import Names, Number
from antembed.data import SPLITS

LARGE = 5_000_000  # ratings: from here on the paper's settings for MovieLens 25M, below those for 1M
LARGE_DEFAULTS = {"l1_penalty": 2e-6, "batch_size": 1024, "halve_every": 200_000, "initial_anchors": 20, "anchor_step": 2}
# By --sparsify recode: many anchors, few dimensions, large batches (100 an epoch), penalties in the ratings' own scale.
SPARSIFIED = {"epochs": 36, "events": 18, "optimizer": "adam", "beta2": 0.99, "lr": 0.03, "embedding_dim": 8, "anchors": (48,)}
STEPS = 100
RIDGE, RIDGE_PER_RATING, BIAS_RIDGE = 6.3, 0.018, 6.0
WHOLE_FILE = {"solver": ("stochastic", "coordinate_descent")}  # a stream is neither cut into parts nor read past an error


class RatingsInput(Config):
    """The ratings."""

    heading: ClassVar[str] = "Data"
    data: str = option(
        "", "Ratings: MovieLens .dat/.csv, any delimited file (also .gz, .zst), Parquet; - with --solver online."
    )
    columns: Names | None = option(None, "USER,ITEM[,RATING[,WEIGHT]] columns, by name or by number from 1.")
    implicit: bool = option(False, "Ratings are counts of events: learn what is chosen, not how it is rated.")
    on_error: Literal["stop", "skip"] = option(
        "stop", "At a row that is no rating: stop, or skip it and say how many.", only_with=WHOLE_FILE
    )
    split: Literal["80/10/10", "90/10", "last", "time"] = option(
        "80/10/10",
        "Train/validation/test; or the paper's 90/10, without validation; of events: last (of each user) or time.",
        only_with=WHOLE_FILE,
    )


class RatingsTables(EmbeddingConfig):
    """Users' and items' tables."""

    biases: bool = option(True, "A bias for each user and item; they are counted.")
    alpha: Number = option(0.3, "A table's widths fall as popularity to this power.", ge=0, only_with={"embedding": "mixed"})


class RatingsStochastic(StochasticConfig):
    """Stochastic steps on ratings."""

    init: Literal["signed", "half-normal", "dense"] = option(
        "signed",
        "Anchors of both signs; half-normal, the paper's; dense: from a full solution.",
        only_with={"embedding": "anchor"},
    )
    l2_penalty: Number | None = option(
        None,
        "½·l2_penalty·‖e‖² on every vector, as --ridge of coordinate descent; default: 0, with recode and prune 6.3·σ.",
        ge=0,
    )
    l2_per_rating: Number | None = option(
        None, "And as much again for each rating of the object; default: 0, with recode and prune 0.018·σ.", ge=0
    )
    bias_l2_penalty: Number | None = option(
        None, "The same on every bias; default: 0, with recode and prune 6. (σ: the standard deviation of ratings.)", ge=0
    )

    def ridges(self, deviation: float) -> tuple[float, float, float]:
        """On vectors, on vectors for each rating, on biases."""
        usual = (
            (RIDGE * deviation, RIDGE_PER_RATING * deviation, BIAS_RIDGE) if self.sparsity.sparsify != "prox" else (0.0,) * 3
        )
        given = (self.l2_penalty, self.l2_per_rating, self.bias_l2_penalty)
        first, each, bias = (other if own is None else own for own, other in zip(given, usual, strict=True))
        return first, each, bias


Solver = Annotated[RatingsStochastic | CoordinateDescentConfig | OnlineConfig, Field(discriminator="name")]


class RatingsConfig(EmbeddingTaskConfig):
    """A run on ratings."""

    task: Literal["recommend"] = "recommend"
    input: RatingsInput = RatingsInput()
    tables: RatingsTables = RatingsTables()
    solver: Solver = RatingsStochastic()
    provides: ClassVar[frozenset[str]] = frozenset({"counts"})

    @property
    def has_validation(self) -> bool:
        return self.input.split not in SPLITS or SPLITS[self.input.split][1] > 0

    @model_validator(mode="after")
    def _suits_ratings(self) -> "RatingsConfig":
        self.num_anchors(2)  # an error if it is not one number, or two
        if self.auto and isinstance(self.solver, StochasticConfig) and not self.has_validation:
            raise ValueError(f"anchors auto needs validation data, --split {self.input.split} has none; use --split 80/10/10")
        if self.tolerance and not self.has_validation:
            raise ValueError(f"a tolerance needs validation data, --split {self.input.split} has none; use --split 80/10/10")
        return self
