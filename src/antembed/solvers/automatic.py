"""What happens without options: the solver, the widths and the penalties that suit the data, by a short search.

A task with an entry in AUTOMATIC is searched if no option was given that belongs to one solver. The search ends in options, so
the run that follows is an ordinary one, and its config.json says what was found. Searches are cached by their data.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Protocol

import numpy as np

from antembed.config import Options, TaskConfig, options_of
from antembed.config.budget import BudgetError, counts_bytes
from antembed.config.tolerance import parse_tolerance
from antembed.data import Documents, Examples, default_cache
from antembed.files import JSON, write_atomically
from antembed.solvers.dense_search import (
    EVENTS,
    MEMORY,
    RATINGS,
    DenseSearch,
    DenseSettings,
    Trial,
    mean_squared_error,
    sampled,
)
from antembed.solvers.descent import Descent
from antembed.solvers.ngram_search import NgramSearch
from antembed.solvers.side import NO_BIAS
from antembed.tasks.base import Splits, Task
from antembed.tasks.events.config import likely_weight
from antembed.tasks.events.ranking import TOP, held_items, list_metrics
from antembed.tasks.ngrams.config import NgramConfig
from antembed.tasks.ratings.baselines import best_bias_ridge
from antembed.tasks.ratings.config import RatingsConfig
from antembed.tasks.ratings.data import RatingsSplits
from antembed.tasks.text.data import DocumentExamples, TextSplits

VERSION = 5  # of what is cached; a change of a search is another version
AUTO = "auto"
TARGETS = ("budget", "tolerance")
TOLERANCE = "1%"
TEXT_TOLERANCE = "0.5%"
NEUTRAL = {"data", "test", "text", "label", "max_length", "seed", "threads", "model", *TARGETS}  # say nothing of a model
EVENT_SETTINGS = {"ridge", "ridge_per_rating", "bias_ridge", "unobserved_weight", "l0_penalty", "epochs", "basis"}
ANCHORS = 48
WIDE = 24  # widths from which learned anchors take too long: there must be more of them than dimensions
MOST_RATINGS, NARROWEST = 20_000_000, 8
Report = Callable[[str], None]


def silent(line: str) -> None:
    """The report of those who do not want to know."""


class Automatic(Protocol):
    """The search of a task."""

    def wanted(self, task: Task, given: Options) -> bool:
        """Whether the options leave the choice to us."""

    def first_options(self, given: Options) -> tuple[str, Options]:
        """The task to search in, and the options to read the data with."""

    def __call__(self, config: TaskConfig, given: Options, splits: Splits, report: Report) -> JSON:
        """Options that were found, to be added to those given."""


class SearchRatings:
    """Ratings: the best dense factorization, then anchors by coordinate descent."""

    name = "recommend"

    def wanted(self, task: Task, given: Options) -> bool:
        """No option belongs to one solver alone, and the tables are such that coordinate descent can solve them."""
        if given.get("solver", AUTO) not in (AUTO, "coordinate_descent"):
            return False
        if given.get("split") == "90/10" or given.get("anchors") == AUTO:
            return False
        if given.get("embedding", "anchor") not in ("anchor", "full"):
            return False
        known = options_of(task.Config)
        return not any(known[option].owners and option not in TARGETS for option in given if option in known)

    def first_options(self, given: Options) -> tuple[str, Options]:
        return self.name, {option: value for option, value in given.items() if option != "solver"}

    def __call__(self, config: TaskConfig, given: Options, splits: Splits, report: Report) -> JSON:
        assert isinstance(config, RatingsConfig)
        assert isinstance(splits, RatingsSplits)
        users, items = splits.num_embeddings
        large = len(splits.train) > MOST_RATINGS or (users + items) * (NARROWEST + 1) ** 2 * 8 > MEMORY
        if large and config.task == "recommend":  # events have no other solver
            report(
                f"{len(splits.train):,} ratings of {users + items:,} users and items are too many for the search: "
                "trained with the defaults of --solver stochastic; say a size with --budget"
            )
            return {"solver": "stochastic"}
        fixed: JSON = {"embedding_dim": config.tables.embedding_dim} if "embedding_dim" in given else {}
        if not config.tables.biases:
            fixed["bias_ridge"] = NO_BIAS
        found = cached(
            {"search": config.task, "data": splits.digest, "seed": config.machine.seed, "split": config.input.split, **fixed},
            lambda: self._search(config, splits, fixed, report),
            report,
        )
        chosen: JSON = found["options"] | ({"solver": "coordinate_descent"} if "solver" in options_of(type(config)) else {})
        if config.tables.embedding == "full":
            return chosen
        if set(given) & set(TARGETS) <= {"tolerance"} and chosen["embedding_dim"] > WIDE and "anchors" not in given:
            chosen |= {"basis": "axes", "anchors": (2 * chosen["embedding_dim"],)}
        elif "anchors" not in given:
            chosen["anchors"] = tuple(likely_anchors(n, chosen["embedding_dim"]) for n in (users, items))
        return chosen if set(given) & set(TARGETS) else chosen | {"tolerance": TOLERANCE}

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

    name = "recommend-events"

    def wanted(self, task: Task, given: Options) -> bool:
        return given.get("embedding", "anchor") in ("anchor", "full") and not EVENT_SETTINGS & set(given)

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


class SearchText:
    """Text: n-grams, by their accuracy, in the smallest file within the tolerance."""

    def wanted(self, task: Task, given: Options) -> bool:
        if task.name == "classify":
            return given.get("model", AUTO) == AUTO and set(given) <= NEUTRAL and _is_file_size(given.get("budget"))
        return bool(given.get("tolerance")) and set(given) <= NEUTRAL | {"ngrams"}

    def first_options(self, given: Options) -> tuple[str, Options]:
        kept = {name: value for name, value in given.items() if name not in ("model", "tolerance", "threads")}
        return "classify-ngrams", kept | {"hold_out": True}

    def __call__(self, config: TaskConfig, given: Options, splits: Splits, report: Report) -> JSON:
        assert isinstance(splits, TextSplits)
        assert isinstance(config, NgramConfig)
        fixed = {"orders": config.solver.ngrams} if "ngrams" in given else {}
        tolerance = str(given.get("tolerance", TEXT_TOLERANCE))
        size = {"budget": config.solver.budget} if "budget" in given else {"tolerance": tolerance}
        read = {"data": splits.digest, "seed": config.machine.seed, "max_length": config.input.max_length}
        found = cached(
            {"search": "ngrams", **read, "columns": [config.input.text, config.input.label], **fixed, **size},
            lambda: self._search(splits, config.machine.seed, fixed, size, report),
            report,
        )
        return {**found["options"], "hold_out": False}

    def _search(self, splits: TextSplits, seed: int, fixed: JSON, size: JSON, report: Report) -> JSON:
        train, validation = (_documents(part) for part in (splits.train, splits.validation))
        search = NgramSearch(train, validation, seed)
        best = search.settings(fixed, report)
        options: JSON = {"ngrams": best.orders, "ridge": best.ridge, "rarity": best.rarity, "noise": best.noise, **size}
        if "tolerance" not in size:
            return {"options": options}
        amount, accuracy, dense = search.size(best, parse_tolerance(options.pop("tolerance")), report)
        report(f"searched: {amount:,} bytes, validation accuracy {accuracy:.4f}; without a size {dense:.4f}")
        return {"options": options | {"budget": f"{amount}B"}, "dense_accuracy": dense}


def _is_file_size(budget: object) -> bool:
    """Whether a budget, if there is one, is a number of bytes: n-grams have no dense table to be compared with."""
    text = str(budget or "1B")
    try:
        return counts_bytes(text) and not text.strip().lower().endswith("x")
    except BudgetError:
        return False  # the config says what is wrong with it


def _documents(part: DocumentExamples) -> Documents:
    assert part.documents is not None
    return part.documents.take(part.rows)


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


def cached(key: Mapping[str, object], search: Callable[[], JSON], report: Report) -> JSON:
    """What the search finds, or has found for this key before."""
    name = hashlib.sha256(json.dumps({"version": VERSION, **key}, sort_keys=True).encode()).hexdigest()[:32]
    file = default_cache() / "searches" / f"{name}.json"
    if (known := _read(file)) is not None:
        report(f"search: as found before ({file})")
        return known
    found = search()
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, json.dumps(found).encode())
    except OSError as error:
        report(f"the search could not be cached: {error}; set ANTEMBED_CACHE to another folder")
    return found


def _read(file: Path) -> JSON | None:
    try:
        found: JSON = json.loads(file.read_text())
    except (OSError, ValueError):
        return None
    return found if isinstance(found.get("options"), dict) else None


AUTOMATIC: dict[str, Automatic] = {
    "recommend": SearchRatings(),
    "recommend-events": SearchEvents(),
    "classify": SearchText(),
    "classify-ngrams": SearchText(),
}
