"""Streams: a batch never raises its objective, anchors change it by just what they say, and what is gone is not forgotten."""

from itertools import pairwise

import numpy as np
import pytest
from tests.recommend.test_descent import descend_anchors

from antembed.recommend import factor as anchor_search
from antembed.recommend.descent import Descent
from antembed.recommend.factor import Penalties
from antembed.recommend.online import OnlineDescent
from antembed.recommend.synthetic import planted, ratings

USERS, ITEMS, N, D = 120, 70, 6000, 8
PENALTIES = Penalties(1.0, 2.0, 0.02, 1.0, biases=True)


def data(seed=3):
    users = planted(USERS, D, anchors=4, exponent=0.3, seed=1)
    items = planted(ITEMS, exponent=0.3, seed=2, like=users)
    return ratings(users, items, N, noise=0.1, seed=seed).columns


def batches(size, columns=None):
    columns = columns or data()
    return [tuple(column[start : start + size] for column in columns) for start in range(0, len(columns[0]), size)]


def second_batch():
    """A descent in the middle of a stream: rows with a past, and rows elsewhere with a say in the anchors."""
    stream = OnlineDescent(D, PENALTIES, anchors=(5, 5), auto=False)
    first, second, *_ = batches(1500)
    stream.learn(first)
    keep = second[0] % 3 != 0  # a third of the users stay away
    users, items = (np.unique(column[keep], return_inverse=True) for column in second[:2])
    columns = users[1].astype(np.int32), items[1].astype(np.int32), second[2][keep]
    descent = Descent(columns, (len(users[0]), len(items[0])), (5, 5), D, PENALTIES, sweeps=10)
    descent.mean = stream.mean
    for state, (here, _) in ((stream.users, users), (stream.items, items)):
        state.grow(int(here.max()) + 1)
    stream.recall(descent.users, stream.users, users[0], stream.items.moments())
    stream.recall(descent.items, stream.items, items[0], stream.users.moments())
    return descent


def test_rows_and_anchors_with_a_past_lower_the_objective():
    descent = second_batch()
    assert descent.users.past.weighted_gram.any()
    found = [descent.objective()]
    for _ in range(3):
        for own in descent.factors:
            descent.accumulate_normal_equations(own)
            for step in (lambda side: descent.descend_rows(side, 1.0), lambda side: descend_anchors(descent, side)):
                step(own)
                found.append(descent.objective())
    assert all(after <= before + 1e-9 * abs(before) for before, after in pairwise(found))
    assert found[-1] < found[0] - 1


@pytest.mark.parametrize("change", [anchor_search.add_anchor, anchor_search.prune_anchors])
@pytest.mark.parametrize("past", [False, True])
def test_an_anchor_changes_the_objective_by_what_it_says(change, past):
    if past and change is anchor_search.prune_anchors:
        pytest.skip("rows elsewhere have no say in a sale, so there is none on a stream after the first batch")
    if past:
        descent = second_batch()
    else:
        descent = Descent(data(), (USERS, ITEMS), (5, 5), D, PENALTIES, sweeps=4)
        descent.init_weights()
        descent.sweep(4)
    side, l0 = descent.users, 1e-3 if change is anchor_search.add_anchor else 1.0
    anchor_penalty = 0.01 if change is anchor_search.add_anchor else 1e4
    descent.penalties = Penalties(l0, 2.0, 0.02, 1.0, biases=True)
    descent.accumulate_normal_equations(descent.users)
    before, K = descent.objective(), len(side.A)
    fallen = change(side, l0, anchor_penalty)
    assert fallen > 0
    added = len(side.A) - K
    assert added == 1 if change is anchor_search.add_anchor else added < 0
    assert descent.objective() + anchor_penalty * added == pytest.approx(before - fallen, rel=1e-9)
    assert np.allclose(side.E, side.T @ side.A)


def test_nothing_is_added_that_does_not_pay():
    descent = Descent(data(), (USERS, ITEMS), (5, 5), D, PENALTIES, sweeps=4)
    descent.init_weights()
    descent.sweep(4)
    descent.accumulate_normal_equations(descent.users)
    assert anchor_search.add_anchor(descent.users, 1.0, 1e6) == 0
    assert anchor_search.prune_anchors(descent.users, 1.0, -1e6) == 0
    assert len(descent.users.A) == 5


def test_one_batch_is_plain_descent():
    stream = OnlineDescent(D, PENALTIES, anchors=(5, 5), auto=False, sweeps=6)
    stream.learn(data())
    descent = Descent(data(), (USERS, ITEMS), (5, 5), D, PENALTIES, sweeps=6)
    descent.init_weights()
    for sweep in range(1, 7):
        descent.sweep(sweep)
    users, items = np.arange(50) % USERS, np.arange(50) % ITEMS
    np.testing.assert_allclose(stream.predict(users, items), descent.predict(users, items), atol=1e-8)


def test_the_pull_of_a_row_is_the_slope_of_its_ratings():
    """The plain way: Σ weight·residual·[e, 1] over an object's ratings."""
    stream = OnlineDescent(D, PENALTIES, anchors=(5, 5), auto=False, sweeps=6)
    users, items, values = data()
    weights = np.random.default_rng(0).uniform(0, 2, len(values)).astype(np.float32)
    stream.learn((users, items, values, weights))
    residual = weights * (values - stream.predict(users, items))
    for own, other, ids, others in ((stream.users, stream.items, users, items), (stream.items, stream.users, items, users)):
        E = np.column_stack([other.T @ other.A, np.ones(len(other.T))])
        wanted = np.zeros((len(own.T), D + 1))
        np.add.at(wanted, ids, residual[:, None] * E[others])
        np.testing.assert_allclose(own.g, wanted, atol=1e-4)
        np.testing.assert_allclose(own.n, np.bincount(ids, weights, len(own.T)), rtol=1e-6)
        np.testing.assert_array_equal(own.count, np.bincount(ids, minlength=len(own.T)))


def test_rows_elsewhere_are_pulled_less_when_the_anchors_take_them_along():
    stream = OnlineDescent(D, PENALTIES, anchors=(5, 5), auto=False)
    first, second, *_ = batches(1500)
    stream.learn(first)
    away = ~np.isin(np.arange(len(stream.users.T)), kept := np.unique(second[0])[::2])
    g, n, E = stream.users.g[away].copy(), stream.users.n[away], stream.users.T[away] @ stream.users.A
    C = stream.items.moments()
    here = np.isin(second[0], kept)
    stream.learn(tuple(column[here] for column in second))
    moved = stream.users.T[: len(away)][away] @ stream.users.A - E
    assert np.abs(moved).max() > 1e-4
    np.testing.assert_allclose(stream.users.g[: len(away)][away], g - n[:, None] * (moved @ C[:-1]), atol=1e-8)


@pytest.mark.parametrize("auto", [False, True])
def test_a_stream_learns_most_of_what_all_at_once_would(auto):
    held = data(seed=9)
    errors = {}
    for name, size in (("at once", N), ("stream", 1500)):
        stream = OnlineDescent(D, PENALTIES, anchors=(6, 6), auto=auto, sweeps=10)
        for batch in batches(size):
            record = stream.learn(batch)
        errors[name] = float(np.square(held[2] - stream.predict(*held[:2])).mean())
    assert record["ratings"] == N
    assert errors["at once"] < errors["stream"] < 0.25 * np.var(held[2])


def test_it_does_not_forget():
    """Users of the first batch never come again; the items' batches after it leave their ratings nearly as they were."""
    columns = data()
    early = columns[0] < USERS // 2
    first, later = (tuple(column[which] for column in columns) for which in (early, ~early))
    stream = OnlineDescent(D, PENALTIES, anchors=(6, 6), sweeps=10)
    stream.learn(first)
    before = np.square(first[2] - stream.predict(*first[:2])).mean()
    for batch in batches(500, later):
        stream.learn(batch)
    after = np.square(first[2] - stream.predict(*first[:2])).mean()
    assert after < 1.5 * before


def test_objects_appear_and_unknown_ones_have_the_mean():
    stream = OnlineDescent(D, PENALTIES, anchors=(3, 3))
    record = stream.learn((np.array([0, 1, 0]), np.array([0, 0, 2]), np.array([1.0, 2.0, 3.0], np.float32)))
    assert record["num_embeddings"] == {"users": 2, "items": 3}
    record = stream.learn((np.array([5]), np.array([9]), np.array([4.0], np.float32)))
    assert record["num_embeddings"] == {"users": 6, "items": 10}
    assert record["anchors"]["users"] >= 1
    assert stream.predict(np.array([99]), np.array([99])) == pytest.approx([2.0])


def test_a_stream_goes_on_from_its_state():
    whole, part = OnlineDescent(D, PENALTIES, anchors=(4, 4)), OnlineDescent(D, PENALTIES, anchors=(4, 4))
    some = batches(1500)
    for batch in some:
        whole.learn(batch)
    for batch in some[:2]:
        part.learn(batch)
    again = OnlineDescent(D, PENALTIES, anchors=(4, 4))
    again.load(part.state())
    for batch in some[2:]:
        again.learn(batch)
    state, wanted = again.state(), whole.state()
    assert all(state[name].equal(wanted[name]) for name in wanted)
