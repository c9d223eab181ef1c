"""The softmax over a sparse T, beside torch's over the dense one."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from antembed.language.softmax_kernel import sparse_cross_entropy, sparse_log_totals


def problem(n, V=37, K=9, seed=0, scale=1.0):
    rng = np.random.default_rng(seed)
    T = (rng.random((V, K)) * (rng.random((V, K)) < 0.3)).astype(np.float32)
    T[3] = 0  # a word without weights
    starts = np.concatenate([[0], np.cumsum((T != 0).sum(1))]).astype(np.int64)
    sparse = starts, np.nonzero(T)[1].astype(np.int32), T[T != 0]
    x = (scale * rng.normal(size=(n, K))).astype(np.float32)
    return T, sparse, x, rng.normal(size=V).astype(np.float32), rng.integers(0, V, n)


@pytest.mark.parametrize("n", [1, 63, 64, 65, 200])
@pytest.mark.parametrize("threads", [1, 3])
def test_loss_and_gradients_are_those_of_the_dense_softmax(n, threads):
    T, sparse, x, bias, targets = problem(n)
    loss, dx, dvalues, dbias = sparse_cross_entropy(x, sparse, bias, targets, threads)
    leaves = [torch.tensor(part, dtype=torch.float64, requires_grad=True) for part in (x, T, bias)]
    wanted = F.cross_entropy(leaves[0] @ leaves[1].T + leaves[2], torch.from_numpy(targets), reduction="sum")
    wanted.backward()
    assert loss == pytest.approx(wanted.item(), rel=1e-5)
    np.testing.assert_allclose(dx, leaves[0].grad, rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(dvalues, leaves[1].grad.numpy()[T != 0], rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(dbias, leaves[2].grad, rtol=1e-3, atol=1e-4)


def test_large_scores_do_not_overflow():
    T, sparse, x, bias, targets = problem(70, scale=300.0)
    loss, dx, *_ = sparse_cross_entropy(x, sparse, bias, targets, 2)
    wanted = F.cross_entropy(torch.tensor(x @ T.T + bias, dtype=torch.float64), torch.from_numpy(targets), reduction="sum")
    assert loss == pytest.approx(wanted.item(), rel=1e-4)
    assert np.isfinite(dx).all()


@pytest.mark.parametrize(("n", "V", "scale"), [(1, 5, 1.0), (130, 600, 1.0), (70, 600, 300.0)])
def test_log_totals_are_those_of_the_dense_product(n, V, scale):
    T, sparse, x, bias, _ = problem(n, V=V, scale=scale)
    bias[0] = -1e30  # no word
    scores = x.astype(np.float64) @ T.T + bias
    wanted = torch.from_numpy(scores).logsumexp(1).numpy()
    largest = np.abs(x).max() * T.sum(1).max()  # of what is summed
    for threads in (1, 2):
        np.testing.assert_allclose(sparse_log_totals(x, sparse, bias, threads), wanted, rtol=0, atol=1e-6 * (10 + largest))
