"""Policies decide as they say: the paper's rule, and the plateau that tries and keeps or undoes."""

import pytest

from antembed.layer.growth_rule import Add, Check, Keep, Plateau, Remove, Stop, Trend


def run(policy, levels, K=(10,)):
    """Decisions of a policy that is told these objectives in turn."""
    memory, found = policy.initial_state(), []
    for level in levels:
        memory, decision = policy(memory, Check(level, level, K))
        found.append(decision)
    return found


def test_trend_is_the_papers_rule():
    assert run(Trend(2), [5, 4, 3]) == [Keep(), Keep(), Add(2)]
    assert run(Trend(2), [3, 4, 5]) == [Keep(), Keep(), Remove(2)]
    assert run(Trend(2), [3, 4, 3]) == [Keep(), Keep(), Keep()]
    assert run(Trend(1), [3, 4, 5], K=(1, 10)) == [Keep(), Keep(), Keep()]  # never below 1


class World:
    """A model whose loss depends on K only, and settles at once: what a policy would do with it."""

    def __init__(self, K, loss, penalty):
        self.K, self.loss, self.penalty, self.remembered = tuple(K), loss, penalty, tuple(K)

    def check(self):
        loss = self.loss(self.K)
        return Check(loss + self.penalty * sum(self.K), loss, self.K)

    def obey(self, decision):
        if isinstance(decision, Keep):
            return
        if decision.undo:
            self.K = self.remembered
        self.remembered = self.K
        if not isinstance(decision, Stop):
            sign = 1 if isinstance(decision, Add) else -1
            here = range(len(self.K)) if decision.table is None else [decision.table]
            self.K = tuple(max(k + sign * decision.n, 1) if t in here else k for t, k in enumerate(self.K))


@pytest.mark.parametrize("tables", [1, 2])
@pytest.mark.parametrize("wanted", [1, 2, 3, 6, 12, 40])
@pytest.mark.parametrize("start", [1, 10, 30])
def test_plateau_ends_at_the_best_K_and_stops(tables, wanted, start):
    world = World([start] * tables, lambda K: sum(0.1 + 0.1 * max(wanted - k, 0) for k in K), penalty=0.02)
    policy = Plateau(tables=tables)
    memory = policy.initial_state()
    for _ in range(400):
        memory, decision = policy(memory, world.check())
        world.obey(decision)
        assert min(world.K) >= 1
        if isinstance(decision, Stop):
            break
    assert isinstance(decision, Stop)
    assert set(world.K) == {wanted}


def test_plateau_moves_tables_apart():
    world = World([10, 10], lambda K: sum(0.1 * max(w - k, 0) for w, k in zip((9, 4), K, strict=True)) + 0.1, penalty=0.02)
    policy, decision = Plateau(tables=2), None
    memory = policy.initial_state()
    while not isinstance(decision, Stop):
        memory, decision = policy(memory, world.check())
        world.obey(decision)
    assert world.K == (9, 4)


def test_plateau_waits_while_the_objective_falls():
    falling = [10 * 0.9**n for n in range(8)]
    assert run(Plateau(), falling, K=(20,)) == [Keep()] * 8
    assert run(Plateau(), [1.0] * 4, K=(20,)) == [Keep()] * 3 + [Add(20)]


def test_training_that_goes_on_does_not_pass_for_new_anchors():
    """The objective falls at every trial, but nobody uses the new anchors: more of them is given up at once."""
    policy, decision, level = Plateau(), None, 1.0
    memory, asked = policy.initial_state(), []
    while not isinstance(decision, Stop):
        memory, decision = policy(memory, Check(level, 0.1, (1,)))
        if not isinstance(decision, Keep):
            level *= 0.9
            asked.append(decision)
    assert asked == [Add(16), Add(1), Stop()]
