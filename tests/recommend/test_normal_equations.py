"""Blocks of rows, sums over rows in parts, and compiled codes: against the plain way."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from tests.recommend.test_descent import ITEMS, PENALTIES, USERS, build, data

from antembed.layer.factorize import descend_codes, descend_transform
from antembed.native.threads import take_turns
from antembed.recommend import normal_equations
from antembed.recommend.descent import Descent
from antembed.recommend.descent_kernel import solve_rows
from antembed.recommend.factor import Penalties
from antembed.recommend.normal_equations import AnchorMoments, balanced_cuts, minimize_anchors


@pytest.mark.parametrize("d", [3, 8, 17])
def test_anchors_move_as_they_would_one_by_one(d):
    """The plain way: curvature and slope of each anchor from all rows, as they are when its turn comes."""
    descent = Descent(data(), (USERS, ITEMS), (6, 5), d, PENALTIES, sweeps=4)
    descent.init_weights()
    descent.sweep(2)
    side = descent.users
    descent.accumulate_normal_equations(side)
    A, S, v = side.A.copy(), side.S, side.v
    for k in range(len(A)):
        z = np.column_stack([side.T @ A, side.bias])
        row_slopes = v - np.einsum("rab,rb->ra", S, z)
        H = np.einsum("r,rab->ab", side.T[:, k] ** 2, S[:, :d, :d])
        A[k] += np.linalg.lstsq(H, side.T[:, k] @ row_slopes[:, :d], rcond=1e-10)[0]
    moments = AnchorMoments(*side.A.shape)
    padded = np.zeros((len(A), -(-d // 8) * 8))
    padded[:, :d] = side.A
    descent._equations(side).visit(
        lambda part, a, b, S, v: moments.add(part, side.T, side.bias, padded, S, v, a, b), moments.parts
    )
    minimize_anchors(side, *moments.total())
    np.testing.assert_allclose(side.A, A, atol=1e-8)


def test_blocks_make_no_difference(monkeypatch):
    """Equations that are held, and those that are worked out again for each block of a few rows."""
    results = []
    for held, block in ((1 << 30, 1 << 30), (0, 1)):
        monkeypatch.setattr("antembed.recommend.normal_equations.HELD_BYTES", held)
        monkeypatch.setattr(normal_equations, "BLOCK_BYTES", block)
        descent = build(Penalties(1.0, 2.0, 0.02, 1.0, 0.1), weights=True)
        descent.init_weights()
        for sweep in range(1, 6):
            descent.sweep(sweep)
        results.append(descent.state())
    assert all(results[0][name].equal(results[1][name]) for name in results[0])


@pytest.mark.parametrize("d", [1, 5, 8, 20])
def test_dense_rows_solve_their_equations(d):
    descent = Descent(data(weights=True), (USERS, ITEMS), None, d, PENALTIES, sweeps=1)
    descent.init_dense()
    descent.accumulate_normal_equations(descent.users)
    descent._solve(descent.users, solve_rows)
    wanted = np.linalg.solve(descent.users.S, descent.users.v[:, :, None])[:, :, 0]
    np.testing.assert_allclose(np.column_stack([descent.users.E, descent.users.bias]), wanted, atol=1e-10)


def test_the_loss_is_that_of_the_predictions():
    descent = build(weights=True)
    descent.init_weights()
    users, items, values, weights = descent.columns
    assert descent.loss() == pytest.approx(0.5 * (weights * np.square(values - descent.predict(users, items))).sum(), rel=1e-6)


@pytest.mark.parametrize("threads", [1, 2])
def test_compiled_codes_are_those_of_torch(threads):
    generator = torch.Generator().manual_seed(0)
    E, A = (torch.randn(n, 6, generator=generator, dtype=torch.float64) for n in (1100, 11))
    A[3] = 0
    T = torch.rand(1100, 11, generator=generator, dtype=torch.float64)
    wanted = T.clone()
    descend_transform(E, A, wanted, 0.01, sweeps=3)
    descend_codes(E, A, T, 0.01, sweeps=3, threads=threads)
    torch.testing.assert_close(T, wanted, atol=1e-9, rtol=0)


def test_parts_cover_all_rows_once():
    starts = np.cumsum([0, 5000, 0, 1, 2, 0, 9000, 3])
    cuts = balanced_cuts(starts, 4)
    assert cuts[0] == 0
    assert cuts[-1] == 7
    assert all(a < b for a, b in pairwise(cuts))
    assert [*balanced_cuts(np.zeros(1, int), 4)] == [0]


def test_a_failure_in_one_turn_is_heard():
    done = []

    def work(piece):
        if piece == 3:
            raise RuntimeError("turn 3")
        done.append(piece)

    with pytest.raises(RuntimeError, match="turn 3"):
        take_turns(work, 1000, 2)
    assert len(done) < 1000
    take_turns(done.append, 0, 2)
