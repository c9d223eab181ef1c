"""Raw files → ids: readers, vocabulary, splits, batches, cache, downloads, and synthetic data with a known answer."""

from antembed.data.batches import Examples
from antembed.data.collect import Ratings
from antembed.data.documents import Documents, documents_of, read_documents
from antembed.data.download import find_data, one_file
from antembed.data.ratings import read_ratings
from antembed.data.splits import SPLITS, first_copies, kept_together, shares, split
from antembed.data.synthetic import Planted, planted
from antembed.data.text import DataError
from antembed.data.vocabulary import Vocabulary
from antembed.files import default_cache

__all__ = [
    "SPLITS",
    "DataError",
    "Documents",
    "Examples",
    "Planted",
    "Ratings",
    "Vocabulary",
    "default_cache",
    "documents_of",
    "find_data",
    "first_copies",
    "kept_together",
    "one_file",
    "planted",
    "read_documents",
    "read_ratings",
    "shares",
    "split",
]
