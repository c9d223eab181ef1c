"""Initial T and A when anchors are objects: an anchor is itself, every other object a small mix of a few anchors.

With T = 0 neither T nor A would have a gradient, so every row but the padding's has some weight.
"""

import numpy as np
import torch
from torch import Tensor

SMALL = 0.01  # larger weights would survive the penalty in rare rows, where nothing is learned
NEAREST = 4  # anchors of an object that is none


def init_weights(
    V: int,
    d: int,
    anchors: np.ndarray,
    *,
    features: np.ndarray | None = None,
    related: tuple[np.ndarray, np.ndarray] | None = None,
    small: float = SMALL,
    seed: int = 0,
    rows: np.ndarray | None = None,
) -> tuple[Tensor, Tensor]:
    """T (V, K) ≥ 0 and A (K, d), single precision; of T only the `rows` of these ids, if they are given.

    `anchors` are the ids of K objects. T[a, a] = 1 on anchor rows, and any other row has weights on few anchors, by the first
    of these sources that covers it: its NEAREST anchors in the space of `features` (V, width), weighted by similarity so that
    they sum to 1; its `related` anchors (pairs of object and column, from free_entries), `small`·|N(0, 1)| each; up to NEAREST
    random anchors, `small`·|N(0, 1)| each.
    A is the anchors' features, brought to width d and to norms of 1 on average, else N(0, 1/√d), whose norms are about 1 too.
    """
    rng, anchors = np.random.default_rng(seed), _checked(anchors, V)
    K, ids = len(anchors), np.arange(V) if rows is None else rows
    index = np.full(V, -1)  # of each id among those asked for, −1 elsewhere
    index[ids] = np.arange(len(ids))

    def at(objects: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Which of these objects are asked for (n,), and the rows of those."""
        return index[objects] >= 0, index[objects][index[objects] >= 0]

    few, T = min(NEAREST, K), np.zeros((len(ids), K), np.float32)
    columns = rng.integers(0, K, (V, few))[ids]  # with repeats: without them it would take V·K numbers
    np.put_along_axis(T, columns, small * np.abs(rng.standard_normal((V, few)))[ids], axis=1)
    if related is not None:
        objects, columns = related
        weights, (here, own) = small * np.abs(rng.standard_normal(objects.shape)), at(objects)
        T[own] = 0.0
        T[own, columns[here]] = weights[here]
    if features is not None:
        if len(features) != V:
            raise ValueError(f"features are of {len(features)} objects, there are {V}; give a row for each, zeros if unknown")
        near = nearest_anchors(features, anchors, few, ids)
        T[near.any(1)] = near[near.any(1)]
    here, own = at(anchors)
    T[own] = 0.0
    T[own, np.arange(K)[here]] = 1.0
    return torch.from_numpy(T), torch.from_numpy(anchor_vectors(features, anchors, d, rng)).float()


def nearest_anchors(
    features: np.ndarray, anchors: np.ndarray, n: int, ids: np.ndarray | None = None, chunk: int = 1 << 14
) -> np.ndarray:
    """(len(ids), K): for each of these objects (default: all) the cosines of its n most similar anchors, if positive, divided
    by their sum. A row of zeros means an object without features, or one that is similar to no anchor."""
    ids, directions = np.arange(len(features)) if ids is None else ids, _unit(features[anchors]).T
    out = np.zeros((len(ids), len(anchors)), np.float32)
    for first in range(0, len(ids), chunk):  # features may be a memory map, larger than memory
        alike = np.maximum(_unit(features[ids[first : first + chunk]]) @ directions, 0.0)
        if n < len(anchors):
            np.put_along_axis(alike, alike.argpartition(-n, axis=1)[:, :-n], 0.0, axis=1)
        out[first : first + chunk] = alike / np.maximum(alike.sum(1, keepdims=True), np.finfo(np.float32).tiny)
    return out


def anchor_vectors(features: np.ndarray | None, anchors: np.ndarray, d: int, rng: np.random.Generator) -> np.ndarray:
    """A (K, d). Features narrower than d are padded with zeros (which have a gradient, since T is not zero); wider ones are
    reduced by a random orthogonal projection, which keeps angles on average. Anchors without features: N(0, 1/√d)."""
    A = rng.standard_normal((len(anchors), d)) / np.sqrt(d)
    if features is None:
        return A
    given = np.asarray(features[anchors], np.float64)
    present = given.any(1)
    if not present.any():
        return A
    width = given.shape[1]
    if width > d:
        given = given @ np.linalg.qr(rng.standard_normal((width, d)))[0]
    elif width < d:
        given = np.pad(given, ((0, 0), (0, d - width)))
    A[present] = given[present] / np.linalg.norm(given[present], axis=1).mean()
    return A


def _checked(anchors: np.ndarray, V: int) -> np.ndarray:
    anchors = np.asarray(anchors, np.int64)
    if len(np.unique(anchors)) != len(anchors):
        raise ValueError(f"{len(anchors)} different anchors are needed, got {len(np.unique(anchors))}")
    if wrong := [int(anchor) for anchor in anchors if not 0 <= anchor < V]:
        raise ValueError(f"anchor {wrong[0]} is none of the {V} objects; choose among 0 … {V - 1}")
    return anchors


def _unit(rows: np.ndarray) -> np.ndarray:
    rows = np.asarray(rows, np.float32)
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), np.finfo(np.float32).tiny)
