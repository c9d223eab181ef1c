"""Initial T and A when anchors are objects: an anchor is itself, every other object a small mix of a few anchors.

With T = 0 neither T nor A would have a gradient, so every row but the padding's has some weight.
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

SMALL = 0.01  # larger weights would survive the penalty in rare rows, where nothing is learned
NEAREST = 4
BLOCK = 1 << 16  # objects at a time


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
    rows: np.ndarray | None = None,
) -> tuple[Tensor, Tensor]:
    """T (V, K) ≥ 0 and A (K, d), single precision; of T only the `rows` of these ids, if they are given.

    Without `anchors` (ids of K objects) both are half-normal, |N(0, 1)|·√(2/rows). With them T[a, a] = 1 on anchor rows, and
    any other row has weights on few anchors, by the first of these sources that covers it: its `nearest` anchors in the space
    of `features` (V, width), weighted by similarity so that they sum to `mix` (a large one learns faster, a small one ends with
    fewer non-zeros); its `related` anchors (pairs of object and column, from free_entries), `small`·|N(0, 1)| each; up to
    `nearest` random anchors, `small`·|N(0, 1)| each.
    A is the anchors' features, brought to width d and to norms of 1 on average, else N(0, 1/√d), whose norms are about 1 too.
    """
    rng = np.random.default_rng(seed)
    if anchors is None:
        if features is not None or related is not None:
            raise ValueError("features and related entries need anchors that are objects; pass their ids as `anchors`")
        T, A = (np.abs(rng.standard_normal((n, width))) * np.sqrt(2 / max(n, 1)) for n, width in ((V, K), (K, d)))
        if padding is not None:
            T[padding] = 0.0
        return _tensor(T if rows is None else T[rows]), _tensor(A)
    anchors = _checked(anchors, V, K)
    few, held = min(nearest, K), Held(V, np.arange(V) if rows is None else rows)
    T = np.zeros((len(held.ids), K), np.float32)
    columns = held.drawn(few, lambda n: rng.integers(0, K, (n, few)))  # with repeats: without them it would take V·K numbers
    np.put_along_axis(T, columns.astype(np.int64), held.drawn(few, lambda n: _small(rng, small, (n, few))), axis=1)
    if related is not None:
        objects, columns = related
        weights, (here, at) = _small(rng, small, objects.shape), held.at(objects)
        T[at] = 0.0
        T[at, columns[here]] = weights[here]
    if features is not None:
        if len(features) != V:
            raise ValueError(f"features are of {len(features)} objects, there are {V}; give a row for each, zeros if unknown")
        near = nearest_mixes(features, anchors, few, held.ids)
        covered = near.any(1)
        T[covered] = mix * near[covered]
    here, at = held.at(anchors)
    T[at] = 0.0
    T[at, np.arange(K)[here]] = 1.0
    if padding is not None:
        T[held.at(np.array([padding]))[1]] = 0.0
    return _tensor(T), _tensor(anchor_vectors(features, anchors, d, rng))


class Held:
    """The rows of T that are held here, of V."""

    def __init__(self, V: int, ids: np.ndarray):
        self.V, self.ids = V, ids
        self.places = np.full(V, -1)  # of each id among these, −1 elsewhere
        self.places[ids] = np.arange(len(ids))

    def at(self, objects: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Which of these objects are held (n,), and the places of those."""
        places = self.places[objects]
        return places >= 0, places[places >= 0]

    def drawn(self, width: int, draw: Callable[[int], np.ndarray]) -> np.ndarray:
        """draw(V), (V, width), of which only the rows that are held are kept: drawn block by block, in the same order as at
        once."""
        kept = np.empty((len(self.ids), width))
        for first in range(0, self.V, BLOCK):
            block = draw(min(BLOCK, self.V - first))
            here, at = self.at(np.arange(first, first + len(block)))
            kept[at] = block[here]
        return kept


def nearest_mixes(
    features: np.ndarray, anchors: np.ndarray, n: int, ids: np.ndarray | None = None, piece: int = 1 << 14
) -> np.ndarray:
    """(len(ids), K): for each of these objects (default: all) the cosines of its n most similar anchors, if positive, divided
    by their sum. A row of zeros means an object without features, or one that is similar to no anchor."""
    ids, directions = np.arange(len(features)) if ids is None else ids, _unit(features[anchors]).T
    out = np.zeros((len(ids), len(anchors)), np.float32)
    for first in range(0, len(ids), piece):  # piece by piece: features may be a memory map, larger than memory
        alike = np.maximum(_unit(features[ids[first : first + piece]]) @ directions, 0.0)
        if n < len(anchors):
            np.put_along_axis(alike, alike.argpartition(-n, axis=1)[:, :-n], 0.0, axis=1)
        out[first : first + piece] = alike / np.maximum(alike.sum(1, keepdims=True), np.finfo(np.float32).tiny)
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
