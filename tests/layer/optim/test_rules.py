"""The optimizers against other people's, and as citizens of torch."""

import copy

import pytest
import torch
from torch import nn

import antembed as ant
from antembed.layer.optim import OPTIMIZERS


def problem(dtype=torch.float64):
    layer = ant.AnchorEmbedding(40, 6, num_anchors=5, dtype=dtype)
    target = torch.randn(40, 6, dtype=dtype)
    return layer, lambda ids: (layer(ids) - target[ids]).square().mean()


def batches(n, size=8, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(0, 40, (size,), generator=generator) for _ in range(n)]


def train(optimizer, loss, ids):
    for batch in ids:
        optimizer.zero_grad()
        loss(batch).backward()
        optimizer.step()


def follow(ours, theirs, steps=100):
    """Drive both with the same gradients; → the two parameters."""
    for step in range(steps):
        gradient = torch.randn(7, 3, generator=torch.Generator().manual_seed(step), dtype=torch.float64) * 0.3
        for optimizer in (ours, theirs):
            optimizer.param_groups[0]["params"][0].grad = gradient.clone()
            optimizer.step()
    return ours.param_groups[0]["params"][0].detach(), theirs.param_groups[0]["params"][0].detach()


def twins():
    start = torch.randn(7, 3, dtype=torch.float64)
    return nn.Parameter(start.clone()), nn.Parameter(start.clone())


def test_decay_agrees_with_adamw():
    """torch adds eps after the bias correction, we before: with a tiny eps it makes no difference."""
    a, b = twins()
    ours = ant.optim.ProximalAdam([{"params": [a], "weight_decay": 0.4}], lr=0.02, eps=1e-15)
    theirs = torch.optim.AdamW([b], lr=0.02, weight_decay=0.4, eps=1e-15)
    torch.testing.assert_close(*follow(ours, theirs), atol=1e-12, rtol=0)


def test_decay_that_would_turn_the_sign_is_refused():
    with pytest.raises(ValueError, match=r"weight_decay.*0\.5·2"):
        ant.ProximalYogi([{"params": [twins()[0]], "weight_decay": 2.0}], lr=0.5)


def test_yogi_agrees_with_pytorch_optimizer():
    peers = pytest.importorskip("pytorch_optimizer")
    a, b = twins()
    theirs = peers.Yogi([b], lr=0.02, betas=(0.9, 0.999), eps=1e-3)
    # Theirs starts the momentum at 1e-6 and adds eps after the bias correction; the paper's starts it at 0 and adds eps
    # before. With both said to it, step by step, the two are one rule.
    theirs.state[b] = {"exp_avg": torch.zeros_like(b), "exp_avg_sq": torch.full_like(b, 1e-6)}
    uncorrected = theirs.step
    steps = iter(range(1, 1000))

    def step():
        theirs.param_groups[0]["eps"] = 1e-3 / (1 - 0.999 ** next(steps)) ** 0.5
        uncorrected()

    theirs.step = step
    x, y = follow(ant.ProximalYogi([a], lr=0.02), theirs)
    torch.testing.assert_close(x, y, atol=1e-12, rtol=0)


def test_sgd_agrees_with_torch():
    a, b = twins()
    x, y = follow(ant.optim.ProximalSGD([a], lr=0.1, momentum=0.9), torch.optim.SGD([b], lr=0.1, momentum=0.9))
    torch.testing.assert_close(x, y)


def test_adam_agrees_with_torch():
    a, b = twins()
    x, y = follow(ant.optim.ProximalAdam([a], lr=0.01, eps=1e-12), torch.optim.Adam([b], lr=0.01, eps=1e-12))
    torch.testing.assert_close(x, y)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_t_stays_nonnegative_without_a_penalty(name):
    layer, loss = problem()
    train(OPTIMIZERS[name](layer.param_groups(l1_penalty=0.0), lr=0.1), loss, batches(50))
    assert (layer.transform >= 0).all()
    assert (layer.transform == 0).any()


@pytest.mark.parametrize("metric", ["diagonal", "plain"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_one_step_is_update_then_prox(name, metric):
    """By hand: first step of every rule has m = (1−β1)·g or g, and D from the first v."""
    t, g, l1, lr = torch.tensor([[0.5, 0.02]], dtype=torch.float64), torch.tensor([[0.1, -0.2]], dtype=torch.float64), 0.3, 0.1
    weight = nn.Parameter(t.clone())
    optimizer = OPTIMIZERS[name]([{"params": [weight], "prox": ant.penalties.NonNegativeL1(l1)}], lr=lr, metric=metric)
    weight.grad = g
    optimizer.step()
    a = lr if name == "sgd" else lr * (1 - 0.999) ** 0.5 / (1 - 0.9)
    D = {
        "sgd": torch.ones_like(g),
        "adam": (0.001 * g**2).sqrt() + 1e-8,
        "yogi": (1e-6 - 0.001 * torch.sign(1e-6 - g**2) * g**2).sqrt() + 1e-3,
    }[name]
    m = g if name == "sgd" else 0.1 * g
    shrink = lr * l1 if metric == "plain" else l1 * a / D
    torch.testing.assert_close(weight.detach(), (t - a * m / D - shrink).clamp(min=0))


def test_zero_is_stationary_exactly_where_the_gradient_is_below_the_penalty():
    """In the diagonal metric, whatever D has become: the test of SPEC §2."""
    weight = nn.Parameter(torch.zeros(1, 2, dtype=torch.float64))
    optimizer = ant.ProximalYogi([{"params": [weight], "prox": ant.penalties.NonNegativeL1(0.5)}], lr=0.01)
    for _ in range(200):
        weight.grad = torch.tensor([[-0.499, -0.501]], dtype=torch.float64)
        optimizer.step()
    assert weight[0, 0] == 0
    assert weight[0, 1] > 0


@pytest.mark.parametrize("wrapped", [False, True])
def test_torch_schedulers_drive_the_step_and_the_prox(wrapped):
    layer, loss = problem()
    groups = layer.param_groups(l1_penalty=0.01)
    optimizer = ant.optim.Proximal(torch.optim.Adam(groups, lr=0.1)) if wrapped else ant.ProximalYogi(groups, lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10, gamma=0.0)
    for batch in batches(25):
        optimizer.zero_grad()
        loss(batch).backward()
        before = layer.transform.detach().clone()
        optimizer.step()
        scheduler.step()
    assert optimizer.param_groups[0]["lr"] == 0
    assert torch.equal(layer.transform, before)


@pytest.mark.parametrize("sparse", [False, True])
def test_gradient_accumulation_equals_one_large_batch(sparse):
    layers = []
    for parts in (1, 4):
        torch.manual_seed(3)
        layer = ant.AnchorEmbedding(40, 6, num_anchors=5, sparse=sparse, dtype=torch.float64)
        optimizer = ant.ProximalYogi(layer.param_groups(l1_penalty=1e-3))
        for batch in batches(20, size=16):
            optimizer.zero_grad()
            for part in batch.chunk(parts):
                layer(part).square().sum().backward()
            optimizer.step()
        layers.append(layer.to_dense().detach())
    torch.testing.assert_close(*layers)


def test_closure_is_called_and_its_loss_returned():
    layer, loss = problem()
    optimizer = ant.ProximalYogi(layer.param_groups(l1_penalty=1e-3))
    ids = batches(1)[0]

    def closure():
        optimizer.zero_grad()
        value = loss(ids)
        value.backward()
        return value

    first = optimizer.step(closure)
    assert optimizer.step(closure) < first


@pytest.mark.parametrize("sparse", [False, True])
def test_clipping_knows_row_sparse_gradients(sparse):
    layer = ant.AnchorEmbedding(40, 6, num_anchors=5, sparse=sparse)
    layer(torch.tensor([1, 1, 2])).square().sum().backward()
    dense = [p.grad.to_dense() if p.grad.is_sparse else p.grad for p in layer.parameters()]
    norm = torch.cat([g.flatten() for g in dense]).norm()
    before = [g.clone() for g in dense]
    told = ant.optim.clip_grad_norm_(layer.parameters(), norm.item() / 3)
    torch.testing.assert_close(told, norm)
    for p, g in zip(layer.parameters(), before, strict=True):
        torch.testing.assert_close(p.grad.to_dense() if p.grad.is_sparse else p.grad, g / 3, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_state_dict_goes_on_where_it_was(name, sparse):
    def fresh(seed):
        torch.manual_seed(seed)
        layer = ant.AnchorEmbedding(40, 6, num_anchors=5, sparse=sparse)
        return layer, OPTIMIZERS[name](layer.param_groups(l1_penalty=2e-3), lr=0.05)

    def go(layer, optimizer, ids):
        train(optimizer, lambda batch: (layer(batch) - 0.3).square().mean(), ids)

    ids = batches(60)
    layer, optimizer = fresh(1)
    go(layer, optimizer, ids[:30])
    other, other_optimizer = fresh(2)
    other.load_state_dict(layer.state_dict())
    other_optimizer.param_groups[0]["prox"].strength = 9.0
    saved = copy.deepcopy(optimizer.state_dict())  # torch hands out references
    other_optimizer.load_state_dict(saved)
    assert other_optimizer.param_groups[0]["prox"].strength == 2e-3
    assert not any(isinstance(v, nn.Module | ant.penalties.NonNegativeL1) for g in saved["param_groups"] for v in g.values())
    go(layer, optimizer, ids[30:])
    go(other, other_optimizer, ids[30:])
    assert torch.equal(layer.transform, other.transform)
    assert torch.equal(layer.anchors, other.anchors)


def test_the_wrapper_is_the_inner_step_then_the_plain_prox():
    layer, loss = problem()
    twin, optimizer = (
        nn.Parameter(layer.rows.weight.detach().clone()),
        ant.optim.Proximal(torch.optim.SGD(layer.param_groups(l1_penalty=0.2), lr=0.1)),
    )
    loss(batches(1)[0]).backward()
    expected = (twin - 0.1 * layer.rows.weight.grad - 0.1 * 0.2).clamp(min=0)
    optimizer.step()
    torch.testing.assert_close(layer.transform.detach(), expected.detach())


def test_the_wrapper_saves_and_loads():
    layer, loss = problem()
    optimizer = ant.optim.Proximal(torch.optim.Adam(layer.param_groups(l1_penalty=0.2), lr=0.1))
    train(optimizer, loss, batches(3))
    saved = optimizer.state_dict()
    other = ant.optim.Proximal(torch.optim.Adam(layer.param_groups(l1_penalty=0.7), lr=0.3))
    other.load_state_dict(saved)
    assert other.param_groups[0]["prox"].strength == 0.2
    assert other.param_groups[0]["lr"] == 0.1
    assert other.inner.param_groups is other.param_groups
    train(other, loss, batches(3))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_prox_on_half_precision_is_refused(dtype):
    weight = nn.Parameter(torch.zeros(2, 2, dtype=dtype))
    with pytest.raises(ValueError, match="float32"):
        ant.ProximalYogi([{"params": [weight], "prox": ant.penalties.NonNegativeL1(1e-8)}])


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda p: ant.ProximalYogi(p, lr=-1), "lr must be ≥ 0, got -1"),
        (lambda p: ant.ProximalYogi(p, betas=(0.9, 1.0)), r"betas must be in \[0, 1\)"),
        (lambda p: ant.ProximalYogi(p, eps=0), "eps must be > 0, got 0"),
        (lambda p: ant.optim.ProximalSGD(p, momentum=1.5), r"momentum must be in \[0, 1\), got 1.5"),
        (lambda p: ant.ProximalYogi(p, metric="round"), "'diagonal' or 'plain', not 'round'"),
    ],
)
def test_bad_settings(make, text):
    with pytest.raises(ValueError, match=text):
        make([nn.Parameter(torch.zeros(1))])


def test_momentum_can_be_switched_on_later():
    for sparse in (False, True):
        layer = ant.AnchorEmbedding(40, 6, num_anchors=5, sparse=sparse)
        optimizer = ant.optim.ProximalSGD(layer.param_groups(l1_penalty=1e-3), lr=0.1)
        for momentum in (0.0, 0.9):
            for group in optimizer.param_groups:
                group["momentum"] = momentum
            train(optimizer, lambda ids, layer=layer: layer(ids).square().mean(), batches(3))
        assert (layer.transform >= 0).all()


def test_a_groups_own_settings_are_checked():
    layer, _ = problem()
    with pytest.raises(ValueError, match="lr must be ≥ 0, got -1"):
        ant.ProximalYogi([{"params": [layer.anchors], "lr": -1.0}])
    with pytest.raises(ValueError, match="not 'round'"):
        ant.ProximalYogi([{"params": [layer.anchors], "metric": "round"}])
    with pytest.raises(ValueError, match="only that table's weight"):
        ant.ProximalYogi([{"params": [layer.anchors], "table": layer.rows}])


def test_a_missing_gradient_is_a_step_not_taken():
    layer, _ = problem()
    before = layer.to_dense().detach().clone()
    ant.ProximalYogi(layer.param_groups(l1_penalty=1.0)).step()
    assert torch.equal(layer.to_dense(), before)


def test_nan_gradients_are_not_hidden():
    for sparse in (False, True):
        layer = ant.AnchorEmbedding(5, 2, num_anchors=2, sparse=sparse)
        optimizer = ant.ProximalYogi(layer.param_groups(l1_penalty=1e-3))
        (layer(torch.tensor([1])) * float("nan")).sum().backward()
        optimizer.step()
        assert layer.transform[1].isnan().all()
