"""What happens without options: the solver, the widths and the penalties that suit the data, by a short search.

A task with an entry in AUTOMATIC is searched if no option was given that belongs to one solver. The search ends in options, so
the run that follows is an ordinary one, and its config.json says what was found. Searches are cached by their data.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Protocol

from antembed.config import Options, TaskConfig, options_of
from antembed.data import default_cache
from antembed.files import JSON, write_atomically
from antembed.solvers.dense_search import MEMORY, DenseSearch, DenseSettings, Trial
from antembed.tasks.base import Splits, Task
from antembed.tasks.ratings.config import RatingsConfig
from antembed.tasks.ratings.data import RatingsSplits

VERSION = 1  # of what is cached
AUTO = "auto"
TARGETS = ("budget", "tolerance")
TOLERANCE = "1%"
ANCHORS = 48
MOST_RATINGS, NARROWEST = 20_000_000, 8
Report = Callable[[str], None]


class Automatic(Protocol):
    """The search of a task."""

    def applies(self, config: TaskConfig) -> bool:
        """Whether these settings leave something to be searched."""

    def __call__(self, config: TaskConfig, given: Options, splits: Splits, report: Report) -> JSON:
        """Options that were found, to be added to those given."""


def is_automatic(task: Task, given: Options) -> bool:
    """Whether the options leave the choice of the solver to us."""
    if task.name not in AUTOMATIC or given.get("solver", AUTO) != AUTO:
        return False
    known = options_of(task.Config)
    return not any(known[name].owners and name not in TARGETS for name in given if name in known)


class SearchRatings:
    """Ratings: the best dense factorization, then anchors by coordinate descent."""

    def applies(self, config: TaskConfig) -> bool:
        assert isinstance(config, RatingsConfig)
        return config.tables.embedding in ("anchor", "full") and config.input.split == "80/10/10" and not config.auto

    def __call__(self, config: TaskConfig, given: Options, splits: Splits, report: Report) -> JSON:
        assert isinstance(config, RatingsConfig)
        assert isinstance(splits, RatingsSplits)
        users, items = splits.num_embeddings
        if len(splits.train) > MOST_RATINGS or (users + items) * (NARROWEST + 1) ** 2 * 8 > MEMORY:
            report(
                f"{len(splits.train):,} ratings of {users + items:,} users and items are too many for the search: "
                "trained with the defaults of --solver stochastic; say a size with --budget"
            )
            return {"solver": "stochastic"}
        fixed = {"embedding_dim": config.tables.embedding_dim} if "embedding_dim" in given else {}
        found = cached(
            {"search": "ratings", "data": splits.digest, "seed": config.machine.seed, "split": config.input.split, **fixed},
            lambda: self._search(config, splits, fixed, report),
            report,
        )
        chosen: JSON = {"solver": "coordinate_descent", **found["options"]}
        if config.tables.embedding == "full":
            return chosen
        if "anchors" not in given:
            chosen["anchors"] = tuple(likely_anchors(n, chosen["embedding_dim"]) for n in (users, items))
        return chosen if set(given) & set(TARGETS) else chosen | {"tolerance": TOLERANCE}

    def _search(self, config: RatingsConfig, splits: RatingsSplits, fixed: JSON, report: Report) -> JSON:
        train, validation = (tuple(column.cpu().numpy() for column in part[:]) for part in (splits.train, splits.validation))
        search = DenseSearch(
            train, validation, splits.num_embeddings, seed=config.machine.seed, threads=config.machine.threads, fixed=fixed
        )
        trials = 0

        def tell(trial: Trial) -> None:
            nonlocal trials
            trials += 1
            if trial.best:
                report(f"search, trial {trials}: {described(trial.settings)}: validation MSE {trial.error:.4f}")

        best = search.run(tell)
        report(f"searched {trials} dense models; the best has validation MSE {best.error:.4f}")
        return {"options": unscaled(best.settings, search.scale), "error": best.error, "trials": trials}


def likely_anchors(rows: int, width: int) -> int:
    """As many as there is use for: an anchor costs as much as `width` weights, whoever uses it."""
    return min(ANCHORS, max(2 * width, rows // 16, 2), max(rows, 1))


def described(settings: DenseSettings) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {value:.4g}" for name, value in asdict(settings).items())


def unscaled(settings: DenseSettings, scale: float) -> JSON:
    """The options that mean these settings for ratings of this scale."""
    penalties = settings.penalties(scale)
    ridges = {"ridge": penalties.ridge, "ridge_per_rating": penalties.ridge_per_rating, "bias_ridge": penalties.bias_ridge}
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


AUTOMATIC: dict[str, Automatic] = {"recommend": SearchRatings()}
