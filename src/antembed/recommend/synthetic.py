"""Synthetic data with a known answer: planted anchors A* and a sparse T* ≥ 0, observed as ratings."""

from dataclasses import dataclass

import numpy as np
import polars as pl

from antembed.recommend.ratings_table import Ratings


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
    """A planted table. Popular objects differ from rare ones only in how often they occur (Zipf).

    `like`: use that table's anchors, so that users and items are mixes of the same ones.
    """
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
    """n ratings mean + e_u·e_i + noise; both sides planted in the same dimension, objects drawn by popularity."""
    if users.A.shape[1] != items.A.shape[1]:
        raise ValueError(f"users have {users.A.shape[1]} dimensions, items {items.A.shape[1]}; plant both with one d")
    rng = np.random.default_rng(seed)
    u = rng.choice(len(users.T), n, p=users.popularity)
    i = rng.choice(len(items.T), n, p=items.popularity)
    # Piece by piece, to save memory.
    scores = np.concatenate(
        [np.einsum("nd,nd->n", users.E[u[s : s + 65536]], items.E[i[s : s + 65536]]) for s in range(0, n, 65536)]
    )
    values = (mean + scores + noise * rng.standard_normal(n)).astype(np.float32)
    return Ratings(
        u.astype(np.int32),
        i.astype(np.int32),
        values,
        pl.Series("user", np.arange(len(users.T))),
        pl.Series("item", np.arange(len(items.T))),
    )
