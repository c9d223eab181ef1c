"""Vocabulary selection, by scores and by group lasso: who keeps a row, what it costs, and that seldom and lazy is exact."""

import pytest
import torch

import antembed as ant
from antembed.baselines import EMBEDDINGS
from antembed.baselines.variational import largest, without_zero_rows
from antembed.layer.optim.prox import GroupL2, group_soft_threshold

V, d = 60, 8


@pytest.mark.parametrize("name", ["frequency", "tf-idf"])
def test_the_top_rows_are_learned_and_the_rest_share_one(name, tmp_path):
    scores = torch.rand(V, generator=torch.Generator().manual_seed(0)).double()
    layer = EMBEDDINGS[name](V, d, 0, num_anchors=10, counts=scores)
    top = torch.argsort(scores, descending=True)[:10]
    rest = torch.ones(V, dtype=torch.bool)
    rest[top] = rest[0] = False
    E = layer.to_dense()
    assert len(torch.unique(E[rest], dim=0)) == 1
    assert len(torch.unique(E[top], dim=0)) == 10
    assert layer.usage().parameters == 11 * d  # ten, and the unknown row
    assert layer.usage().bytes == ant.export(layer, tmp_path / "t.ant").size < 12 * d * 4 + V + 600


def test_rows_of_zeros_are_stored_once():
    E = torch.randn(7, 3)
    E[[1, 4, 5]] = 0
    rows, row_index = without_zero_rows(E)
    assert rows.shape == (5, 3)
    assert torch.equal(rows[row_index], E)
    assert without_zero_rows(E[:4])[1] is None  # one such row costs less than row_index
    assert torch.equal(largest(torch.tensor([1.0, 3.0, 3.0, 2.0]), 2), torch.tensor([False, True, True, False]))
    with pytest.raises(ValueError, match="rows to keep must be ≥ 0, got -1"):
        largest(torch.ones(3), -1)


def test_shrinking_often_is_shrinking_once():
    """Why a prox may be put off: without gradients in between, three proxes of a are one of 3·a."""
    t = torch.randn(20, 4, dtype=torch.float64)
    often = t
    for _ in range(3):
        often = group_soft_threshold(often, 0.4)
    torch.testing.assert_close(often, group_soft_threshold(t, 1.2))
    assert often.eq(0).all(dim=1).any()


def train(layer, target, steps, l1, *, rule=ant.ProximalYogi, lr=0.05):
    """Rows drawn at random are pulled towards the target's."""
    optimizer = rule(layer.param_groups(l1), lr=lr)
    for step in range(steps):
        ids = torch.randint(0, len(target), (12,), generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        ((layer(ids) - target[ids]).square().sum() / 24).backward()
        optimizer.step()
    layer.flush()
    return layer


@pytest.mark.parametrize("rule", [ant.ProximalYogi, ant.optim.ProximalSGD, ant.optim.ProximalAdam])
def test_group_lasso_lazily_is_what_it_is_densely(rule):
    target, results = torch.randn(V, d, dtype=torch.float64, generator=torch.Generator().manual_seed(1)), []
    for sparse in (False, True):
        torch.manual_seed(0)
        layer = ant.baselines.GroupLassoEmbedding(V, d, every=7, sparse=sparse, dtype=torch.float64)
        train(layer, target, 100, 0.3, rule=rule)  # 100 is no multiple of 7
        results.append(layer.to_dense().detach())
    torch.testing.assert_close(*results, atol=1e-12, rtol=0)
    assert torch.equal(results[0] == 0, results[1] == 0)


@pytest.mark.parametrize("every", [1, 8])
def test_group_lasso_drops_what_is_not_there(every, tmp_path):
    """Objects 40… have a target of nearly nothing: they, and they alone, end at zero, in either way."""
    target = torch.randn(V, d, generator=torch.Generator().manual_seed(1))
    target[40:] *= 0.01
    layer = ant.baselines.GroupLassoEmbedding(V, d, every=every, sparse=True)
    train(layer, target, 800, 0.02, rule=ant.optim.ProximalSGD, lr=0.5)
    left = (layer.to_dense() != 0).any(dim=1)
    assert torch.equal(left, torch.arange(V) < 40)
    used = layer.usage()
    assert used.parameters == used.nnz == 40 * d
    assert used.bytes == ant.export(layer, tmp_path / "t.ant").size < 41 * d * 4 + V + 600


@pytest.mark.parametrize("sparse", [False, True])
def test_what_momentum_is_left_does_not_raise_the_dead(sparse):
    layer = ant.baselines.GroupLassoEmbedding(V, d, every=4, sparse=sparse)
    optimizer = ant.ProximalYogi(layer.param_groups(100.0), lr=0.01)
    for step in range(1, 7):  # the prox acts at the fourth, and two steps follow
        ids = torch.arange(V) if step < 5 else torch.arange(3)
        optimizer.zero_grad()
        layer(ids).sum().backward()
        optimizer.step()
    assert torch.equal((layer.to_dense() != 0).any(dim=1), torch.arange(V) < 3)


def test_rows_are_kept_by_their_lengths():
    layer = ant.baselines.GroupLassoEmbedding(V, d)
    with torch.no_grad():
        layer.rows.weight.mul_(torch.arange(V).unsqueeze(1))
    longest = layer.to_dense().norm(dim=1).topk(9).indices
    assert layer.keep_rows(9) == V - 1 - 9  # row 0 was zero before
    assert set(longest.tolist()) == set(layer.to_dense().norm(dim=1).nonzero()[:, 0].tolist())
    assert layer.usage().parameters == 9 * d


def test_a_prox_acts_every_so_many_steps():
    with pytest.raises(ValueError, match="a prox acts every 1, 2, … steps, not every 0"):
        GroupL2(0.1, 0)
