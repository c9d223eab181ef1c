"""Products in tiles against NumPy."""

import numpy as np
import pytest
from numba import njit

from antembed.layer.matmul_kernel import TILE_ROWS, multiply_tiles, padded, stride_of


@njit
def call(rows, inner, columns, X, down, right, Y, out, adding):
    multiply_tiles(rows, inner, columns, X, 3, down, right, Y, Y.shape[1], out, out.shape[1], adding)


@pytest.mark.parametrize(
    ("rows", "inner", "columns"), [(6, 5, 16), (13, 40, 24), (1, 1, 8), (18, 0, 40), (7, 9, 32), (12, 20, 120)]
)
@pytest.mark.parametrize("transposed", [False, True])
def test_products_of_any_shape(rows, inner, columns, transposed):
    rng = np.random.default_rng(0)
    high = padded(rows, TILE_ROWS)
    X = rng.standard_normal((inner, high) if transposed else (high, inner)).astype(np.float32)
    Y = rng.standard_normal((inner, stride_of(columns))).astype(np.float32)
    out = rng.standard_normal((high, stride_of(columns))).astype(np.float32)
    before, source = out.copy(), np.concatenate([np.zeros(3, np.float32), X.ravel()])
    expected = (X.T if transposed else X)[:rows].astype(float) @ Y[:, :columns]
    strides = (1, high) if transposed else (inner, 1)
    for adding in (1, 0):
        call(rows, inner, columns, source, *strides, Y, out, adding)
        np.testing.assert_allclose(out[:rows, :columns], expected + adding * before[:rows, :columns], rtol=0, atol=1e-4)
    assert np.array_equal(out[:, padded(columns, 16) :], before[:, padded(columns, 16) :])


def test_strides_are_odd_numbers_of_cache_lines():
    for width in (1, 16, 17, 256, 300):
        assert stride_of(width) >= width
        assert stride_of(width) % 32 == 16
