"""What configs must know of embeddings, without importing torch: `--embedding` is checked before anything is loaded.

The classes are in antembed/embedding; tests/train/test_plain_tables.py compares both.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Plain:
    """Attributes of an embedding's class, by their names there."""

    requires: frozenset[str] = frozenset()
    anchored: bool = False


BARE, ANCHORED, COUNTED = Plain(), Plain(anchored=True), Plain(frozenset({"counts"}))
EMBEDDINGS: dict[str, Plain] = {
    "anchor": ANCHORED,
    "frequency": COUNTED,
    "full": BARE,
    "group-lasso": BARE,
    "hashed": COUNTED,
    "low-rank": ANCHORED,
    "low-rank-nonnegative": ANCHORED,
    "mixed": COUNTED,
    "mixture": ANCHORED,
    "slimming": BARE,
    "slimming-transform": ANCHORED,
    "softmax-mixture": ANCHORED,
    "sparse": BARE,
    "sparse-code": Plain(frozenset({"features"}), anchored=True),
    "sparse-subgradient": BARE,
    "sparse-vd": BARE,
    "sparse-vd-words": BARE,
    "tensor-train": BARE,
    "tf-idf": Plain(frozenset({"tf-idf"})),
    "vvd": BARE,
}
