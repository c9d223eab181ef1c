"""Raw files → ids: readers, splits, the order of an epoch, and synthetic data with a known answer."""

from antembed.data.batches import shuffled
from antembed.data.ratings import DataError, Ratings, read_ratings
from antembed.data.splits import PROTOCOLS, split
from antembed.data.synthetic import Planted, planted

__all__ = ["PROTOCOLS", "DataError", "Planted", "Ratings", "planted", "read_ratings", "shuffled", "split"]
