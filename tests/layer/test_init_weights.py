"""The start of T and A: anchors stand for themselves, no row is left without weight, features give it where there are any."""

import numpy as np
import pytest
import torch

from antembed.layer.anchors.init_weights import anchor_vectors, init_weights, nearest_anchors

V, K, d = 50, 6, 8
ANCHORS = np.array([7, 3, 20, 11, 42, 30])


def features(width=d):
    return np.random.default_rng(1).standard_normal((V, width)).astype(np.float32)


@pytest.mark.parametrize("given", [{}, {"features": features()}, {"related": (np.array([2, 2, 9]), np.array([0, 4, 1]))}])
def test_anchors_are_themselves_and_no_row_is_empty(given):
    T, A = init_weights(V, d, ANCHORS, seed=4, **given)
    assert T.shape == (V, K)
    assert A.shape == (K, d)
    assert T.dtype == A.dtype == torch.float32
    torch.testing.assert_close(T[ANCHORS], torch.eye(K))
    assert (T >= 0).all()
    assert (T > 0).any(1).all()
    assert (T > 0).sum(1).max() <= 4
    again = init_weights(V, d, ANCHORS, seed=4, **given)
    assert torch.equal(T, again[0])
    assert torch.equal(A, again[1])
    assert not torch.equal(A, init_weights(V, d, ANCHORS, seed=5)[1])


def test_it_learns_where_zeros_would_not():
    """E = T·A with T = 0 and A = 0 is stuck; from here both sides have a gradient, in every row and every anchor."""
    T, A = (tensor.requires_grad_() for tensor in init_weights(V, d, ANCHORS))
    (T @ A - torch.randn(V, d)).square().sum().backward()
    assert T.grad.any(1).all()
    assert A.grad.any(1).all()


def test_related_objects_begin_with_their_anchors_only():
    related = np.array([2, 2, 9]), np.array([0, 4, 1])
    T, _ = init_weights(V, d, ANCHORS, related=related)
    assert T[2].nonzero().flatten().tolist() == [0, 4]
    assert T[9].nonzero().flatten().tolist() == [1]
    assert 1 <= (T[10] > 0).sum() <= 4


def test_features_give_the_nearest_anchors():
    X = features()
    X[5] = 0.0
    X[6] = X[20] + 0.01
    T, A = init_weights(V, d, ANCHORS, features=X)
    assert T[6].argmax() == 2
    assert T[6].sum() == pytest.approx(1)
    assert 1 <= (T[5] > 0).sum() <= 4  # nothing is known of it: at random
    assert T[5].max() < 0.5
    torch.testing.assert_close(A, torch.from_numpy(X[ANCHORS] / np.linalg.norm(X[ANCHORS], axis=1).mean()))


def test_nearest_anchors_against_the_plain_loop():
    X = features()
    expected = np.zeros((V, K))
    for i, x in enumerate(X):
        cosines = [x @ X[a] / np.linalg.norm(x) / np.linalg.norm(X[a]) for a in ANCHORS]
        for k in sorted(range(K), key=lambda k: -cosines[k])[:3]:
            expected[i, k] = max(cosines[k], 0)
        expected[i] /= max(expected[i].sum(), 1e-30)
    np.testing.assert_allclose(nearest_anchors(X, ANCHORS, 3, chunk=7), expected, rtol=0, atol=1e-5)


def test_narrow_features_are_filled_up_and_wide_ones_turned():
    rng = np.random.default_rng(0)
    narrow, wide = features(3), features(400)
    A = anchor_vectors(narrow, ANCHORS, d, rng)
    assert not A[:, 3:].any()
    assert np.linalg.norm(A, axis=1).mean() == pytest.approx(1)
    np.testing.assert_allclose(A[:, :3] / A[0, 0], narrow[ANCHORS] / narrow[ANCHORS][0, 0], rtol=1e-5)
    A = anchor_vectors(wide, ANCHORS, 300, rng)

    def cosines(rows):
        rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
        return rows @ rows.T

    assert A.shape == (K, 300)
    np.testing.assert_allclose(cosines(A), cosines(wide[ANCHORS]), atol=0.15)


def test_an_anchor_without_features_is_drawn():
    X = features()
    X[3] = 0.0
    T, A = init_weights(V, d, ANCHORS, features=X)
    assert A[1].any()
    assert T[3, 1] == 1


@pytest.mark.parametrize(
    ("anchors", "text"),
    [
        ([1, 2, 3, 4, 5, 5], "6 different anchors are needed, got 5"),
        ([1, 2, 3, 4, 5, V], "anchor 50 is none"),
    ],
)
def test_wrong_anchors(anchors, text):
    with pytest.raises(ValueError, match=text):
        init_weights(V, d, np.array(anchors))


def test_features_of_another_table():
    with pytest.raises(ValueError, match="features are of 49 objects, there are 50"):
        init_weights(V, d, ANCHORS, features=features()[:-1])


@pytest.mark.parametrize("given", [{}, {"features": features()}, {"related": (np.array([2, 2, 9]), np.array([0, 4, 1]))}])
def test_some_rows_are_those_of_all(given):
    T, A = init_weights(V, d, ANCHORS, seed=4, **given)
    rows = np.random.default_rng(2).permutation(V)[: V // 2]
    own, same = init_weights(V, d, ANCHORS, seed=4, rows=rows, **given)
    np.testing.assert_allclose(own, T[rows], rtol=0, atol=1e-6 if "features" in given else 0)
    assert torch.equal(same, A)
