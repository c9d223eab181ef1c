"""T as its non-zeros: the arrays of a file are those that a dense T gives, however it is cut into blocks."""

from unittest import mock

import numpy as np
import pytest

from antembed.tables import number_formats as nonzeros
from antembed.tables.encodings import ENCODERS
from antembed.tables.number_formats import Nonzeros, decompressed, quantize, quantize_nonzeros


def dense_arrays(T: np.ndarray) -> dict[str, dict[str, np.ndarray]]:
    """The plain twin: each encoding from a dense T (V, K)."""
    nonzero = T != 0
    bits = np.packbits(nonzero, axis=1, bitorder="little")
    order = np.argsort(-nonzero.sum(0), kind="stable")
    sorted_ = T[:, order]
    return {
        "plain": {"weights": T},
        "bitmap": {"bits": bits, "values": T[nonzero]},
        "csr": {"counts": nonzero.sum(1), "columns": np.nonzero(nonzero)[1], "values": T[nonzero]},
        "packed": {
            "coded_bits": np.packbits(sorted_ != 0, axis=1, bitorder="little").T,
            "values": sorted_[sorted_ != 0],
            "order": order,
        },
    }


def whole(array: np.ndarray | Nonzeros) -> np.ndarray:
    return array if isinstance(array, np.ndarray) else np.concatenate([np.empty((0, array.shape[1])), *array.blocks()])


@pytest.mark.parametrize("density", [0.0, 0.2, 1.0])
@pytest.mark.parametrize(("V", "K"), [(0, 3), (1, 1), (50, 9), (50, 300)])
def test_encodings_are_those_of_a_dense_matrix(V, K, density):
    rng = np.random.default_rng(V + K)
    T = ((rng.random((V, K)) < density) * rng.standard_normal((V, K))).astype(np.float32)
    with mock.patch.object(nonzeros, "BLOCK", 7):
        sparse = Nonzeros.of(T)
        np.testing.assert_array_equal(whole(sparse), T)
        for name, wanted in dense_arrays(T).items():
            found = ENCODERS[name](sparse)
            assert found.keys() == wanted.keys()
            for key, array in wanted.items():
                own = whole(found[key])
                if key == "coded_bits":
                    own = decompressed(own, array.size).reshape(array.shape)
                np.testing.assert_array_equal(own, array)


def test_columns_and_values_change_alike():
    rng = np.random.default_rng(0)
    T = ((rng.random((40, 12)) < 0.3) * rng.standard_normal((40, 12))).astype(np.float32)
    T[:, [2, 7]] = 0
    T[3] *= 1e-9  # nothing in fp16
    sparse = Nonzeros.of(T)
    kept = T.any(0)
    np.testing.assert_array_equal(whole(sparse.narrowed(kept)), T[:, kept])
    coarse = sparse.with_values(sparse.values.astype(np.float16))
    np.testing.assert_array_equal(whole(coarse), T.astype(np.float16))
    assert coarse.counts[3] == 0 < sparse.counts[3]
    codes, scales = quantize(T, 31)
    own, own_scales = quantize_nonzeros(sparse, 31)
    np.testing.assert_array_equal(own_scales, scales)
    np.testing.assert_array_equal(whole(own), codes)
