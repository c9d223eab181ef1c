"""The policies that choose the number of anchors, on simulated objectives."""

import pytest

from antembed.growth.policy import Add, Check, Keep, Plateau, Remove, Stop, Trend


def run(policy, levels, K=(10,)):
    """The decisions of a policy for these objectives."""
    state, found = policy.initial_state(), []
    for level in levels:
        state, decision = policy(state, Check(level, level, K))
        found.append(decision)
    return found


def test_trend_is_the_papers_rule():
    assert run(Trend(2), [5, 4, 3]) == [Keep(), Keep(), Add(2)]
    assert run(Trend(2), [3, 4, 5]) == [Keep(), Keep(), Remove(2)]
    assert run(Trend(2), [3, 4, 3]) == [Keep(), Keep(), Keep()]
    assert run(Trend(1), [3, 4, 5], K=(1, 10)) == [Keep(), Keep(), Keep()]  # never below 1


class Simulated:
    """A model whose loss depends on K only, and converges at once."""

    def __init__(self, K, loss, penalty, objects=1):
        self.K, self.loss, self.penalty, self.snapshot = tuple(K), loss, penalty, tuple(K)

    def check(self):
        loss = self.loss(self.K)
        return Check(loss + self.penalty * sum(self.K), loss, self.K)

    def apply(self, decision):
        if isinstance(decision, Keep):
            return
        if decision.undo:
            self.K = self.snapshot
        self.snapshot = self.K
        if not isinstance(decision, Stop):
            sign = 1 if isinstance(decision, Add) else -1
            here = range(len(self.K)) if decision.table is None else [decision.table]
            self.K = tuple(max(k + sign * decision.n, 1) if t in here else k for t, k in enumerate(self.K))


@pytest.mark.parametrize("tables", [1, 2])
@pytest.mark.parametrize("wanted", [1, 2, 3, 6, 12, 40])
@pytest.mark.parametrize("start", [1, 10, 30])
def test_plateau_ends_at_the_best_K_and_stops(tables, wanted, start):
    model = Simulated([start] * tables, lambda K: sum(0.1 + 0.1 * max(wanted - k, 0) for k in K), penalty=0.02)
    policy = Plateau(tables=tables)
    state = policy.initial_state()
    for _ in range(400):
        state, decision = policy(state, model.check())
        model.apply(decision)
        assert min(model.K) >= 1
        if isinstance(decision, Stop):
            break
    assert isinstance(decision, Stop)
    assert set(model.K) == {wanted}


def test_plateau_moves_tables_apart():
    model = Simulated([10, 10], lambda K: sum(0.1 * max(w - k, 0) for w, k in zip((9, 4), K, strict=True)) + 0.1, penalty=0.02)
    policy, decision = Plateau(tables=2), None
    state = policy.initial_state()
    while not isinstance(decision, Stop):
        state, decision = policy(state, model.check())
        model.apply(decision)
    assert model.K == (9, 4)


def test_plateau_waits_while_the_objective_falls():
    falling = [10 * 0.9**n for n in range(8)]
    assert run(Plateau(), falling, K=(20,)) == [Keep()] * 8
    assert run(Plateau(), [1.0] * 4, K=(20,)) == [Keep()] * 3 + [Add(20)]


def test_training_that_goes_on_does_not_pass_for_new_anchors():
    """The objective falls at every trial, but the new anchors are unused: the policy stops adding them at once."""
    policy, decision, level = Plateau(), None, 1.0
    state, asked = policy.initial_state(), []
    while not isinstance(decision, Stop):
        state, decision = policy(state, Check(level, 0.1, (1,)))
        if not isinstance(decision, Keep):
            level *= 0.9
            asked.append(decision)
    assert asked == [Add(16), Add(1), Stop()]
