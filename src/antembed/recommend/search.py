"""Ratings and events without options: the best dense factorization, and how many anchors, as options of coordinate descent.

Width and ridges are found by a greedy search on validation data, from one start: a move changes one setting by a factor; a move
that helps is repeated, one that does not is undone. Alternating least squares solves each trial, from the best rows so far. The
result depends on the data and the seed alone.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace

import numpy as np

from antembed.budget import counts_bytes, parse_budget
from antembed.files import JSON
from antembed.recommend.config import L2_OPTIONS, TARGETS, RatingsConfig, sparsifies
from antembed.recommend.dataset import RatingsSplits, columns_of
from antembed.recommend.descent import INIT, Descent, narrowed
from antembed.recommend.factor import NO_BIAS, Penalties
from antembed.recommend.fold_in import likely_weight
from antembed.recommend.model import Columns, best_bias_ridge
from antembed.recommend.ranking import TOP, held_items, list_metrics
from antembed.train.config import TaskConfig
from antembed.train.configure import Report, cached
from antembed.train.options import Options, options_of
from antembed.train.task import Splits

TOLERANCE = "1%"
ANCHORS = 48  # of users, and of items, at most
ROUNDED = {"int6": 0.1, "int8": 0.01}  # from which share of unexplained variance on they are fine enough
ROUNDED_IN_BYTES = {"int5": 0.3, **ROUNDED}  # the same where bytes are given, and coarser numbers leave room for more of them
BYTES_UP_TO = {"int5": 8.0, "int6": 16.0}  # for each object: with more, rounding is most of what is lost
# From so many numbers, or bytes, for each object on:
ROOMY: list[tuple[float, JSON]] = [(16.0, {"embedding_dim": 16, "lr": 0.01}), (8.0, {"embedding_dim": 12, "lr": 0.015})]
WIDE = 24  # widths from which learned anchors take too long: there must be more of them than dimensions
MOST_RATINGS, NARROWEST = 20_000_000, 8  # that are searched; the width whose normal equations must fit into MEMORY
MOST_WIDTH, MEMORY = 64, 4e9  # of a trial, whose normal equations must fit into so many bytes
ROUNDS, LEAST_SWEEPS = 2, 4  # of moves; of a trial
SAMPLE = 2_000_000  # ratings that are enough to choose by
OPTIONS = ("ridge", "ridge_per_rating", "bias_ridge", "unobserved_weight")


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
        found = self._best(config, splits, report, config.tables.embedding_dim if "embedding_dim" in given else None)
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

    def _best(self, config: RatingsConfig, splits: RatingsSplits, report: Report, width: int | None) -> JSON:
        """The best dense factorization, as options, and its error. `width`: given, not searched."""
        fixed: JSON = {} if width is None else {"embedding_dim": width}
        if not config.tables.biases:
            fixed["bias_ridge"] = NO_BIAS
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
        width, objects = usual.get("embedding_dim", config.tables.embedding_dim), sum(splits.num_embeddings)
        found = self._best(config, splits, report, width)
        chosen = {name: found["options"][known] for name, known in L2_OPTIONS.items() if known in found["options"]}
        if counts_bytes(config.budget) and "values" not in given:
            each = parse_budget(config.budget, 4.0 * objects * (width + 1)).amount / objects
            coarse = {values: least for values, least in ROUNDED_IN_BYTES.items() if each < BYTES_UP_TO.get(values, math.inf)}
            chosen["values"] = fine_enough(found["error"] / splits.deviation**2, coarse)
        return chosen

    def _affordable(self, given: Options, width: int, objects: int) -> int:
        """Anchors of users, or items, that take no more than a quarter of a budget: two bytes for a number, or a parameter."""
        if not given.get("budget"):
            return ANCHORS
        budget = parse_budget(str(given["budget"]), 4 * objects * (width + 1))
        each = 2 * width * (2 if budget.unit == "bytes" else 1)  # of both
        return max(int(0.25 * budget.amount / each), 2)

    def _search(self, config: RatingsConfig, splits: RatingsSplits, fixed: JSON, report: Report) -> JSON:
        sizes, seed = splits.num_embeddings, config.machine.seed
        train, validation = sampled(columns_of(splits.train), columns_of(splits.validation), sizes[0], seed)
        start = replace(RATINGS.start, bias_ridge=best_bias_ridge(train, validation, sizes))
        search = DenseSearch(train, sizes, replace(RATINGS, start=start), seed, config.machine.threads, fixed)

        def error(descent: Descent) -> float:
            return float(np.square(descent.predict(validation[0], validation[1]) - validation[2]).mean())

        return search.run(error, "MSE", lambda error: error, report)


class SearchEvents(SearchRatings):
    """Events: the same, by the lists that come out of it."""

    def _search(self, config: RatingsConfig, splits: RatingsSplits, fixed: JSON, report: Report) -> JSON:
        held, sizes = held_items(splits, "validation"), splits.num_embeddings
        start = replace(EVENTS.start, unobserved_weight=likely_weight(len(splits.train), *sizes))
        plan, train = replace(EVENTS, start=start), columns_of(splits.train)
        search = DenseSearch(train, sizes, plan, config.machine.seed, config.machine.threads, fixed)

        def error(descent: Descent) -> float:
            users, items = descent.users.E.astype(np.float32), descent.items.E.astype(np.float32)
            bias = descent.items.bias.astype(np.float32)
            return 1 / max(list_metrics(lambda rows: users[rows], items, bias, held)[f"ndcg@{TOP}"], 1e-12)

        return search.run(error, f"NDCG@{TOP}", lambda error: 1 / error, report)


def fine_enough(unexplained: float, rounded: Mapping[str, float] = ROUNDED) -> str:
    """Numbers in the files whose rounding does not count beside the error, as a share of the ratings' variance."""
    return next((values for values, least in rounded.items() if unexplained > least), "fp16")


def likely_anchors(rows: int, width: int) -> int:
    """As many as there is use for: an anchor costs as much as `width` weights, whatever rows use it."""
    return min(ANCHORS, max(2 * width, rows // 16, 2), max(rows, 1))


Moves = tuple[dict[str, float], ...]  # settings, and by which factors they change


@dataclass(frozen=True)
class DenseSettings:
    """What is searched, beside the scale of the ratings."""

    embedding_dim: int = 8
    ridge: float = 7.0
    ridge_per_rating: float = 0.02
    bias_ridge: float = 6.0
    unobserved_weight: float = 0.0

    def penalties(self, scale: float) -> Penalties:
        """e·e is in the unit of the ratings, so a ridge on e is, too; biases are squared as the errors are."""
        return Penalties(0.0, self.ridge * scale, self.ridge_per_rating * scale, self.bias_ridge, self.unobserved_weight)

    def moved(self, move: Mapping[str, float]) -> "DenseSettings":
        """The settings after a move."""
        changed: JSON = {name: float(f"{vars(self)[name] * factor:.4g}") for name, factor in move.items()}
        if "embedding_dim" in changed:
            changed["embedding_dim"] = max(round(changed["embedding_dim"]), 1)
        return replace(self, **changed)

    def options(self, scale: float) -> JSON:
        """The options that mean these settings for ratings of this scale."""
        own = asdict(self.penalties(scale))
        found = {name: float(f"{own[name]:.4g}") for name in OPTIONS if 0 < own[name] < NO_BIAS}
        return {"embedding_dim": self.embedding_dim, **found}

    def __str__(self) -> str:
        return ", ".join(f"{name.replace('_', ' ')} {value:.4g}" for name, value in asdict(self).items() if value)


@dataclass(frozen=True)
class Plan:
    """How to search: from where, by which factors of which settings, and when a difference counts."""

    start: DenseSettings
    coarse: Moves  # of the first round
    fine: Moves  # and of the others
    sweeps: int  # of a trial, at most
    settled: float  # a trial ends when a sweep changes the error by less than this share: up counts too
    better: float  # a move must gain this share


def both_ways(factor: float, *names: str) -> Moves:
    """Settings times a factor, and divided by it."""
    return dict.fromkeys(names, factor), dict.fromkeys(names, 1 / factor)


RATINGS = Plan(
    DenseSettings(),
    coarse=both_ways(4, "ridge", "ridge_per_rating"),
    fine=(
        *both_ways(2, "embedding_dim"), *both_ways(2, "ridge"), *both_ways(1.5, "ridge_per_rating"), *both_ways(2, "bias_ridge")
    ),
    sweeps=12, settled=5e-4, better=4e-4,
)  # fmt: skip
EVENTS = Plan(
    DenseSettings(16, 0.3, 0.1, 1.0, 0.01),
    coarse=(*both_ways(2, "ridge_per_rating"), *both_ways(3, "unobserved_weight"), *both_ways(4, "ridge")),
    fine=({"embedding_dim": 2}, *both_ways(1.4, "ridge_per_rating"), *both_ways(1.7, "unobserved_weight")),
    sweeps=6, settled=5e-3, better=5e-3,
)  # fmt: skip


class DenseSearch:
    """users, items, ratings (and weights) → the settings of the best dense factorization. `fixed` settings are not changed."""

    def __init__(self, train: Columns, num_embeddings: tuple[int, int], plan: Plan, seed: int, threads: int, fixed: JSON):
        self.train, self.num_embeddings, self.plan = train, num_embeddings, plan
        self.seed, self.threads, self.fixed = seed, threads, fixed
        self.scale = float(np.std(train[2])) or 1.0
        self.widest = MOST_WIDTH
        while self.widest > 1 and sum(num_embeddings) * (self.widest + 1) ** 2 * 8 > MEMORY:
            self.widest //= 2
        self.descent: Descent | None = None
        self.rows: tuple[np.ndarray, np.ndarray] | None = None  # the best ones

    def run(self, measure: Callable[[Descent], float], metric: str, shown: Callable[[float], float], report: Report) -> JSON:
        """The options of the best trial. `measure`: the validation error of a model; reported as `metric`, shown(error)."""
        start = replace(self.plan.start, **self.fixed)
        best = replace(start, embedding_dim=min(start.embedding_dim, self.widest))
        tried, lowest = {best}, self._try(best, measure, math.inf)

        def say() -> None:
            report(f"search, trial {len(tried)}: {best}: validation {metric} {shown(lowest):.4f}")

        say()
        for round_ in range(ROUNDS):
            for move in (*self.plan.coarse, *self.plan.fine) if round_ == 0 else self.plan.fine:
                if self.fixed.keys() & move.keys():
                    continue
                while (settings := best.moved(move)) not in tried and settings.embedding_dim <= self.widest:
                    tried.add(settings)
                    if (error := self._try(settings, measure, lowest)) >= (1 - self.plan.better) * lowest:
                        break
                    best, lowest = settings, error
                    say()
        report(f"searched {len(tried)} dense models; the best has validation {metric} {shown(lowest):.4f}")
        return {"options": best.options(self.scale), "error": lowest, "trials": len(tried)}

    @np.errstate(all="ignore")
    def _try(self, settings: DenseSettings, measure: Callable[[Descent], float], lowest: float) -> float:
        """The error of a trial, whose rows are kept if it is the best; infinite where hardly any ridge and few ratings let
        numbers grow without end."""
        descent = self._descent(settings)
        if self.rows is None:
            descent.init_dense(INIT * self.scale**0.5)
        else:
            descent.items.E, descent.items.bias = _widened(self.rows[0], settings.embedding_dim, self.seed), self.rows[1].copy()
        error, last = math.inf, math.inf
        for sweep in range(self.plan.sweeps if self.rows else 2 * self.plan.sweeps):
            try:
                descent.sweep_dense()
            except np.linalg.LinAlgError:
                return math.inf
            if sweep >= LEAST_SWEEPS - 1:
                last, error = error, measure(descent)
                if abs(error - last) < self.plan.settled * error:
                    break
        error = error if np.isfinite(error) else math.inf
        if self.rows is None or error < (1 - self.plan.better) * lowest:
            self.rows = descent.items.E.copy(), descent.items.bias.copy()
        return error

    def _descent(self, settings: DenseSettings) -> Descent:
        penalties, width = settings.penalties(self.scale), settings.embedding_dim
        if self.descent is None or self.descent.users.E.shape[1] != width:
            self.descent = None  # before the next one takes its memory
            given, seed, threads = (self.train, self.num_embeddings), self.seed, self.threads
            self.descent = Descent(*given, None, width, penalties, seed=seed, threads=threads)
        self.descent.use(penalties)
        return self.descent


def _widened(rows: np.ndarray, width: int, seed: int) -> np.ndarray:
    """The same rows with fewer columns (those that carry most), or with random ones added."""
    if width < rows.shape[1]:
        return narrowed(rows, width)
    size = 0.5 * float(np.sqrt(np.mean(rows**2)) or INIT)
    more = size * np.random.default_rng(seed).standard_normal((len(rows), width - rows.shape[1]))
    return np.hstack([rows, more])


def sampled(train: Columns, validation: Columns, users: int, seed: int) -> tuple[Columns, Columns]:
    """The ratings of so many users that a choice is sound, and no more."""
    if len(train[0]) <= SAMPLE:
        return train, validation
    chosen = np.random.default_rng(seed).random(users) < SAMPLE / len(train[0])
    return tuple(column[chosen[train[0]]] for column in train), tuple(column[chosen[validation[0]]] for column in validation)
