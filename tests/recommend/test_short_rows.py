"""Rows with few ratings: anchors that move together, against those of the normal equations."""

from itertools import pairwise

import numpy as np
import pytest

from antembed.native.large_arrays import across, along
from antembed.native.vector import padded_columns
from antembed.recommend import short_rows
from antembed.recommend.descent import Descent
from antembed.recommend.factor import NO_BIAS, Penalties
from antembed.recommend.normal_equations import AnchorMoments
from antembed.recommend.short_rows import AnchorQuadratic, is_short

USERS, ITEMS, D, ANCHORS = 300, 220, 12, (20, 11)
EVENTS = Penalties(0.02, 0.3, 0.1, 1.0, 0.05)


def events(seed=0):
    """Users of two tastes and items of two kinds, a few pairs each; some have none."""
    random = np.random.default_rng(seed)
    users = random.integers(0, USERS - 2, 1500)
    items = (random.integers(0, ITEMS // 2, 1500) * 2 + (users + (random.random(1500) < 0.1)) % 2) % ITEMS
    pairs, counts = np.unique(users * ITEMS + items, return_counts=True)
    columns = (pairs // ITEMS).astype(np.int32), (pairs % ITEMS).astype(np.int32)
    values = 1 + 0.5 * ((columns[0] + columns[1]) % 2) + 0.5 * (columns[0] % 3 == 0) * (columns[1] % 4 < 2)
    return *columns, values.astype(np.float32), (1 + np.log(counts)).astype(np.float32)


def build(penalties=EVENTS, sweeps=8, weights=True, **more):
    return Descent(events()[: 4 if weights else 3], (USERS, ITEMS), ANCHORS, D, penalties, sweeps=sweeps, **more)


def begun(**more):
    descent = build(**more)
    descent.init_weights()
    descent.sweep(4)
    return descent


def quadratic_of(descent, side):
    other = descent.items if side is descent.users else descent.users
    return AnchorQuadratic(side, other, descent.mean, descent.penalties, 1)


def anchor_quadratic(descent, side):
    """The whole curvature (K·d, K·d) and the slope, from normal equations."""
    moments, A = AnchorMoments(*side.A.shape), padded_columns(side.A)
    descent._equations(side).visit(lambda part, a, b, S, v: moments.add(part, side.T, side.bias, A, S, v, a, b), moments.parts)
    M, g = moments.total()
    K = len(side.A)
    blocks = [[M[max(k, j) * (max(k, j) + 1) // 2 + min(k, j)] for j in range(K)] for k in range(K)]
    return np.block(blocks), g


@pytest.mark.parametrize("unobserved", [0.0, 0.05])
def test_the_quadratic_in_all_anchors_is_that_of_the_normal_equations(unobserved):
    descent = begun(penalties=Penalties(0.02, 0.3, 0.1, 1.0, unobserved))
    for side in (descent.users, descent.items):
        M, g = anchor_quadratic(descent, side)
        found = quadratic_of(descent, side)
        D = np.random.default_rng(0).standard_normal(g.shape)
        np.testing.assert_allclose(found.slope, g, atol=1e-6 * np.abs(M).max())
        np.testing.assert_allclose(found.curvature(D).reshape(-1), M @ D.reshape(-1), atol=1e-5 * np.abs(M).max())


def test_anchors_reach_their_minimum_together(monkeypatch):
    monkeypatch.setattr(short_rows, "STEPS", 400)
    monkeypatch.setattr(short_rows, "PRECISE", 1e-9)
    descent = begun()
    side = descent.users
    M, g = anchor_quadratic(descent, side)
    found = quadratic_of(descent, side).minimize().reshape(-1)
    best = np.linalg.lstsq(M, g.reshape(-1), rcond=1e-10)[0]
    value = lambda x: 0.5 * x @ M @ x - g.reshape(-1) @ x  # noqa: E731
    assert value(found) == pytest.approx(value(best), rel=1e-5)


def test_anchors_keep_length_1_and_vectors_are_their_mixes():
    descent = begun()
    for side in (descent.users, descent.items):
        before = descent.objective()
        descent.move_anchors(side, None)
        assert descent.objective() <= before + 1e-9 * abs(before)
        np.testing.assert_allclose(side.E, side.T @ side.A, atol=1e-12)
        np.testing.assert_allclose(np.linalg.norm(side.A, axis=1), 1.0)


@pytest.mark.parametrize("weights", [False, True])
@pytest.mark.parametrize(
    ("bias_ridge", "unobserved", "penalized"),
    [(1.0, 0.05, False), (NO_BIAS, 0.05, False), (1.0, 0.0, False), (1.0, 0.05, True)],
)
def test_the_objective_hardly_rises(bias_ridge, unobserved, penalized, weights):
    """Never, but for the rounding of single precision."""
    descent = build(Penalties(0.02, 0.3, 0.1, bias_ridge, unobserved, penalized), weights=weights)
    assert is_short(descent.users)
    assert is_short(descent.items)
    descent.init_weights()
    found = []
    for sweep in range(1, 24):
        descent.sweep(sweep)
        if sweep >= 8:  # the full penalty
            found.append(descent.objective())
    assert all(after <= before + 1e-6 * abs(before) for before, after in pairwise(found))
    assert found[-1] < found[0]


def test_threads_make_no_difference_to_short_rows():
    results = []
    for threads in (1, 2):
        descent = build(threads=threads)
        descent.init_weights()
        for sweep in range(1, 5):
            descent.sweep(sweep)
        results.append(descent.state())
    assert all(results[0][name].equal(results[1][name]) for name in results[0])


def test_rows_without_pairs_lose_their_weights():
    descent = begun()
    side = descent.users
    assert side.starts[-1] == side.starts[-3]  # the last two have none
    side.T[:] = 0.0
    side.T[-2:] = 1.0
    descent.move_anchors(side, None)  # though nobody else uses them
    assert np.isfinite(side.A).all()
    descent.descend_rows(side, 1.0)
    assert not side.T[-2:].any()
    descent.move_anchors(side, None)
    assert np.isfinite(side.A).all()


def test_blocks_of_products_are_the_whole():
    random = np.random.default_rng(0)
    X, Y, x = random.standard_normal((5000, 40)), random.standard_normal((5000, 9)), random.standard_normal(5000)
    np.testing.assert_allclose(across(X, Y), X.T @ Y, atol=1e-9)
    np.testing.assert_allclose(across(X, x), X.T @ x, atol=1e-9)
    np.testing.assert_allclose(along(X, Y[:40]), X @ Y[:40], atol=1e-11)
    assert across(X[:0], Y[:0]).shape == (40, 9)
    assert along(X[:0], Y[:40]).shape == (0, 9)
