"""Which objects become anchors: statistics of the objects → the ids of K of them.

Each initializer is a pure function of arrays and a seed; one entry in INITIALIZERS makes it a choice of
`--anchor-init`. Ids below RESERVED (0 padding, 1 unknown) never become anchors; pass reserved=0 for tables without such ids.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from antembed.data.vocabulary import RESERVED, Vocabulary
from antembed.extras import explained

FREQUENT_SHARE = 0.5  # of the anchors of frequency-kmeans


def tf_idf(counts: np.ndarray, document_counts: np.ndarray, documents: int) -> np.ndarray:
    """count·ln(documents / documents with the word): tf-idf summed over all documents; 0 for a word that is in each of them."""
    return counts * np.log(documents / np.maximum(document_counts, 1))


def scores(vocabulary: Vocabulary, kind: str, *, reserved: int = RESERVED) -> np.ndarray:
    """A score ≥ 0 for each word (V,), by "frequency" or "tf-idf"; −1 for padding and unknown, below every word."""
    if kind == "frequency":
        found = np.asarray(vocabulary.counts, np.float64).copy()
    elif kind == "tf-idf":
        found = tf_idf(vocabulary.counts, vocabulary.document_counts, vocabulary.documents)
    else:
        raise ValueError(f"unknown score {kind!r}; choose frequency or tf-idf")
    found[:reserved] = -1.0
    return found


def highest(values: np.ndarray, K: int, reserved: int = RESERVED) -> np.ndarray:
    """The ids of the K largest values, largest first; ties by id."""
    _check_enough(len(values) - reserved, K, "objects")
    return reserved + np.argsort(-np.asarray(values[reserved:], np.float64), kind="stable")[:K]


def survivors(values: np.ndarray, K: int, reserved: int = RESERVED) -> np.ndarray:
    """The K best of the objects that a trained selection (group lasso, VVD) has kept: those with a score > 0."""
    _check_enough(int((values[reserved:] > 0).sum()), K, "survivors")
    return highest(values, K, reserved)


def at_random(V: int, K: int, seed: int, reserved: int = RESERVED) -> np.ndarray:
    """K objects, drawn uniformly."""
    _check_enough(V - reserved, K, "objects")
    return reserved + np.random.default_rng(seed).choice(V - reserved, K, replace=False)


def kmeans(features: np.ndarray, K: int, seed: int, reserved: int = RESERVED) -> np.ndarray:
    """Cluster the features (k-means++ seeding, then Lloyd), and take the object nearest to each centre, without repeats."""
    try:
        from sklearn.cluster import KMeans
    except ImportError as error:
        raise explained(error, "k-means") from error
    ids, points = _with_features(features, K, reserved)
    centres = KMeans(K, n_init=1, max_iter=50, random_state=seed).fit(points).cluster_centers_
    squares, taken = np.square(points).sum(1), np.zeros(len(points), bool)
    for centre in centres:
        distance = squares - 2 * (points @ centre)  # without ‖centre‖², the same for all
        distance[taken] = np.inf
        taken[distance.argmin()] = True
    return ids[taken]


def frequency_kmeans(
    counts: np.ndarray, features: np.ndarray, K: int, seed: int, reserved: int = RESERVED, share: float = FREQUENT_SHARE
) -> np.ndarray:
    """A `share` of the anchors are the most frequent objects, the rest are drawn by k-means++ given those."""
    ids, points = _with_features(features, K, reserved)
    # Only objects with features: the others have no distance to the points.
    first = highest(np.asarray(counts)[ids], max(1, round(share * K)), 0)
    return ids[kmeans_plus_plus(points, K, first, np.random.default_rng(seed))]


def kmeans_plus_plus(points: np.ndarray, K: int, given: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """`given` and more indices up to K, each drawn in proportion to its squared distance from the nearest one before it."""
    chosen = list(given)
    squares = np.square(points).sum(1)
    distance = np.full(len(points), np.inf)
    for number in range(K):
        if number >= len(chosen):
            # Where all points left coincide with a chosen one: any of them.
            weights = distance if distance.any() else 1.0 - np.isin(np.arange(len(points)), chosen)
            chosen.append(rng.choice(len(points), p=weights / weights.sum()))
        point = chosen[number]
        distance = np.minimum(distance, np.maximum(squares - 2 * (points @ points[point]) + squares[point], 0.0))
        distance[point] = 0.0
    return np.array(chosen, np.int64)


def coreset_spread(points: np.ndarray) -> np.ndarray:
    """q(x) = ½·1/n + ½·‖x − mean‖²/Σ‖x − mean‖²: the lightweight coreset of Bachem, Lucic and Krause (2018)."""
    distance, even = np.square(points - points.mean(0)).sum(1), np.full(len(points), 1 / len(points))
    return 0.5 * even + 0.5 * distance / distance.sum() if distance.any() else even


def coreset(features: np.ndarray, K: int, seed: int, reserved: int = RESERVED) -> np.ndarray:
    """K objects drawn as for a lightweight coreset, but without repeats, since anchors carry no weights."""
    ids, points = _with_features(features, K, reserved)
    return ids[np.random.default_rng(seed).choice(len(points), K, replace=False, p=coreset_spread(points))]


@dataclass(frozen=True)
class ObjectStatistics:
    counts: np.ndarray | None = None  # (V,)
    document_counts: np.ndarray | None = None  # (V,)
    documents: int | None = None
    features: np.ndarray | None = None  # (V, width), a row of zeros for an object without features
    scores: np.ndarray | None = None  # (V,) from a model trained for the selection
    reserved: int = RESERVED

    def get(self, name: str) -> np.ndarray:
        """The array of this name, or an error if it is missing."""
        value = getattr(self, name)
        if value is None:
            raise ValueError(f"this choice of anchors needs {name}, and there are none; give {name} or choose another way")
        return np.asarray(value)

    @property
    def V(self) -> int:
        given = (self.counts, self.features, self.scores)
        return next((len(array) for array in given if array is not None), 0)


@dataclass(frozen=True)
class Initializer:
    """(statistics, K, seed) → the ids of K anchors, int64, all different."""

    choose: Callable[[ObjectStatistics, int, int], np.ndarray]
    requires: frozenset[str] = frozenset()  # of counts, document_counts, features, scores: what the statistics must have
    trains: str = ""  # where scores are required: the embedding that is trained once to get them

    def __call__(self, statistics: ObjectStatistics, K: int, seed: int = 0) -> np.ndarray:
        return np.asarray(self.choose(statistics, K, seed), np.int64)


def _trained(embedding: str) -> Initializer:
    """Train an embedding that drops objects once, and keep the survivors."""
    return Initializer(lambda s, K, seed: survivors(s.get("scores"), K, s.reserved), frozenset({"scores"}), embedding)


INITIALIZERS: dict[str, Initializer] = {
    "frequency": Initializer(lambda s, K, seed: highest(s.get("counts"), K, s.reserved), frozenset({"counts"})),
    "tf-idf": Initializer(
        lambda s, K, seed: highest(tf_idf(s.get("counts"), s.get("document_counts"), int(s.get("documents"))), K, s.reserved),
        frozenset({"counts", "document_counts"}),
    ),
    "kmeans": Initializer(lambda s, K, seed: kmeans(s.get("features"), K, seed, s.reserved), frozenset({"features"})),
    "frequency-kmeans": Initializer(
        lambda s, K, seed: frequency_kmeans(s.get("counts"), s.get("features"), K, seed, s.reserved),
        frozenset({"counts", "features"}),
    ),
    "random": Initializer(lambda s, K, seed: at_random(s.V, K, seed, s.reserved)),
    "coreset": Initializer(lambda s, K, seed: coreset(s.get("features"), K, seed, s.reserved), frozenset({"features"})),
    "group-lasso": _trained("group-lasso"),
    "vvd": _trained("vvd"),
}


def choose_anchors(name: str, statistics: ObjectStatistics, K: int, seed: int = 0) -> np.ndarray:
    """The ids of K anchors, int64, all different."""
    if name not in INITIALIZERS:
        raise ValueError(f"unknown choice of anchors {name!r}; there are {', '.join(INITIALIZERS)}")
    return INITIALIZERS[name](statistics, K, seed)


def _with_features(features: np.ndarray, K: int, reserved: int) -> tuple[np.ndarray, np.ndarray]:
    """Ids and features of the objects that have features (a row of zeros means none)."""
    ids = reserved + np.flatnonzero(np.any(features[reserved:] != 0, axis=1))
    _check_enough(len(ids), K, "objects with features")
    return ids, np.asarray(features[ids], np.float64)


def _check_enough(n: int, K: int, what: str) -> None:
    if not 1 <= K <= n:
        raise ValueError(f"{K} anchors cannot be chosen from {max(n, 0)} {what}; take between 1 and {max(n, 0)}")
