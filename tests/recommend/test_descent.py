"""Coordinate descent: it never climbs, each step is a true minimum, and it finds what was planted."""

from itertools import pairwise

import numpy as np
import pytest
from scipy.optimize import nnls

from antembed.native.vector import padded_columns
from antembed.recommend.descent import Descent
from antembed.recommend.factor import NO_BIAS, Penalties
from antembed.recommend.normal_equations import AnchorMoments
from antembed.recommend.synthetic import planted, ratings

USERS, ITEMS, N = 120, 70, 6000
PENALTIES = Penalties(1.0, 2.0, 0.02, 1.0)


def data(noise=0.1, weights=False):
    users = planted(USERS, 8, anchors=4, exponent=0.3, seed=1)
    items = planted(ITEMS, exponent=0.3, seed=2, like=users)
    found = ratings(users, items, N, noise=noise, seed=3).columns
    return (*found, np.random.default_rng(0).uniform(0, 2, N).astype(np.float32)) if weights else found


def descend_anchors(descent, factor):
    """One anchor after the other, the weights held."""
    moments, A = AnchorMoments(*factor.A.shape), padded_columns(factor.A)
    descent._equations(factor).visit(
        lambda part, a, b, S, v: moments.add(part, factor.T, factor.bias, A, S, v, a, b), moments.parts
    )
    descent.move_anchors(factor, moments)


def build(penalties=PENALTIES, anchors=(6, 5), sweeps=12, **more):
    return Descent(data(**more), (USERS, ITEMS), anchors, 8, penalties, sweeps=sweeps)


@pytest.mark.parametrize("anchors", [(6, 5), None], ids=["anchors", "dense rows"])
@pytest.mark.parametrize("weights", [False, True])
@pytest.mark.parametrize(
    ("bias_ridge", "unobserved", "penalized"), [(1.0, 0.0, False), (NO_BIAS, 0.0, False), (1.0, 0.1, False), (1.0, 0.0, True)]
)
def test_the_objective_never_rises(weights, bias_ridge, unobserved, penalized, anchors):
    descent = build(
        Penalties(1.0, 2.0, 0.02, bias_ridge, unobserved, penalized and anchors is not None), anchors, weights=weights
    )
    descent.init_weights()
    found = []
    for sweep in range(1, 30):
        descent.sweep(sweep)
        if sweep >= 12:  # the full penalty
            found.append(descent.objective())
    assert all(after <= before + 1e-9 * abs(before) for before, after in pairwise(found))
    assert found[-1] < found[0]
    if bias_ridge == NO_BIAS:
        assert np.abs(descent.users.bias).max() < 1e-20


def test_pairs_without_a_rating_count_as_rated_0():
    """The short way against the long one: all pairs written out."""
    descent = build(Penalties(1.0, 2.0, 0.02, 1.0, 0.1))
    users, items = (pairs.reshape(-1) for pairs in np.meshgrid(np.arange(USERS), np.arange(ITEMS), indexing="ij"))
    columns = [np.concatenate([a, b]) for a, b in zip(data(), (users, items, np.zeros(len(users), np.float32)), strict=True)]
    weights = np.concatenate([np.ones(N), np.full(len(users), 0.1)])
    long = Descent((*columns, weights), (USERS, ITEMS), (6, 5), 8, Penalties(1.0, 2.0, 0.0, 1.0), sweeps=12)
    assert descent.mean == pytest.approx(long.mean)
    descent.penalties = Penalties(1.0, 2.0, 0.0, 1.0, 0.1)
    for each in (descent, long):
        each.init_weights()
        for sweep in range(1, 4):
            each.sweep(sweep)
    assert descent.objective() == pytest.approx(long.objective())
    np.testing.assert_allclose(descent.users.E, long.users.E, atol=1e-6)


def test_half_a_sweep_lowers_the_objective_too():
    """Rows alone, and anchors alone: the whole objective, worked out from the ratings, falls at each."""
    descent = build(weights=True)
    descent.init_weights()
    descent.sweep(12)
    for own in descent.factors:
        descent.accumulate_normal_equations(own)
        for step in (lambda side: descent.descend_rows(side, 1.0), lambda side: descend_anchors(descent, side)) * 2:
            before = descent.objective()
            step(own)
            assert descent.objective() <= before + 1e-9 * abs(before)


def test_what_the_ratings_say_is_their_normal_equations():
    descent = build(weights=True)
    descent.init_weights()
    descent.accumulate_normal_equations(descent.users)
    users, items, values, weights = descent.columns
    E = np.column_stack([descent.items.E, np.ones(ITEMS)])
    for user in (0, 7, 119):
        mine = users == user
        X, w = E[items[mine]], weights[mine].astype(float)
        y = values[mine].astype(float) - descent.mean - descent.items.bias[items[mine]]
        ridge = np.diag([2.0 + 0.02 * mine.sum()] * 8 + [1.0])
        np.testing.assert_allclose(descent.users.S[user], (X * w[:, None]).T @ X + ridge, atol=1e-7)
        np.testing.assert_allclose(descent.users.v[user], (X * w[:, None]).T @ y, atol=1e-9)


def test_without_a_penalty_rows_are_the_non_negative_least_squares():
    descent = build(Penalties(0.0, 0.5, 0.0, NO_BIAS))
    descent.init_weights()
    descent.accumulate_normal_equations(descent.users)
    for _ in range(60):
        descent.descend_rows(descent.users, 0.0)
    side = descent.users
    for user in (0, 7, 119):
        S, v = side.S[user, :8, :8], side.v[user, :8]
        root = np.linalg.cholesky(S)
        wanted, _ = nnls(root.T @ side.A.T, np.linalg.solve(root, v))
        left, best = (0.5 * e @ S @ e - v @ e for e in (side.T[user] @ side.A, wanted @ side.A))
        assert best <= left + 1e-9
        assert left == pytest.approx(best, rel=1e-4)  # anchors are nearly parallel, so the last digits take long


def test_every_weight_is_worth_its_penalty():
    """Taking any single weight away raises the objective; that is what the penalty means."""
    descent = build()
    descent.init_weights()
    for sweep in range(1, 40):
        descent.sweep(sweep)
    best, side = descent.objective(), descent.users
    kept = np.argwhere(side.T != 0)
    assert 0 < len(kept) < side.T.size
    E = side.E.copy()
    for r, k in kept[:40]:
        side.E = E.copy()
        side.E[r] -= side.T[r, k] * side.A[k]
        saved, side.T[r, k] = side.T[r, k], 0.0
        assert descent.objective() > best - 1e-6 * best
        side.T[r, k] = saved


def test_every_bias_is_worth_its_penalty():
    """With a penalty on biases some are exactly zero; each that is left lowers the objective by more than its penalty."""
    descent = build(Penalties(1.0, 2.0, 0.02, 1.0, biases=True))
    descent.init_weights()
    for sweep in range(1, 40):
        descent.sweep(sweep)
    best, bias = descent.objective(), descent.users.bias
    kept = np.flatnonzero(bias)
    assert 0 < len(kept) < USERS
    for r in kept:
        saved, bias[r] = bias[r], 0.0
        assert descent.objective() > best - 1e-6 * best
        bias[r] = saved


def test_it_finds_what_was_planted():
    """Each object is a mix of 2 of 4 tastes: the noise is what is left, and hardly more weights than were planted."""
    descent = build(Penalties(0.5, 0.05, 0.0, NO_BIAS), anchors=(8, 8), sweeps=40)
    descent.init_weights()
    for sweep in range(1, 41):
        descent.sweep(sweep)
    variance = float(np.var(descent.columns[2]))
    assert 2 * descent.loss() / N < 0.016 < variance / 20  # noise² is 0.01
    assert np.count_nonzero(descent.users.T) + np.count_nonzero(descent.items.T) < 5 * (USERS + ITEMS)


def test_threads_make_no_difference():
    results = []
    for threads in (1, 2):
        descent = Descent(data(), (USERS, ITEMS), (6, 5), 8, Penalties(1.0, 2.0, 0.02, 1.0), sweeps=6, threads=threads)
        descent.init_weights()
        for sweep in range(1, 7):
            descent.sweep(sweep)
        results.append(descent.state())
    assert all(results[0][name].equal(results[1][name]) for name in results[0])


def test_it_says_when_it_needs_too_much():
    with pytest.raises(ValueError, match="would need 25 GB for 58,700,000 objects of width 16"):
        Descent(data(), (43_500_000, 15_200_000), (15, 10), 16, Penalties(1, 1, 1, 1), sweeps=1)
