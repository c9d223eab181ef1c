"""Ratings and events without options: the best dense factorization, and how many anchors, as options of coordinate descent."""

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace

import numpy as np

from antembed.budget import counts_bytes, parse_budget
from antembed.files import JSON
from antembed.recommend.config import L2_OPTIONS, TARGETS, RatingsConfig, sparsifies
from antembed.recommend.dataset import RatingsSplits
from antembed.recommend.dense_search import (
    EVENTS,
    MEMORY,
    RATINGS,
    DenseSearch,
    DenseSettings,
    Trial,
    mean_squared_error,
    sampled,
)
from antembed.recommend.descent import Descent
from antembed.recommend.factor import NO_BIAS
from antembed.recommend.fold_in import likely_weight
from antembed.recommend.model import best_bias_ridge
from antembed.recommend.ranking import TOP, held_items, list_metrics
from antembed.train.config import TaskConfig
from antembed.train.examples import Examples
from antembed.train.options import Options, options_of
from antembed.train.search_cache import Report, cached
from antembed.train.task import Splits

TOLERANCE = "1%"
ANCHORS = 48
ROUNDED = {"int6": 0.1, "int8": 0.01}  # from which share of unexplained variance on they are fine enough
ROUNDED_IN_BYTES = {"int5": 0.3, **ROUNDED}  # the same where bytes are given, and coarser numbers leave room for more of them
BYTES_UP_TO = {"int5": 8.0, "int6": 16.0}  # for each object: with more, rounding is most of what is lost
# From so many numbers, or bytes, for each object on:
ROOMY: list[tuple[float, JSON]] = [(16.0, {"embedding_dim": 16, "lr": 0.01}), (8.0, {"embedding_dim": 12, "lr": 0.015})]
WIDE = 24  # widths from which learned anchors take too long: there must be more of them than dimensions
MOST_RATINGS, NARROWEST = 20_000_000, 8


class SearchRatings:
    """Ratings: the best dense factorization, then anchors by coordinate descent."""

    def __call__(self, config: TaskConfig, given: Options, splits: Splits, report: Report) -> JSON:
        assert isinstance(config, RatingsConfig)
        assert isinstance(splits, RatingsSplits)
        users, items = splits.num_embeddings
        large = len(splits.train) > MOST_RATINGS or (users + items) * (NARROWEST + 1) ** 2 * 8 > MEMORY
        if sparsifies(given) and config.task == "recommend":
            usual = {**RatingsConfig.defaults(splits.count, given), **self._roomier(config, given, users + items)}
            usual = {name: value for name, value in usual.items() if name not in given}
            return usual if large else usual | self._ridges(config, given, usual, splits, report)
        if large and config.task == "recommend":  # events have no other solver
            report(
                f"{len(splits.train):,} ratings of {users + items:,} users and items are too many for the search: "
                "trained with the defaults of --solver stochastic; say a size with --budget"
            )
            return {"solver": "stochastic"}
        fixed: JSON = {"embedding_dim": config.tables.embedding_dim} if "embedding_dim" in given else {}
        if not config.tables.biases:
            fixed["bias_ridge"] = NO_BIAS
        found = self._found(config, splits, fixed, report)
        chosen: JSON = found["options"] | ({"solver": "coordinate_descent"} if "solver" in options_of(type(config)) else {})
        if config.tables.embedding == "full":
            return chosen
        if set(given) & set(TARGETS) <= {"tolerance"} and chosen["embedding_dim"] > WIDE and "anchors" not in given:
            chosen |= {"basis": "axes", "anchors": (2 * chosen["embedding_dim"],)}
        elif "anchors" not in given:
            most = self._affordable(given, chosen["embedding_dim"], users + items)
            chosen["anchors"] = tuple(min(likely_anchors(n, chosen["embedding_dim"]), most) for n in (users, items))
        if config.task == "recommend" and not {"values", "budget"} & set(given):
            chosen["values"] = fine_enough(found["error"] / splits.deviation**2)
        return chosen if set(given) & set(TARGETS) else chosen | {"tolerance": TOLERANCE}

    def _found(self, config: RatingsConfig, splits: RatingsSplits, fixed: JSON, report: Report) -> JSON:
        """What the search finds; `fixed` is not searched."""
        key = {"search": config.task, "data": splits.digest, "seed": config.machine.seed, "split": config.input.split, **fixed}
        return cached(key, lambda: self._search(config, splits, fixed, report), report)

    def _roomier(self, config: RatingsConfig, given: Options, objects: int) -> JSON:
        """Where there is room for many numbers of an object: more dimensions, and smaller steps, since each adds noise."""
        if "embedding_dim" in given or config.budget.lower().endswith("x"):  # times smaller than this width
            return {}
        room = parse_budget(config.budget, 1.0).amount / objects
        return next((dict(options) for least, options in ROOMY if room > least), {})

    def _ridges(self, config: RatingsConfig, given: Options, usual: JSON, splits: RatingsSplits, report: Report) -> JSON:
        """The ridges of the best dense factorization of this width, as options of mini-batches; and how to round numbers."""
        width = usual.get("embedding_dim", config.tables.embedding_dim)
        fixed: JSON = {"embedding_dim": width} | ({} if config.tables.biases else {"bias_ridge": NO_BIAS})
        found = self._found(config, splits, fixed, report)
        chosen = {name: found["options"][known] for name, known in L2_OPTIONS.items() if known in found["options"]}
        if counts_bytes(config.budget) and "values" not in given:
            each = parse_budget(config.budget, 4.0 * sum(splits.num_embeddings) * (width + 1)).amount / sum(
                splits.num_embeddings
            )
            coarse = {values: least for values, least in ROUNDED_IN_BYTES.items() if each < BYTES_UP_TO.get(values, math.inf)}
            chosen["values"] = fine_enough(found["error"] / splits.deviation**2, coarse)
        return chosen

    def _affordable(self, given: Options, width: int, objects: int) -> int:
        """Anchors a side that take no more than a quarter of a budget: two bytes for a number, or a parameter."""
        if not given.get("budget"):
            return ANCHORS
        budget = parse_budget(str(given["budget"]), 4 * objects * (width + 1))
        each = 2 * width * (2 if budget.unit == "bytes" else 1)  # of both sides
        return max(int(0.25 * budget.amount / each), 2)

    def _search(self, config: RatingsConfig, splits: RatingsSplits, fixed: JSON, report: Report) -> JSON:
        sizes, seed = splits.num_embeddings, config.machine.seed
        train, validation = sampled(columns_of(splits.train), columns_of(splits.validation), sizes[0], seed)
        plan = replace(RATINGS, start=replace(RATINGS.start, bias_ridge=best_bias_ridge(train, validation, sizes)))
        search = DenseSearch(
            train,
            sizes,
            lambda descent: mean_squared_error(descent, validation),
            plan,
            seed=seed,
            threads=config.machine.threads,
            fixed=fixed,
        )
        return searched(search, "MSE", lambda error: error, report)


class SearchEvents(SearchRatings):
    """Events: the same, by the lists that come out of it."""

    def _search(self, config: RatingsConfig, splits: RatingsSplits, fixed: JSON, report: Report) -> JSON:
        held = held_items(splits, "validation")

        def measure(descent: Descent) -> float:
            users, items = descent.users.E.astype(np.float32), descent.items.E.astype(np.float32)
            bias = descent.items.bias.astype(np.float32)
            return 1 / max(list_metrics(lambda rows: users[rows], items, bias, held)[f"ndcg@{TOP}"], 1e-12)

        weight = likely_weight(len(splits.train), *splits.num_embeddings)
        search = DenseSearch(
            columns_of(splits.train),
            splits.num_embeddings,
            measure,
            replace(EVENTS, start=replace(EVENTS.start, unobserved_weight=weight)),
            seed=config.machine.seed,
            threads=config.machine.threads,
            fixed=fixed,
        )
        return searched(search, f"NDCG@{TOP}", lambda error: 1 / error, report)


def searched(search: DenseSearch, metric: str, shown: Callable[[float], float], report: Report) -> JSON:
    """Run a search, and say what it finds."""
    trials = 0

    def tell(trial: Trial) -> None:
        nonlocal trials
        trials += 1
        if trial.best:
            report(f"search, trial {trials}: {described(trial.settings)}: validation {metric} {shown(trial.error):.4f}")

    best = search.run(tell)
    report(f"searched {trials} dense models; the best has validation {metric} {shown(best.error):.4f}")
    return {"options": unscaled(best.settings, search.scale), "error": best.error, "trials": trials}


def columns_of(part: Examples) -> tuple[np.ndarray, ...]:
    return tuple(column.cpu().numpy() for column in part[:])


def fine_enough(unexplained: float, rounded: Mapping[str, float] = ROUNDED) -> str:
    """Numbers in the files whose rounding does not count beside the error, as a share of the ratings' variance."""
    return next((values for values, least in rounded.items() if unexplained > least), "fp16")


def likely_anchors(rows: int, width: int) -> int:
    """As many as there is use for: an anchor costs as much as `width` weights, whoever uses it."""
    return min(ANCHORS, max(2 * width, rows // 16, 2), max(rows, 1))


def described(settings: DenseSettings) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {value:.4g}" for name, value in asdict(settings).items() if value)


def unscaled(settings: DenseSettings, scale: float) -> JSON:
    """The options that mean these settings for ratings of this scale."""
    penalties = settings.penalties(scale)
    ridges = {"ridge": penalties.ridge, "ridge_per_rating": penalties.ridge_per_rating}
    if settings.bias_ridge < NO_BIAS:
        ridges["bias_ridge"] = penalties.bias_ridge
    if settings.unobserved_weight:
        ridges["unobserved_weight"] = settings.unobserved_weight
    return {"embedding_dim": settings.embedding_dim, **{name: float(f"{value:.4g}") for name, value in ridges.items()}}
