"""docs/format.md is enough to write a reader: plain_reader.py was, and finds the same vectors, biases and words."""

import ast
from pathlib import Path

import numpy as np
import pytest
from tests.mutations import samples
from tests.tables import plain_reader

from antembed.tables.save import load_table


@pytest.fixture(scope="module")
def files():
    return {name: data for name, data in samples().items() if not name.startswith(("old", "ngrams"))}


def test_a_second_reader_finds_the_same(files, tmp_path):
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
        about, arrays = plain_reader.read(tmp_path / name)
        table = load_table(tmp_path / name)
        terms = np.abs(table.rows(np.arange(len(table)))) @ np.abs(
            np.eye(table.columns) if table.anchors is None else table.anchors
        )
        found = plain_reader.vectors(about, arrays)
        np.testing.assert_allclose(found, table[:], rtol=0, atol=1e-6 * float(terms.max()), err_msg=name)
        np.testing.assert_allclose(plain_reader.biases(about, arrays), table.bias_of(np.arange(len(table))), rtol=1e-6)
        if table.words is not None:
            assert plain_reader.words(about, arrays) == table.words.all()
    encodings = {"plain", "bitmap", "csr", "packed", "coded", "sparse", "product"}
    assert {load_table(tmp_path / name).encoding for name in files} == encodings


def test_it_is_short_and_stands_alone():
    source = Path(plain_reader.__file__).read_text()
    assert len(source.splitlines()) <= 200
    nodes = list(ast.walk(ast.parse(source)))
    found = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    found |= {str(node.module) for node in nodes if isinstance(node, ast.ImportFrom)}
    assert found == {"json", "lzma", "zlib", "numpy", "itertools", "pathlib"}
