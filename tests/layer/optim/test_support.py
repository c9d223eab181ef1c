"""A frozen support: zeros stay zero under every rule, lazy or dense, and what comes in starts clean."""

import copy

import pytest
import torch

import antembed as ant
from antembed.layer.optim import proximal_optimizer as base

V, K, d = 40, 6, 5
RULES = {
    "yogi": lambda groups: ant.ProximalYogi(groups, lr=0.05),
    "adam": lambda groups: ant.optim.ProximalAdam(groups, lr=0.05),
    "sgd": lambda groups: ant.optim.ProximalSGD(groups, lr=0.1),
    "sgd with momentum": lambda groups: ant.optim.ProximalSGD(groups, lr=0.02, momentum=0.9),
    "wrapped AdamW": lambda groups: ant.optim.Proximal(torch.optim.AdamW(groups, lr=0.05)),
}


class Run:
    def __init__(self, rule, sparse, l1=1e-3):
        torch.manual_seed(0)
        self.layer = ant.AnchorEmbedding(V, d, num_anchors=K, sparse=sparse, dtype=torch.float64)
        self.target = torch.randn(V, d, dtype=torch.float64)
        self.optimizer = RULES[rule](self.layer.param_groups(l1))
        self.generator = torch.Generator().manual_seed(1)

    def steps(self, n):
        for _ in range(n):
            ids = torch.randint(0, V, (7,), generator=self.generator)
            self.optimizer.zero_grad()
            (self.layer(ids) - self.target[ids]).square().sum().backward()
            self.optimizer.step()

    @property
    def T(self):
        return self.layer.transform.detach().clone()


def some(seed, share=0.5):
    return torch.rand(V, K, generator=torch.Generator().manual_seed(seed)) < share


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("rule", RULES)
def test_what_is_zero_stays_zero_and_the_rest_learns(rule, sparse):
    if rule == "wrapped AdamW" and sparse:
        pytest.skip("AdamW takes no row-sparse gradients")
    run = Run(rule, sparse, l1=0.0)
    run.steps(20)
    support = some(2)
    run.optimizer.freeze_support(run.layer.rows.weight, support)
    assert run.T[~support].eq(0).all()
    before = run.T
    run.steps(60)
    assert run.T[~support].eq(0).all()
    assert (run.T - before)[support].abs().mean() > 1e-3
    # Another support: what leaves is zero, what comes in moves, and begins without momentum.
    other = some(3)
    run.optimizer.freeze_support(run.layer.rows.weight, other, second=1e-4)
    state = run.optimizer.state[run.layer.rows.weight]
    momentum = state.get("momentum", state.get("exp_avg"))
    if momentum is not None:
        assert momentum[other & ~support].eq(0).all()
    second = state.get("second", state.get("exp_avg_sq"))
    if second is not None:
        assert second[other & ~support].eq(1e-4).all()
    run.steps(60)
    assert run.T[~other].eq(0).all()
    assert run.T[other & ~support].count_nonzero() > 0.2 * int((other & ~support).sum())
    # A mask of ones lifts it.
    run.optimizer.freeze_support(run.layer.rows.weight, torch.ones_like(other))
    run.steps(60)
    assert run.T[~other].count_nonzero() > 0


@pytest.mark.parametrize("rule", ["yogi", "sgd", "sgd with momentum"])
def test_lazy_rows_equal_dense_ones(rule):
    runs = [Run(rule, sparse) for sparse in (False, True)]
    for run in runs:
        run.steps(30)
        run.optimizer.freeze_support(run.layer.rows.weight, some(2))
        run.steps(30)
        run.optimizer.freeze_support(run.layer.rows.weight, some(3), second=torch.full((V, K), 1e-3, dtype=torch.float64))
        run.steps(30)
    torch.testing.assert_close(runs[0].T, runs[1].T, atol=1e-11, rtol=0)
    assert torch.equal(runs[0].T == 0, runs[1].T == 0)


@pytest.mark.parametrize("rule", ["yogi", "adam", "sgd", "sgd with momentum"])
def test_few_entries_are_gathered_and_move_as_if_all_did(rule, monkeypatch):
    ends = []
    for share in (base.WORTH_GATHERING, 0.0):
        monkeypatch.setattr(base, "WORTH_GATHERING", share)
        run = Run(rule, sparse=False)
        run.steps(10)
        for support in (some(2, 0.2), some(3, 0.1), some(4, 0.9)):
            run.optimizer.freeze_support(run.layer.rows.weight, support)
            run.steps(20)
        ends.append(run.T)
    assert torch.equal(*ends)


def test_another_optimizer_does_not_inherit_it():
    run = Run("yogi", sparse=False, l1=0.0)
    support = some(2, 0.1)
    run.optimizer.freeze_support(run.layer.rows.weight, support)
    run.steps(5)
    run.optimizer = RULES["yogi"](run.layer.param_groups(0.0))
    run.steps(30)
    assert run.T[~support].count_nonzero() > 0


@pytest.mark.parametrize("rule", ["yogi", "adam", "sgd with momentum"])
def test_a_checkpoint_keeps_it(rule):
    run = Run(rule, sparse=True)
    run.steps(20)
    run.optimizer.freeze_support(run.layer.rows.weight, some(2))
    run.steps(5)
    other = Run(rule, sparse=True)
    other.layer.load_state_dict(run.layer.state_dict())
    other.optimizer.load_state_dict(copy.deepcopy(run.optimizer.state_dict()))
    other.generator.set_state(run.generator.get_state())
    run.steps(20)
    other.steps(20)
    assert torch.equal(run.T, other.T)
    assert other.T[~some(2)].eq(0).all()


def test_a_support_of_another_shape_is_refused():
    run = Run("yogi", sparse=False)
    with pytest.raises(ValueError, match=r"a support of \(3, 6\) does not fit a parameter of \(40, 6\)"):
        run.optimizer.freeze_support(run.layer.rows.weight, torch.ones(3, K, dtype=torch.bool))
