"""Trained layer → small file → vectors. NumPy and safetensors only; nothing of ours is imported but files.py."""

from antembed.serving.bag import Bag, BagError, open_bag
from antembed.serving.lookup import Table
from antembed.serving.numbers import VALUES
from antembed.serving.product import serialise_product
from antembed.serving.table import TableError, export, file_size, open_table, serialise

__all__ = [
    "VALUES",
    "Bag",
    "BagError",
    "Table",
    "TableError",
    "export",
    "file_size",
    "open_bag",
    "open_table",
    "serialise",
    "serialise_product",
]
