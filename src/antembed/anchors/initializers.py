"""Which objects are anchors: what is known of the objects in, the ids of K of them out.

Every way is a pure function of arrays and a seed. Ids below RESERVED (0 padding, 1 unknown) are never anchors; for tables whose
first objects are objects like any other, reserved=0.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from antembed.data.vocabulary import SPECIAL, Vocabulary

RESERVED = len(SPECIAL)
FREQUENT_PART = 0.5  # of the anchors of frequency-kmeans


def tf_idf(counts: np.ndarray, document_counts: np.ndarray, documents: int) -> np.ndarray:
    """count·ln(documents / documents with it): a word's tf-idf, summed over all documents; 0 for a word that is in each."""
    return counts * np.log(documents / np.maximum(document_counts, 1))


def scores(vocabulary: Vocabulary, kind: str, *, reserved: int = RESERVED) -> np.ndarray:
    """How much each word is worth, (V,) ≥ 0, by "frequency" or "tf-idf"; −1 for padding and unknown, below every word."""
    if kind == "frequency":
        found = np.asarray(vocabulary.counts, np.float64).copy()
    elif kind == "tf-idf":
        found = tf_idf(vocabulary.counts, vocabulary.document_counts, vocabulary.documents)
    else:
        raise ValueError(f"there is no score {kind!r}; there are frequency and tf-idf")
    found[:reserved] = -1.0
    return found


def highest(values: np.ndarray, K: int, reserved: int = RESERVED) -> np.ndarray:
    """The ids of the K largest values, largest first; of equal ones the smaller id."""
    _enough(len(values) - reserved, K, "objects")
    return reserved + np.argsort(-np.asarray(values[reserved:], np.float64), kind="stable")[:K]


def survivors(values: np.ndarray, K: int, reserved: int = RESERVED) -> np.ndarray:
    """The K best of those that a selection left alive (group lasso: row norms; VVD: 1/α above its threshold): score > 0."""
    _enough(int((values[reserved:] > 0).sum()), K, "survivors")
    return highest(values, K, reserved)


def at_random(V: int, K: int, seed: int, reserved: int = RESERVED) -> np.ndarray:
    """K objects, all alike likely."""
    _enough(V - reserved, K, "objects")
    return reserved + np.random.default_rng(seed).choice(V - reserved, K, replace=False)


def kmeans(features: np.ndarray, K: int, seed: int, reserved: int = RESERVED) -> np.ndarray:
    """Cluster the features (k-means++ seeding, then Lloyd), and take the object nearest to each centre, none of them twice."""
    try:
        from sklearn.cluster import KMeans
    except ImportError as error:
        raise ImportError("k-means needs scikit-learn; install it with: pip install 'antembed[text]'") from error
    ids, points = _known(features, K, reserved)
    centres = KMeans(K, n_init=1, max_iter=50, random_state=seed).fit(points).cluster_centers_
    squares, taken = np.square(points).sum(1), np.zeros(len(points), bool)
    for centre in centres:
        distance = squares - 2 * (points @ centre)  # and ‖centre‖², the same for all
        distance[taken] = np.inf
        taken[distance.argmin()] = True
    return ids[taken]


def frequency_kmeans(
    counts: np.ndarray, features: np.ndarray, K: int, seed: int, reserved: int = RESERVED, part: float = FREQUENT_PART
) -> np.ndarray:
    """The first `part` of the anchors are the most frequent objects, the rest are drawn by k-means++ given those."""
    ids, points = _known(features, K, reserved)
    # Among those with features: an anchor that lies nowhere would say nothing of what is still uncovered.
    first = highest(np.asarray(counts)[ids], max(1, round(part * K)), 0)
    return ids[kmeans_plus_plus(points, K, first, np.random.default_rng(seed))]


def kmeans_plus_plus(points: np.ndarray, K: int, given: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """`given` and more places up to K, each drawn in proportion to its squared distance from the nearest of those before it."""
    chosen = list(given)
    squares = np.square(points).sum(1)
    distance = np.full(len(points), np.inf)
    for number in range(K):
        if number >= len(chosen):
            total = distance.sum()
            # All that is left lies on a chosen point: any of it will do.
            spread = distance / total if total > 0 else _untaken(len(points), chosen)
            chosen.append(rng.choice(len(points), p=spread))
        point = chosen[number]
        distance = np.minimum(distance, np.maximum(squares - 2 * (points @ points[point]) + squares[point], 0.0))
        distance[point] = 0.0
    return np.array(chosen, np.int64)


def coreset_spread(points: np.ndarray) -> np.ndarray:
    """q(x) = ½·1/n + ½·‖x − mean‖²/Σ‖x − mean‖²: the lightweight coreset of Bachem, Lucic and Krause (2018)."""
    distance = np.square(points - points.mean(0)).sum(1)
    total = distance.sum()
    even = np.full(len(points), 1 / len(points))
    return even if total == 0 else 0.5 * even + 0.5 * distance / total


def coreset(features: np.ndarray, K: int, seed: int, reserved: int = RESERVED) -> np.ndarray:
    """K objects drawn as for a lightweight coreset, but none twice: anchors have no weights to tell copies by."""
    ids, points = _known(features, K, reserved)
    return ids[np.random.default_rng(seed).choice(len(points), K, replace=False, p=coreset_spread(points))]


@dataclass(frozen=True)
class ObjectStatistics:
    """What is known of V objects. A choice asks for what it needs, and says so if it is not there."""

    counts: np.ndarray | None = None  # (V,)
    document_counts: np.ndarray | None = None  # (V,)
    documents: int | None = None
    features: np.ndarray | None = None  # (V, width), a row of zeros for an object without
    scores: np.ndarray | None = None  # (V,) from a model that was trained once
    reserved: int = RESERVED

    def need(self, name: str) -> Any:
        value = getattr(self, name)
        if value is None:
            raise ValueError(f"this choice of anchors needs {name}, and there are none; give {name} or choose another way")
        return value

    @property
    def V(self) -> int:
        given = (self.counts, self.features, self.scores)
        return next((len(array) for array in given if array is not None), 0)


# name → (known, K, seed) → ids (K,)
INITIALIZERS: dict[str, Callable[[ObjectStatistics, int, int], np.ndarray]] = {
    "frequency": lambda known, K, seed: highest(known.need("counts"), K, known.reserved),
    "tf-idf": lambda known, K, seed: highest(
        tf_idf(known.need("counts"), known.need("document_counts"), known.need("documents")), K, known.reserved
    ),
    "kmeans": lambda known, K, seed: kmeans(known.need("features"), K, seed, known.reserved),
    "frequency-kmeans": lambda known, K, seed: frequency_kmeans(
        known.need("counts"), known.need("features"), K, seed, known.reserved
    ),
    "random": lambda known, K, seed: at_random(known.V, K, seed, known.reserved),
    "coreset": lambda known, K, seed: coreset(known.need("features"), K, seed, known.reserved),
    "survivors": lambda known, K, seed: survivors(known.need("scores"), K, known.reserved),
}


def choose_anchors(name: str, known: ObjectStatistics, K: int, seed: int = 0) -> np.ndarray:
    """The ids of K anchors, int64, all different."""
    if name not in INITIALIZERS:
        raise ValueError(f"there is no choice of anchors {name!r}; there are {', '.join(INITIALIZERS)}")
    return np.asarray(INITIALIZERS[name](known, K, seed), np.int64)


def _known(features: np.ndarray, K: int, reserved: int) -> tuple[np.ndarray, np.ndarray]:
    """Ids and features of the objects that have any: rows of zeros are objects nothing is known of."""
    ids = reserved + np.flatnonzero(np.any(features[reserved:] != 0, axis=1))
    _enough(len(ids), K, "objects with features")
    return ids, np.asarray(features[ids], np.float64)


def _untaken(n: int, chosen: list[int]) -> np.ndarray:
    left = np.ones(n)
    left[chosen] = 0.0
    return left / left.sum()


def _enough(n: int, K: int, what: str) -> None:
    if not 1 <= K <= n:
        raise ValueError(f"{K} anchors cannot be chosen from {max(n, 0)} {what}; take between 1 and {max(n, 0)}")
