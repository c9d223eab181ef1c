"""The best dense factorization: its width and ridges, by a short search on validation data.

A greedy search from one start: a move changes one setting by a factor; a move that helps is repeated, one that does not is
undone. Alternating least squares solves each trial, from the best rows so far. It depends on the data and the seed alone.
"""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace

import numpy as np

from antembed.files import JSON
from antembed.recommend.descent import INIT, Descent, narrowed
from antembed.recommend.factor import Penalties
from antembed.recommend.model import Columns

WIDTH, MOST_WIDTH = 8, 64
ROUNDS, LEAST_SWEEPS = 2, 4
MEMORY = 4e9  # bytes of normal equations
SAMPLE = 2_000_000  # ratings that are enough to choose by


@dataclass(frozen=True)
class DenseSettings:
    """What is searched, beside the scale of the ratings."""

    embedding_dim: int = WIDTH
    ridge: float = 7.0
    ridge_per_rating: float = 0.02
    bias_ridge: float = 6.0
    unobserved_weight: float = 0.0

    def penalties(self, scale: float) -> Penalties:
        """e·e is in the unit of the ratings, so a ridge on e is, too; biases are squared as the errors are."""
        return Penalties(0.0, self.ridge * scale, self.ridge_per_rating * scale, self.bias_ridge, self.unobserved_weight)


@dataclass(frozen=True)
class Plan:
    """How to search: from where, by which factors of which settings, and when a difference counts."""

    start: DenseSettings
    moves: tuple[dict[str, float], ...]
    coarse: int  # so many moves, the first, are for the first round
    sweeps: int  # of a trial, at most
    settled: float  # a trial ends when a sweep changes the error by less than this share: up counts too
    better: float  # a move must gain this share


RATINGS = Plan(
    DenseSettings(),
    (
        {"ridge": 4, "ridge_per_rating": 4},
        {"ridge": 1 / 4, "ridge_per_rating": 1 / 4},
        {"embedding_dim": 2},
        {"embedding_dim": 1 / 2},
        {"ridge": 2},
        {"ridge": 1 / 2},
        {"ridge_per_rating": 1.5},
        {"ridge_per_rating": 1 / 1.5},
        {"bias_ridge": 2},
        {"bias_ridge": 1 / 2},
    ),
    coarse=2,
    sweeps=12,
    settled=5e-4,
    better=4e-4,
)
EVENTS = Plan(
    DenseSettings(16, 0.3, 0.1, 1.0, 0.01),
    (
        {"ridge_per_rating": 2},
        {"ridge_per_rating": 1 / 2},
        {"unobserved_weight": 3},
        {"unobserved_weight": 1 / 3},
        {"ridge": 4},
        {"ridge": 1 / 4},
        {"embedding_dim": 2},
        {"ridge_per_rating": 1.4},
        {"ridge_per_rating": 1 / 1.4},
        {"unobserved_weight": 1.7},
        {"unobserved_weight": 1 / 1.7},
    ),
    coarse=6,
    sweeps=6,
    settled=5e-3,
    better=5e-3,
)


@dataclass(frozen=True)
class Trial:
    """What was tried, and the validation error it came to."""

    settings: DenseSettings
    error: float
    best: bool

    def to_json(self) -> JSON:
        return asdict(self)


def moved(settings: DenseSettings, move: dict[str, float]) -> DenseSettings:
    """The settings after a move."""
    changed: JSON = {name: float(f"{vars(settings)[name] * factor:.4g}") for name, factor in move.items()}
    if "embedding_dim" in changed:
        changed["embedding_dim"] = max(round(changed["embedding_dim"]), 1)
    return replace(settings, **changed)


class DenseSearch:
    """users, items, ratings (and weights) → settings. `measure` is the validation error; `fixed` settings are not changed."""

    def __init__(
        self,
        train: Columns,
        num_embeddings: tuple[int, int],
        measure: Callable[[Descent], float],
        plan: Plan,
        *,
        seed: int,
        threads: int,
        fixed: JSON,
    ):
        self.train, self.num_embeddings, self.measure, self.plan = train, num_embeddings, measure, plan
        self.seed, self.threads, self.fixed = seed, threads, fixed
        self.scale = float(np.std(self.train[2])) or 1.0
        self.widest = _widest(sum(num_embeddings))
        self.descent: Descent | None = None
        self.rows: tuple[np.ndarray, np.ndarray] | None = None  # the best ones

    def run(self, callback: Callable[[Trial], None]) -> Trial:
        """The best trial of all."""
        start = replace(self.plan.start, **self.fixed)
        start = replace(start, embedding_dim=min(start.embedding_dim, self.widest))
        best = self._try(start, None)
        callback(best)
        tried = {start}
        for round_ in range(ROUNDS):
            for move in self._moves(coarse=round_ == 0):
                while (settings := moved(best.settings, move)) not in tried and settings.embedding_dim <= self.widest:
                    tried.add(settings)
                    trial = self._try(settings, best)
                    callback(trial)
                    if not trial.best:
                        break
                    best = trial
        return best

    def _moves(self, coarse: bool) -> Iterator[dict[str, float]]:
        moves = self.plan.moves if coarse else self.plan.moves[self.plan.coarse :]
        return (move for move in moves if not self.fixed.keys() & move.keys())

    def _try(self, settings: DenseSettings, before: Trial | None) -> Trial:
        """A trial; with hardly any ridge and few ratings numbers may grow without end: its error is infinite then."""
        with np.errstate(all="ignore"):
            return self._solve(settings, before)

    def _solve(self, settings: DenseSettings, before: Trial | None) -> Trial:
        descent = self._descent(settings)
        if self.rows is None:
            descent.init_dense(INIT * self.scale**0.5)
        else:
            descent.items.E, descent.items.bias = _widened(self.rows[0], settings.embedding_dim, self.seed), self.rows[1].copy()
        error, last = float("inf"), float("inf")
        for sweep in range(self.plan.sweeps if before else 2 * self.plan.sweeps):
            try:
                descent.sweep_dense()
            except np.linalg.LinAlgError:
                return Trial(settings, float("inf"), before is None)
            if sweep >= LEAST_SWEEPS - 1:
                last, error = error, self.measure(descent)
                if abs(error - last) < self.plan.settled * error:
                    break
        error = error if np.isfinite(error) else float("inf")
        better = before is None or error < (1 - self.plan.better) * before.error
        if better:
            self.rows = descent.items.E.copy(), descent.items.bias.copy()
        return Trial(settings, error, better)

    def _descent(self, settings: DenseSettings) -> Descent:
        penalties = settings.penalties(self.scale)
        if self.descent is None or self.descent.users.E.shape[1] != settings.embedding_dim:
            self.descent = None  # before the next one takes its memory
            self.descent = Descent(
                self.train,
                self.num_embeddings,
                None,
                settings.embedding_dim,
                penalties,
                sweeps=1,
                seed=self.seed,
                threads=self.threads,
            )
        self.descent.use(penalties)
        return self.descent


def _widest(objects: int) -> int:
    """The largest power of two whose normal equations fit into memory."""
    width = MOST_WIDTH
    while width > 1 and objects * (width + 1) ** 2 * 8 > MEMORY:
        width //= 2
    return width


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


def mean_squared_error(descent: Descent, columns: Columns) -> float:
    """Over these ratings."""
    return float(np.square(descent.predict(columns[0], columns[1]) - columns[2]).mean())
