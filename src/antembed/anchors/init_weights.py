"""The start of T and A when anchors are objects: each anchor its own, every other object a small mix of a few (SPEC §3).

T = 0 everywhere would be a trap: neither T nor A has a gradient then, so every row but the padding's has some weight.
"""

import numpy as np
import torch
from torch import Tensor

SMALL = 0.01  # more would outlast the price in rows that are hardly ever seen: non-zeros that nothing was learned from
NEAREST = 4


def init_weights(
    V: int,
    K: int,
    d: int,
    *,
    anchors: np.ndarray | None = None,
    features: np.ndarray | None = None,
    related: tuple[np.ndarray, np.ndarray] | None = None,
    nearest: int = NEAREST,
    small: float = SMALL,
    mix: float = 1.0,
    padding: int | None = None,
    seed: int = 0,
) -> tuple[Tensor, Tensor]:
    """T (V, K) ≥ 0 and A (K, d), single precision.

    Without `anchors` (ids of K objects) both are half-normal, |N(0, 1)|·√(2/rows). With them T[a, a] = 1 on anchor rows, and
    any other row has weights on few anchors, from the first of these that says something of it: its `nearest` anchors in the
    space of `features` (V, width), weighted by similarity so that they sum to `mix` (a large one learns faster, a small one
    ends with fewer non-zeros); its `related` anchors (pairs of object and column, from free_entries), `small`·|N(0, 1)| each;
    up to `nearest` anchors at random, `small`·|N(0, 1)| each.
    A is the anchors' features, brought to width d and to norms of 1 on average, else N(0, 1/√d), whose norms are about 1 too.
    """
    rng = np.random.default_rng(seed)
    if anchors is None:
        if features is not None or related is not None:
            raise ValueError("features and related entries are about anchors that are objects; give their ids as anchors")
        T, A = (np.abs(rng.standard_normal((rows, width))) * np.sqrt(2 / max(rows, 1)) for rows, width in ((V, K), (K, d)))
        if padding is not None:
            T[padding] = 0.0
        return _tensor(T), _tensor(A)
    anchors = _checked(anchors, V, K)
    few = min(nearest, K)
    T = np.zeros((V, K), np.float32)
    columns = rng.integers(0, K, (V, few))  # some twice: V·K numbers to draw them apart would not be worth it
    np.put_along_axis(T, columns, _small(rng, small, columns.shape), axis=1)
    if related is not None:
        objects, places = related
        T[objects] = 0.0
        T[objects, places] = _small(rng, small, objects.shape)
    if features is not None:
        if len(features) != V:
            raise ValueError(f"features are of {len(features)} objects, there are {V}; give a row for each, zeros if unknown")
        near = nearest_mixes(features, anchors, few)
        known = near.any(1)
        T[known] = mix * near[known]
    T[anchors] = 0.0
    T[anchors, np.arange(K)] = 1.0
    if padding is not None:
        T[padding] = 0.0
    return _tensor(T), _tensor(anchor_vectors(features, anchors, d, rng))


def nearest_mixes(features: np.ndarray, anchors: np.ndarray, n: int, piece: int = 1 << 14) -> np.ndarray:
    """(V, K): for each object the cosines of its n most similar anchors, if positive, divided by their sum. A row of zeros is
    an object without features, or one that is like no anchor."""
    directions = _unit(features[anchors]).T
    out = np.zeros((len(features), len(anchors)), np.float32)
    for first in range(0, len(features), piece):  # few at a time: features may be a memory map, larger than memory
        alike = np.maximum(_unit(features[first : first + piece]) @ directions, 0.0)
        if n < len(anchors):
            np.put_along_axis(alike, alike.argpartition(-n, axis=1)[:, :-n], 0.0, axis=1)
        out[first : first + piece] = alike / np.maximum(alike.sum(1, keepdims=True), np.finfo(np.float32).tiny)
    return out


def anchor_vectors(features: np.ndarray | None, anchors: np.ndarray, d: int, rng: np.random.Generator) -> np.ndarray:
    """A (K, d). Features that are narrower than d are filled up with zeros (they learn at once, since T is not zero there);
    wider ones are turned by a random orthogonal projection, which keeps angles on average. Anchors without any: N(0, 1/√d)."""
    A = rng.standard_normal((len(anchors), d)) / np.sqrt(d)
    if features is None:
        return A
    given = np.asarray(features[anchors], np.float64)
    known = given.any(1)
    if not known.any():
        return A
    width = given.shape[1]
    if width > d:
        given = given @ np.linalg.qr(rng.standard_normal((width, d)))[0]
    elif width < d:
        given = np.pad(given, ((0, 0), (0, d - width)))
    A[known] = given[known] / np.linalg.norm(given[known], axis=1).mean()
    return A


def _checked(anchors: np.ndarray, V: int, K: int) -> np.ndarray:
    anchors = np.asarray(anchors, np.int64)
    if anchors.shape != (K,) or len(np.unique(anchors)) != K:
        raise ValueError(f"{K} different anchors are needed, got {len(np.unique(anchors))} in {anchors.shape}")
    if anchors.min() < 0 or anchors.max() >= V:
        wrong = anchors.min() if anchors.min() < 0 else anchors.max()
        raise ValueError(f"anchor {wrong} is none of the {V} objects; choose among 0 … {V - 1}")
    return anchors


def _small(rng: np.random.Generator, small: float, shape: tuple[int, ...]) -> np.ndarray:
    return small * np.abs(rng.standard_normal(shape))


def _unit(rows: np.ndarray) -> np.ndarray:
    rows = np.asarray(rows, np.float32)
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), np.finfo(np.float32).tiny)


def _tensor(array: np.ndarray) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(array, np.float32))
