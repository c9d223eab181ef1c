"""Synthetic ratings with a known answer, planted anchors A* and a sparse T* ≥ 0; and the demo, which trains on them."""

import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from antembed.files import JSON
from antembed.recommend.config import RatingsConfig
from antembed.recommend.dataset import cut
from antembed.recommend.ratings_table import Ratings
from antembed.train.options import from_options
from antembed.train.run import train
from antembed.train.run_folder import RunFolder
from antembed.train.solver import Callback


def zipf(V: int, exponent: float) -> np.ndarray:
    """Popularity of V objects, p_i ∝ 1/(i + 1)^exponent: (V,), sums to 1."""
    p = 1.0 / np.arange(1, V + 1) ** exponent
    return p / p.sum()


@dataclass(frozen=True)
class Planted:
    """The answer: E* = T*·A*, every object a mix of `per_object` of the K* anchors; and the popularity of each object."""

    T: np.ndarray  # (V, K*) ≥ 0
    A: np.ndarray  # (K*, d), orthonormal rows where K* ≤ d
    popularity: np.ndarray  # (V,)

    @property
    def E(self) -> np.ndarray:
        return self.T @ self.A


def planted(
    V: int,
    d: int = 16,
    *,
    anchors: int = 6,
    per_object: int = 2,
    exponent: float = 1.0,
    seed: int = 0,
    like: Planted | None = None,
) -> Planted:
    """A planted table, with the anchors of `like`, if given. Popular objects differ from rare ones only in how often they
    occur (Zipf)."""
    if like is not None:
        anchors, d = like.A.shape
    if not 1 <= per_object <= anchors:
        raise ValueError(f"per_object must be between 1 and the {anchors} anchors, got {per_object}")
    rng = np.random.default_rng(seed)
    A = rng.standard_normal((anchors, d))
    if like is not None:
        A = like.A
    elif anchors <= d:
        A = np.linalg.qr(A.T)[0].T
    T = np.zeros((V, anchors))
    chosen = np.argsort(rng.random((V, anchors)), axis=1)[:, :per_object]
    np.put_along_axis(T, chosen, 0.5 + rng.random((V, per_object)), axis=1)
    return Planted(T, A, zipf(V, exponent))


def ratings(users: Planted, items: Planted, n: int, *, mean: float = 3.5, noise: float = 0.1, seed: int = 0) -> Ratings:
    """n ratings mean + e_u·e_i + noise; both planted in the same dimension, objects drawn by popularity."""
    if users.A.shape[1] != items.A.shape[1]:
        raise ValueError(f"users have {users.A.shape[1]} dimensions, items {items.A.shape[1]}; plant both with one d")
    rng = np.random.default_rng(seed)
    u = rng.choice(len(users.T), n, p=users.popularity)
    i = rng.choice(len(items.T), n, p=items.popularity)
    E_u, E_i, chunk = users.E, items.E, 1 << 16  # pairs at a time, to save memory
    scores = np.concatenate([np.einsum("nd,nd->n", E_u[u[s : s + chunk]], E_i[i[s : s + chunk]]) for s in range(0, n, chunk)])
    values = (mean + scores + noise * rng.standard_normal(n)).astype(np.float32)
    labels = pl.Series("user", np.arange(len(users.T))), pl.Series("item", np.arange(len(items.T)))
    return Ratings(u.astype(np.int32), i.astype(np.int32), values, *labels)


RATINGS, NOISE = 300_000, 0.3  # of the demo; standard deviation
WARM_UP = 2000  # ratings
COMMON: JSON = {"data": "synthetic", "batch_size": 512, "schedule": "cosine", "biases": False}
RUNS: dict[str, JSON] = {
    "full": {"embedding": "full", "epochs": 12, "lr": 0.07},
    "anchor": {"anchors": 12, "l1_penalty": 2e-5, "epochs": 20, "lr": 0.05},
}
Bar = Callable[[str, int, int, str], AbstractContextManager[Callback]]


def compare(out: Path | None, seed: int, bar: Bar) -> dict[str, JSON]:
    """4 000 users and 2 000 items, each a mix of 2 of the same 6 tastes; 300 000 noisy ratings. → results by embedding."""
    users = planted(4000, anchors=6, exponent=0.5, seed=seed)
    items = planted(2000, exponent=0.8, seed=seed + 1, like=users)
    data = ratings(users, items, RATINGS, noise=NOISE, seed=seed + 2)
    results = {}
    with tempfile.TemporaryDirectory() as temporary:
        warm_up(Path(temporary), seed)
        for name, options in RUNS.items():
            config = from_options(RatingsConfig, COMMON | options | {"seed": seed})
            splits = cut(data, config.input.split, seed)
            folder = RunFolder((out or Path(temporary)) / name)
            with bar(name, config.solver.epochs, len(splits.train), "MSE") as callback:
                found = train(config, folder.path, splits=splits, overwrite=True, callback=callback)
            # ℓ1 leaves weights that hardly count; what the log counts is there before they are pruned.
            results[name] = found | {"noise": NOISE**2, "nnz_before_pruning": sum(folder.rows()[-1]["nnz"].values())}
    return results


def warm_up(scratch: Path, seed: int) -> None:
    """Train both on a few ratings: compilation does not count as training time."""
    users, items = planted(40, anchors=6, seed=seed), planted(20, anchors=6, seed=seed + 1)
    data = ratings(users, items, WARM_UP, noise=NOISE, seed=seed)
    for name, options in RUNS.items():
        config = from_options(RatingsConfig, COMMON | options | {"seed": seed, "epochs": 1})
        train(config, scratch / f"warm-up-{name}", splits=cut(data, config.input.split, seed))
