"""The config of a run on ratings. The defaults are the paper's for MovieLens 1M, with biases, a warm-up of λ2 and pruning."""

import math
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from antembed.data.download import find_data, one_file
from antembed.files import JSON, default_cache
from antembed.recommend.descent_config import CoordinateDescentConfig, OnlineConfig, PenaltyConfig
from antembed.recommend.fold_in import BIAS_RIDGE, RIDGE, RIDGE_PER_RATING
from antembed.recommend.ratings_table import Ratings
from antembed.recommend.read_ratings import read_ratings
from antembed.recommend.read_stream import RatingStream
from antembed.train.config import (
    EmbeddingConfig,
    EmbeddingTaskConfig,
    StochasticConfig,
)
from antembed.train.options import AUTO, Config, ConfigError, Names, Number, Options, option, options_of
from antembed.train.splits import SPLITS

LARGE = 5_000_000  # ratings: from here on the paper's settings for MovieLens 25M, below those for 1M
LARGE_DEFAULTS = {"l1_penalty": 2e-6, "batch_size": 1024, "halve_every": 200_000, "initial_anchors": 20, "anchor_step": 2}
# By --sparsify recode: many anchors, few dimensions, large batches (100 an epoch), penalties in the ratings' own scale.
SPARSIFIED = {"epochs": 36, "events": 18, "optimizer": "adam", "beta2": 0.99, "lr": 0.03, "embedding_dim": 8, "anchors": (48,)}
STEPS = 100  # of an epoch
LARGEST_BATCH = 1 << 17  # examples
# Options that mean the paper's way.
PROX_OPTIONS = {
    *("l1_penalty", "l1_warmup", "prune", "max_nonzeros", "polish", "optimizer", "schedule", "halve_every", "engine"),
    *("embedding", "init"),
}
TARGETS = ("budget", "tolerance")  # options that decide the size: a search takes them
L2_OPTIONS = {"l2_penalty": "ridge", "l2_per_rating": "ridge_per_rating", "bias_l2_penalty": "bias_ridge"}  # of mini-batches
NO_STREAM = {"solver": ("stochastic", "coordinate_descent")}  # a stream is neither cut into parts nor read past an error


class RatingsInput(Config):
    """The ratings."""

    heading: ClassVar[str] = "Data"
    data: str = option(
        "",
        "Any delimited file, JSON lines (also .gz, .zst), Parquet, or a data set's name; --solver online: also - (stdin).",
    )
    columns: Names | None = option(None, "USER,ITEM[,RATING[,WEIGHT]] columns, by name or by number from 1.")
    implicit: bool = option(False, "Each row is an event, a rating its count: learn what is chosen, not how it is rated.")
    on_error: Literal["stop", "skip"] = option(
        "stop", "At a row that is no rating: stop, or skip it and say how many.", only_with=NO_STREAM
    )
    split: Literal["80/10/10", "90/10", "last", "time"] = option(
        "80/10/10",
        "Train/validation/test; or the paper's 90/10, without validation. Events: last (two of each user), or time.",
        only_with=NO_STREAM,
    )

    @property
    def file(self) -> Path:
        """Where the ratings are: the file that `data` names, or that of a data set."""
        return one_file(find_data(self.data), "ratings")


def read_input(source: RatingsInput) -> Ratings:
    """The ratings that a config names. The last file stays in memory: a sweep reads it once."""
    path = source.file
    stamp = path.stat().st_mtime_ns if path.is_file() else 0
    return _read(str(path), stamp, source.columns, source.on_error, source.implicit)


@lru_cache(maxsize=1)
def _read(path: str, stamp: int, columns: tuple[str, ...] | None, on_error: str, implicit: bool) -> Ratings:
    return read_ratings(path, columns, on_error=on_error, implicit=implicit, cache=default_cache())


class RatingsTables(EmbeddingConfig):
    """Users' and items' tables."""

    biases: bool = option(True, "A bias for each user and item; they are counted.")
    alpha: Number = option(0.3, "A table's widths fall as popularity to this power.", ge=0, only_with={"embedding": "mixed"})


class RatingsStochastic(StochasticConfig):
    """Stochastic steps on ratings."""

    implementation: ClassVar[str] = "antembed.recommend.task:stochastic_solver"
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

    def check_processes(self, size: int) -> None:
        super().check_processes(size)
        if self.init == "dense":
            raise ConfigError(f"under torchrun ({size} processes) --init dense is not possible; leave it out", "init")

    def ridges(self, deviation: float) -> tuple[float, float, float]:
        """On vectors, on vectors for each rating, on biases."""
        usual = RIDGE * deviation, RIDGE_PER_RATING * deviation, BIAS_RIDGE
        given = self.l2_penalty, self.l2_per_rating, self.bias_l2_penalty
        dense_first = self.sparsity.sparsify != "prox"
        first, each, bias = (dense_first * other if own is None else own for own, other in zip(given, usual, strict=True))
        return first, each, bias


Solver = Annotated[RatingsStochastic | CoordinateDescentConfig | OnlineConfig, Field(discriminator="name")]


class RatingsConfig(EmbeddingTaskConfig):
    """Learn users' and items' tables from ratings, and write them as small files."""

    implementation: ClassVar[str] = "antembed.recommend.task:Ratings"
    searches: ClassVar[str] = "antembed.recommend.search:SearchRatings"
    explains: ClassVar[str] = "antembed.recommend.explain:explain_items"
    evaluates_fast: ClassVar[bool] = True  # else validation data are looked at only where something is decided by them
    task: Literal["recommend"] = "recommend"
    input: RatingsInput = RatingsInput()
    tables: RatingsTables = RatingsTables()
    solver: Solver = RatingsStochastic()
    provides: ClassVar[frozenset[str]] = frozenset({"counts"})
    usage: ClassVar[Sequence[str]] = ("ratings.csv --out runs/films", "ratings.csv --columns reader,book,stars --budget 100KB")

    @classmethod
    def defaults(cls, examples: int, given: Options, objects: int = 0) -> JSON:
        if sparsifies(given):
            batch = 1 << max(round(math.log2(max(examples, 1) / STEPS)), 5)
            epochs = int(str(given.get("epochs", SPARSIFIED["epochs"])))
            events = max(min(int(str(SPARSIFIED["events"])), epochs // 2), 1)
            return {**SPARSIFIED, "sparsify": "recode", "batch_size": min(batch, LARGEST_BATCH), "events": events}
        return dict(LARGE_DEFAULTS) if examples >= LARGE else {}

    @classmethod
    def to_search(cls, given: Options) -> tuple[str, Options] | None:
        """No option belongs to one solver alone, and the tables are such that coordinate descent can solve them; or T is to be
        made sparse by ℓ0, and no ridge is given."""
        if given.get("split") == "90/10":
            return None
        if sparsifies(given):
            return None if L2_OPTIONS.keys() & set(given) else (cls.name(), {**cls.defaults(len(given), given), **given})
        if given.get("solver", AUTO) not in (AUTO, "coordinate_descent"):
            return None
        if given.get("embedding", "anchor") not in ("anchor", "full"):
            return None
        known = options_of(cls)
        if any(known[option].owners and option not in TARGETS for option in given if option in known):
            return None
        return cls.name(), {option: value for option, value in given.items() if option != "solver"}

    def read(self) -> str:
        if isinstance(self.solver, OnlineConfig):  # what comes from standard input comes once
            if self.input.data != "-":
                next(iter(RatingStream(self.input.file, self.input.columns, batch_size=self.solver.batch_size)), None)
            return self.task
        return "recommend-events" if self.ratings().implicit else self.task

    def ratings(self) -> Ratings:
        """The ratings, whose split must suit them."""
        found = read_input(self.input)
        if not found.implicit and self.input.split not in SPLITS:
            raise ConfigError(f"split {self.input.split} is for events, and these are ratings; use 80/10/10", "split")
        return found

    @property
    def has_validation(self) -> bool:
        return self.input.split not in SPLITS or SPLITS[self.input.split][1] > 0

    @model_validator(mode="after")
    def _suits_ratings(self) -> "RatingsConfig":
        self.num_anchors(2)  # an error if it is not one number, or two
        grown = self.auto and isinstance(self.solver, StochasticConfig)
        if (grown or self.tolerance) and not self.has_validation:
            what = "anchors auto" if grown else "a tolerance"
            raise ValueError(f"{what} needs validation data, --split {self.input.split} has none; use --split 80/10/10")
        return self


def sparsifies(given: Options) -> bool:
    """Whether T becomes sparse by ℓ0: what `--solver stochastic` does with a budget, if no option belongs to another way."""
    if given.get("solver", "auto") not in ("auto", "stochastic"):
        return False
    if "sparsify" in given:
        return given["sparsify"] != "prox"
    asked = given.get("solver") == "stochastic" and bool(given.get("budget"))
    return asked and not PROX_OPTIONS & set(given) and given.get("anchors") != "auto"


class EventsInput(RatingsInput):
    """The events."""

    data: str = option("", "Events: user and item (and time), a count instead of a rating, or lines `user item item …`.")
    implicit: bool = option(True, "Ratings are quantities of events.")
    split: Literal["last", "time"] = option(
        "last", "Test on the last event of each user and validate on the last but one, or on the last tenths by time."
    )


class EventsPenalties(PenaltyConfig):
    ridge: Number = option(0.3, "½·ridge·‖e‖² on every vector e = t·A.", ge=0)
    ridge_per_rating: Number = option(0.1, "And as much again for each event of the object.", ge=0)
    bias_ridge: Number = option(1.0, "The same on every bias.", ge=0)


EVENT_SETTINGS = {"ridge", "ridge_per_rating", "bias_ridge", "unobserved_weight", "l0_penalty", "epochs", "basis"}


class EventsDescent(CoordinateDescentConfig):
    """Coordinate descent in which every pair of a user and an item counts a little, as if it were 0."""

    penalties: EventsPenalties = EventsPenalties()
    unobserved_weight: Number = option(
        0.0, "Weight of a pair without an event, beside 1 for one with an event; 0: by how many pairs there are.", ge=0
    )


class EventsConfig(RatingsConfig):
    """Learn users' and items' tables from events (clicks, purchases, listens), and write them as small files.

    `antembed train recommend` does this by itself where a file has no ratings.
    """

    implementation: ClassVar[str] = "antembed.recommend.task:Events"
    searches: ClassVar[str] = "antembed.recommend.search:SearchEvents"
    evaluates_fast: ClassVar[bool] = False
    task: Literal["recommend-events"] = "recommend-events"  # type: ignore[assignment]
    input: EventsInput = EventsInput()
    solver: EventsDescent = EventsDescent()
    usage: ClassVar[Sequence[str]] = ("events.csv --out runs/shop", "plays.csv --columns listener,song,plays --budget 1MB")

    @classmethod
    def defaults(cls, examples: int, given: Options, objects: int = 0) -> JSON:
        return {}

    @classmethod
    def to_search(cls, given: Options) -> tuple[str, Options] | None:
        if given.get("embedding", "anchor") not in ("anchor", "full") or EVENT_SETTINGS & set(given):
            return None
        return cls.name(), {option: value for option, value in given.items() if option != "solver"}

    def read(self) -> str:
        read_input(self.input)
        return self.task

    @classmethod
    def why(cls, given: Options) -> str:
        return "--implicit" if given.get("implicit") else "the data have no ratings"
