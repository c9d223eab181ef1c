"""Trained layer → small file → vectors. NumPy only; of this package it imports files.py and extras.py only."""

from antembed.serving.container import TableError
from antembed.serving.hashed_ngrams import HashedNgrams, HashedNgramsError, load_hashed_ngrams, read_hashed_ngrams
from antembed.serving.keyed_vectors import KeyedVectors
from antembed.serving.lookup import Table
from antembed.serving.nonzeros import Nonzeros
from antembed.serving.numbers import VALUES
from antembed.serving.product import serialize_product
from antembed.serving.static_model import StaticModel
from antembed.serving.table import export, file_size, load_table, serialize, serialized, size_of

__all__ = [
    "VALUES",
    "HashedNgrams",
    "HashedNgramsError",
    "KeyedVectors",
    "Nonzeros",
    "StaticModel",
    "Table",
    "TableError",
    "export",
    "file_size",
    "load_hashed_ngrams",
    "load_table",
    "read_hashed_ngrams",
    "serialize",
    "serialize_product",
    "serialized",
    "size_of",
]
