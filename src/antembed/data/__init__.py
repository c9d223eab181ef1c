"""Raw files → ids: readers, splits, the order of an epoch, and synthetic data with a known answer."""

from antembed.data.batches import Examples
from antembed.data.cache import default_cache
from antembed.data.ratings import Ratings, read_ratings
from antembed.data.splits import PROTOCOLS, split
from antembed.data.synthetic import Planted, planted
from antembed.data.text import DataError

__all__ = ["PROTOCOLS", "DataError", "Examples", "Planted", "Ratings", "default_cache", "planted", "read_ratings", "split"]
