"""The best dense factorization: its width and ridges, by a short search on validation data.

A greedy search from one start: a move changes one setting by a factor; a move that helps is repeated, one that does not is
undone. Alternating least squares solves each trial, from the best rows so far. It depends on the data and the seed alone.
"""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace

import numpy as np

from antembed.files import JSON
from antembed.solvers.descent import INIT, Descent
from antembed.solvers.side import Penalties
from antembed.solvers.tolerance import mean_squared_error
from antembed.tasks.ratings.baselines import Columns, best_bias_ridge

WIDTH, MOST_WIDTH = 8, 64
ROUNDS, LEAST_SWEEPS, SWEEPS = 2, 4, 12
SETTLED = 5e-4  # a trial ends when a sweep changes the error by less than this share: up counts too, or it would look better
BETTER = 4e-4  # a move must gain this share
MEMORY = 4e9  # bytes of normal equations
SAMPLE = 2_000_000  # ratings that are enough to choose by


@dataclass(frozen=True)
class DenseSettings:
    """What is searched, beside the scale of the ratings."""

    embedding_dim: int = WIDTH
    ridge: float = 7.0
    ridge_per_rating: float = 0.02
    bias_ridge: float = 6.0

    def penalties(self, scale: float, unobserved_weight: float = 0.0) -> Penalties:
        """e·e is in the unit of the ratings, so a ridge on e is, too; biases are squared as the errors are."""
        return Penalties(0.0, self.ridge * scale, self.ridge_per_rating * scale, self.bias_ridge, unobserved_weight)


# Factors by name; the first two are for the first round.
MOVES: tuple[dict[str, float], ...] = (
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
    changed = {name: vars(settings)[name] * factor for name, factor in move.items()}
    if "embedding_dim" in changed:
        changed["embedding_dim"] = max(round(changed["embedding_dim"]), 1)
    return replace(
        settings, **{name: float(f"{value:.4g}") if name != "embedding_dim" else value for name, value in changed.items()}
    )


class DenseSearch:
    """users, items, ratings (and weights) of training and validation → settings. `fixed`: settings that are not changed."""

    def __init__(
        self, train: Columns, validation: Columns, num_embeddings: tuple[int, int], *, seed: int, threads: int, fixed: JSON
    ):
        self.train, self.validation, self.num_embeddings = *_sampled(train, validation, num_embeddings[0], seed), num_embeddings
        self.seed, self.threads, self.fixed = seed, threads, fixed
        self.scale = float(np.std(self.train[2])) or 1.0
        self.widest = _widest(sum(num_embeddings))
        self.descent: Descent | None = None
        self.rows: tuple[np.ndarray, np.ndarray] | None = None  # the best ones

    def run(self, callback: Callable[[Trial], None]) -> Trial:
        """The best trial of all."""
        bias_ridge = best_bias_ridge(self.train, self.validation, self.num_embeddings)
        start = replace(DenseSettings(bias_ridge=bias_ridge), **self.fixed)
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
        return (move for move in (MOVES if coarse else MOVES[2:]) if not self.fixed.keys() & move.keys())

    def _try(self, settings: DenseSettings, before: Trial | None) -> Trial:
        descent = self._descent(settings)
        if self.rows is None:
            descent.init_dense(INIT * self.scale**0.5)
        else:
            descent.items.E, descent.items.bias = _widened(self.rows[0], settings.embedding_dim, self.seed), self.rows[1].copy()
        error, last = float("inf"), float("inf")
        for sweep in range(SWEEPS if before else 2 * SWEEPS):
            descent.sweep_dense()
            last, error = error, mean_squared_error(descent, self.validation)
            if sweep >= LEAST_SWEEPS and abs(error - last) < SETTLED * error:
                break
        better = before is None or error < (1 - BETTER) * before.error
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
        self.descent.penalties = penalties
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
        _, _, directions = np.linalg.svd(rows, full_matrices=False)
        return rows @ directions[:width].T
    size = 0.5 * float(np.sqrt(np.mean(rows**2)) or INIT)
    more = size * np.random.default_rng(seed).standard_normal((len(rows), width - rows.shape[1]))
    return np.hstack([rows, more])


def _sampled(train: Columns, validation: Columns, users: int, seed: int) -> tuple[Columns, Columns]:
    """The ratings of so many users that a choice is sound, and no more."""
    if len(train[0]) <= SAMPLE:
        return train, validation
    chosen = np.random.default_rng(seed).random(users) < SAMPLE / len(train[0])
    return tuple(column[chosen[train[0]]] for column in train), tuple(column[chosen[validation[0]]] for column in validation)
