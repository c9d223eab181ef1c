"""A size instead of a penalty: the same target under every optimizer."""

import copy
import json

import pytest
import torch

import antembed as ant
from antembed.budget import BudgetError

V, d, K = 200, 8, 8
OPTIMIZERS = {
    "yogi": lambda groups: ant.ProximalYogi(groups, lr=0.02),
    "adam": lambda groups: ant.optim.ProximalAdam(groups, lr=0.01),
    "sgd": lambda groups: ant.optim.ProximalSGD(groups, lr=0.5),
    "wrapped AdamW": lambda groups: ant.optim.Proximal(torch.optim.AdamW(groups, lr=0.01)),
}


@pytest.fixture(autouse=True)
def _one_thread(_same_start):
    torch.set_num_threads(1)  # products of 48 rows: on a busy machine two threads only wait for each other


def problem(sparse=False):
    torch.manual_seed(1)
    answer = (torch.rand(V, K) * (torch.rand(V, K) < 0.4)) @ torch.randn(K, d) + 0.3 * torch.randn(V, d)
    layer = ant.AnchorEmbedding(V, d, num_anchors=K, sparse=sparse, padding_idx=0)
    return layer, lambda ids: (layer(ids) - answer[ids]).square().mean()


def train(layer, loss, optimizer, controller, first, last):
    for step in range(first, last):
        ids = torch.randint(1, V, (48,), generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        loss(ids).backward()
        optimizer.step()
        controller.step()


@pytest.mark.parametrize("l1", [1e-6, 1e-3])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_meets_the_same_target(name, l1):
    layer, loss = problem(sparse=name in ("yogi", "sgd"))
    optimizer = OPTIMIZERS[name](layer.param_groups(l1))
    controller = ant.SparsityController(layer, optimizer, steps=500, target_nnz=500)
    train(layer, loss, optimizer, controller, 0, 500)
    before = layer.usage().nnz
    removed = controller.finish()
    assert 0.98 * 500 <= layer.usage().nnz <= 500
    assert removed == before - layer.usage().nnz <= 0.25 * 500  # the penalty has done most of it


def test_the_same_size_needs_other_penalties():
    """About a hundred times larger for a wrapped AdamW than for Yogi, as docs/layer.md says."""
    penalties = []
    for name in ("yogi", "wrapped AdamW"):
        layer, loss = problem()
        optimizer = OPTIMIZERS[name](layer.param_groups(1e-4))
        controller = ant.SparsityController(layer, optimizer, steps=500, target_nnz=500)
        train(layer, loss, optimizer, controller, 0, 500)
        penalties += controller.l1_penalty
    assert penalties[1] > 30 * penalties[0]


@pytest.mark.parametrize(
    ("budget", "limit", "unit"), [("3x", 4 * V * d / 3, "bytes"), ("0.4k", 400, "parameters"), ("2KB", 2000, "bytes")]
)
def test_budgets_in_words(budget, limit, unit):
    layer, loss = problem()
    optimizer = OPTIMIZERS["yogi"](layer.param_groups(1e-4))
    controller = ant.SparsityController(layer, optimizer, steps=300, budget=budget)
    train(layer, loss, optimizer, controller, 0, 300)
    controller.finish()
    used = layer.usage()
    assert 0.9 * limit <= (used.bytes if unit == "bytes" else used.parameters) <= limit
    assert controller.size() == (used.bytes if unit == "bytes" else used.parameters)


def test_a_model_is_counted_as_a_whole():
    """Over all its penalized layers; other tables are left as they are."""
    model = torch.nn.ModuleDict({name: ant.AnchorEmbedding(V, d, num_anchors=K) for name in ("one", "other")})
    model["full"] = ant.baselines.FullEmbedding(V, d)
    optimizer = ant.ProximalYogi(ant.param_groups(model, l1_penalty=1e-4))
    controller = ant.SparsityController(model, optimizer, steps=10, target_nnz=700)
    assert controller.size() == 2 * V * K
    assert controller.finish() == 2 * V * K - 700
    assert sum(model[name].usage().nnz for name in ("one", "other")) == 700
    assert model["full"].usage().nnz == V * d


def test_the_state_continues_to_the_same_numbers():
    layer, loss = problem(sparse=True)
    optimizer = OPTIMIZERS["yogi"](layer.param_groups(1e-4))
    controller = ant.SparsityController(layer, optimizer, steps=120, target_nnz=500)
    train(layer, loss, optimizer, controller, 0, 60)
    saved = json.loads(json.dumps(controller.state_dict()))
    optimizer_state, weights = copy.deepcopy(optimizer.state_dict()), copy.deepcopy(layer.state_dict())
    train(layer, loss, optimizer, controller, 60, 120)

    other, other_loss = problem(sparse=True)
    other.load_state_dict(weights)
    other_optimizer = OPTIMIZERS["yogi"](other.param_groups(5.0))
    other_optimizer.load_state_dict(optimizer_state)
    again = ant.SparsityController(other, other_optimizer, steps=120, target_nnz=500)
    again.load_state_dict(saved)
    train(other, other_loss, other_optimizer, again, 60, 120)
    assert again.l1_penalty == controller.l1_penalty != [1e-4]
    assert torch.equal(other.transform, layer.transform)
    assert again.state_dict() == controller.state_dict()


def test_a_state_of_other_layers():
    layer, _ = problem()
    controller = ant.SparsityController(layer, OPTIMIZERS["yogi"](layer.param_groups(1e-4)), steps=10, target_nnz=9)
    with pytest.raises(ValueError, match="the state is of 2 groups with a penalty, this controller has 1"):
        controller.load_state_dict({**controller.state_dict(), "base": [1.0, 2.0]})


def test_a_budget_below_the_empty_file():
    layer, _ = problem()
    controller = ant.SparsityController(layer, OPTIMIZERS["yogi"](layer.param_groups(1e-4)), steps=10, budget="10b")
    with pytest.raises(BudgetError, match="a budget of 10 bytes cannot be met"):
        controller.finish()


@pytest.mark.parametrize(
    ("l1", "options", "text"),
    [
        (1e-4, {"steps": 9}, "give target_nnz or budget, one of the two; got None and None"),
        (1e-4, {"steps": 9, "target_nnz": 3, "budget": "2x"}, "got 3 and '2x'"),
        (1e-4, {"steps": 0, "target_nnz": 3}, "steps and every must be ≥ 1, got 0 and None"),
        (1e-4, {"steps": 9, "target_nnz": 0}, "target_nnz must be ≥ 1, got 0"),
        (0.0, {"steps": 9, "target_nnz": 3}, "the penalty to begin with is 0.0.*l1_penalty=1e-6"),
    ],
)
def test_what_is_missing_is_named(l1, options, text):
    layer, _ = problem()
    with pytest.raises(ValueError, match=text):
        ant.SparsityController(layer, ant.ProximalYogi(layer.param_groups(l1)), **options)


def test_an_optimizer_without_the_penalty():
    layer, _ = problem()
    with pytest.raises(ValueError, match=r"a penalty for 0 of 1 tables; give it antembed\.param_groups"):
        ant.SparsityController(layer, torch.optim.AdamW(layer.parameters()), steps=9, target_nnz=3)
    full = ant.baselines.FullEmbedding(V, d)
    with pytest.raises(ValueError, match="0 layers have an ℓ1 penalty, at least 1 is needed"):
        ant.SparsityController(full, ant.ProximalYogi(full.param_groups()), steps=9, target_nnz=3)
