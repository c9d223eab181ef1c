"""One array (V, d) in fp32: .npy, and safetensors with the biases beside it."""

import io
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.lib import format as npy

from antembed.files import write_atomically
from antembed.tables.formats_named import Named


def _rows(named: Named) -> Iterator[bytes]:
    return (named.table[ids].astype("<f4").tobytes() for ids in named.pieces())


def write_npy(named: Named, out: Path) -> list[Path]:
    """For np.load, also with mmap_mode="r"."""
    head = io.BytesIO()
    npy.write_array_header_2_0(head, {"descr": "<f4", "fortran_order": False, "shape": named.table.shape})

    def contents() -> Iterator[bytes]:
        yield head.getvalue()
        yield from _rows(named)

    write_atomically(out, contents())
    return [out]


def write_safetensors(named: Named, out: Path) -> list[Path]:
    """The tensor "embeddings", as model2vec calls it, and "bias", offset included, if the table has biases."""
    V, d = named.table.shape
    end = 4 * V * d
    about = {"embeddings": {"dtype": "F32", "shape": [V, d], "data_offsets": [0, end]}}
    if named.has_bias:
        about["bias"] = {"dtype": "F32", "shape": [V], "data_offsets": [end, end + 4 * V]}
    header = json.dumps(about).encode()
    header += b" " * (-len(header) % 8)  # the numbers begin at a multiple of 8

    def contents() -> Iterator[bytes]:
        yield len(header).to_bytes(8, "little") + header
        yield from _rows(named)
        if named.has_bias:
            yield named.table.bias_of(np.arange(V)).astype("<f4").tobytes()

    write_atomically(out, contents())
    return [out]
