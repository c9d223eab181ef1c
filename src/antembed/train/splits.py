"""Split examples into training, validation and test."""

from collections.abc import Sequence

import numpy as np

# name → shares of train, validation, test.
# 90/10: as in the paper's MovieLens results, no validation, the last epoch counts.
SPLITS = {"80/10/10": (0.8, 0.1, 0.1), "90/10": (0.9, 0.0, 0.1)}


def permutation(n: int, seed: int) -> np.ndarray:
    """default_rng(seed).permutation(n), with int32 where that suffices."""
    order = np.arange(n, dtype=np.int32 if n < 2**31 else np.int64)
    np.random.default_rng(seed).shuffle(order)
    return order


def split(n: int, kind: str, seed: int) -> dict[str, np.ndarray]:
    """A seeded shuffle of 0…n−1 cut into `train`, `validation` (maybe empty) and `test`."""
    if kind not in SPLITS:
        raise ValueError(f"unknown split {kind!r}; there are: {', '.join(SPLITS)}")
    train, validation, _ = SPLITS[kind]
    order = permutation(n, seed)
    a, b = round(n * train), round(n * (train + validation))
    if a == 0 or b == n or (validation and a == b):
        raise ValueError(f"{n} examples are too few for the split {kind!r}; give 10 or more")
    return {"train": order[:a], "validation": order[a:b], "test": order[b:]}


def shares(n: int, parts: Sequence[float], seed: int, labels: np.ndarray | None = None) -> list[np.ndarray]:
    """A seeded shuffle of 0…n−1 cut into these shares; with `labels` (n,), stratified by class, up to rounding."""
    if abs(sum(parts) - 1) > 1e-9 or min(parts) < 0:
        raise ValueError(f"shares must be ≥ 0 and sum to 1, got {tuple(parts)}, which sum to {sum(parts)}")
    if labels is not None and len(labels) != n:
        raise ValueError(f"{len(labels)} labels were given for {n} examples; give one for each")
    order = permutation(n, seed)
    groups = [np.arange(n)] if labels is None else [np.flatnonzero(labels[order] == label) for label in np.unique(labels)]
    belongs = np.empty(n, np.int64)  # the part of each position of the order
    for group in groups:
        cuts = np.rint(np.cumsum(parts) * len(group))
        belongs[group] = np.searchsorted(cuts, np.arange(len(group)), side="right")
    return [order[belongs == part] for part in range(len(parts))]
