"""Raw files → ids: readers, splits, batches, and synthetic data with a known answer."""

from antembed.data.batches import epoch_batches
from antembed.data.ratings import DataError, Ratings, read_ratings
from antembed.data.splits import PROTOCOLS, split
from antembed.data.synthetic import Planted, planted

__all__ = [
    "PROTOCOLS",
    "DataError",
    "Planted",
    "Ratings",
    "epoch_batches",
    "planted",
    "read_ratings",
    "split",
]
