"""Rows coded anew: the kernel against a plain twin, and against all supports there are."""

from itertools import product

import numpy as np
import pytest

from antembed.layer.coding_kernel import SETTLED, recode_rows


def problem(seed=0, V=12, K=5):
    random = np.random.default_rng(seed)
    T = np.abs(random.normal(size=(V, K))) * (random.random((V, K)) < 0.6)
    roots = random.normal(size=(2, K, K))
    P, Q = (root @ root.T for root in roots)
    return random, T, random.normal(size=(V, K)), random.random(V) + 0.1, random.random(V), P, Q


def value(t, T, G, h, ridge, P, Q, penalty, damp):
    H, step = h * P + ridge * Q, t - T
    held = 0.5 * damp * (np.diag(H) * step**2).sum()
    return G @ step + 0.5 * step @ H @ step + held + penalty[t != 0].sum()


def plain(T, G, h, ridge, P, Q, penalty, damp, floor, passes):
    """The same, written down as the docstring says."""
    out = T.copy()
    for r in range(len(T)):
        H = h[r] * P + ridge[r] * Q
        for _ in range(passes):
            before = out[r].copy()
            for k in range(T.shape[1]):
                slope = G[r, k] + H[k] @ (out[r] - T[r]) + damp * H[k, k] * (out[r, k] - T[r, k])
                best = max(out[r, k] - slope / (H[k, k] * (1 + damp)), floor)
                best = best if 0.5 * (1 + damp) * H[k, k] * best**2 > penalty[k] else 0.0
                if abs(best - out[r, k]) > SETTLED * abs(out[r, k]) or (out[r, k] == 0 and best != 0):
                    out[r, k] = best
            if (before == out[r]).all():
                break
    return out


@pytest.mark.parametrize("floor", [0.0, -np.inf])
@pytest.mark.parametrize("damp", [0.0, 0.5])
def test_kernel_equals_the_plain_twin(damp, floor):
    random, T, G, h, ridge, P, Q = problem()
    penalty, out = random.random(5), np.empty((12, 5))
    recode_rows(T, G, h, ridge, P, Q, penalty, damp, floor, 8, out, 0, 12)
    np.testing.assert_allclose(out, plain(T, G, h, ridge, P, Q, penalty, damp, floor, 8), atol=1e-12)
    assert (out >= floor).all()
    assert 0 < np.count_nonzero(out) < out.size


def test_the_sum_never_rises_and_no_weight_alone_improves_it():
    random, T, G, h, ridge, P, Q = problem(1, V=40)
    penalty, out = 0.3 * random.random(5), np.empty((40, 5))
    last = [value(T[r], T[r], G[r], h[r], ridge[r], P, Q, penalty, 0.2) for r in range(40)]
    for passes in (1, 2, 50):
        recode_rows(T, G, h, ridge, P, Q, penalty, 0.2, 0.0, passes, out, 0, 40)
        now = [value(out[r], T[r], G[r], h[r], ridge[r], P, Q, penalty, 0.2) for r in range(40)]
        assert all(a <= b + 1e-9 for a, b in zip(now, last, strict=True))
        last = now
    for r, k in product(range(40), range(5)):
        for other in (0.0, 0.9 * out[r, k], 1.1 * out[r, k] + 0.01):
            moved = out[r].copy()
            moved[k] = other
            assert value(moved, T[r], G[r], h[r], ridge[r], P, Q, penalty, 0.2) >= last[r] - 1e-6


def test_rows_that_nobody_looks_up_become_zero():
    _, T, G, h, ridge, P, Q = problem(2)
    h[3] = ridge[3] = 0.0
    out = np.empty_like(T)
    recode_rows(T, G, h, ridge, P, Q, np.zeros(5), 0.5, 0.0, 8, out, 0, 12)
    assert not out[3].any()
    assert out.any(1).sum() >= 10


def test_parts_of_rows_are_the_whole():
    random, T, G, h, ridge, P, Q = problem(3)
    penalty, whole, parts = random.random(5), np.empty_like(T), np.empty_like(T)
    recode_rows(T, G, h, ridge, P, Q, penalty, 0.5, 0.0, 8, whole, 0, 12)
    for cut in ((0, 5), (5, 12)):
        recode_rows(T, G, h, ridge, P, Q, penalty, 0.5, 0.0, 8, parts, *cut)
    assert (whole == parts).all()
