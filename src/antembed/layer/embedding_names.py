"""What configs must know of embeddings, without importing torch: `--embedding` is checked before anything is loaded.

The classes are in antembed/baselines; tests/train/test_plain_tables.py compares both.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Plain:
    """Attributes of an embedding's class, by their names there."""

    requires: frozenset[str] = frozenset()
    anchored: bool = False


REQUIRES = {"frequency": "counts", "hashed": "counts", "mixed": "counts", "sparse-code": "features", "tf-idf": "tf-idf"}
ANCHORED = ["anchor", "low-rank", "low-rank-nonnegative", "mixture", "slimming-transform", "softmax-mixture", "sparse-code"]
BARE = ["full", "group-lasso", "slimming", "sparse", "sparse-subgradient", "sparse-vd", "sparse-vd-words"]
EMBEDDINGS = {
    name: Plain(frozenset({REQUIRES[name]} if name in REQUIRES else ()), name in ANCHORED)
    for name in sorted({*REQUIRES, *ANCHORED, *BARE, "tensor-train", "vvd"})
}
