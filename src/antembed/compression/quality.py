"""How much of a table is left after it was compressed, and callbacks for progress."""

from collections.abc import Callable

import numpy as np

Progress = Callable[[str, int, int], None]  # what is done, how far, of how much
QUERIES, NEIGHBOURS = 1000, 10


def quiet(what: str, done: int, total: int) -> None:
    """No progress is shown."""


def named(about: str, progress: Progress) -> Progress:
    """The same, `about` before what is done."""
    return lambda what, done, total: progress(about + what, done, total)


def compare(E: np.ndarray, F: np.ndarray, seed: int = 0) -> dict[str, float]:
    """E, and what is left of it: ‖E − F‖²/‖E − mean‖², the mean cosine, and the share of the ten nearest neighbours that stay
    the nearest: of a thousand vectors drawn from all, and of as many drawn from the first tenth (of words, the frequent)."""
    centred = float(((E - E.mean(0)) ** 2).sum(dtype=np.float64))
    lengths = np.linalg.norm(E, axis=1) * np.linalg.norm(F, axis=1)
    cosine = (E * F).sum(1)[lengths > 0] / lengths[lengths > 0]
    rng = np.random.default_rng(seed)
    queries = rng.choice(len(E), min(QUERIES, len(E)), replace=False)
    first = rng.choice(-(-len(E) // 10), min(QUERIES, -(-len(E) // 10)), replace=False)
    return {
        "relative_error": float(((E - F) ** 2).sum(dtype=np.float64)) / max(centred, 1e-300),
        "cosine": float(cosine.mean()) if len(cosine) else 1.0,
        "neighbours_kept": neighbours_kept(E, F, queries),
        "neighbours_kept_first_tenth": neighbours_kept(E, F, first),
    }


def neighbours_kept(E: np.ndarray, F: np.ndarray, queries: np.ndarray) -> float:
    """The share of the ten nearest by cosine, of these rows, that are the same in both."""
    k = min(NEIGHBOURS, len(E) - 1)
    if k < 1:
        return 1.0
    near, there = nearest(E, queries, k), nearest(F, queries, k)
    return float(np.mean([len(np.intersect1d(a, b)) / k for a, b in zip(near, there, strict=True)]))


def nearest(E: np.ndarray, queries: np.ndarray, k: int) -> np.ndarray:
    """(queries, k): rows of largest cosine, each row itself left out."""
    unit = E / np.maximum(np.linalg.norm(E, axis=1, keepdims=True), 1e-12)
    found = np.empty((len(queries), k), np.int64)
    for start in range(0, len(queries), 256):
        some = queries[start : start + 256]
        scores = unit[some] @ unit.T
        scores[np.arange(len(some)), some] = -np.inf
        found[start : start + 256] = np.argpartition(-scores, k - 1, axis=1)[:, :k]
    return found
