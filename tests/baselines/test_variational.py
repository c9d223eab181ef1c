"""Variational tables in training: the divergence against the integral it approximates, the noise by its moments, lazy rows,
and words that say nothing being dropped."""

import math

import pytest
import torch

import antembed as ant
from antembed.baselines import EMBEDDINGS, variational
from antembed.baselines.variational import divergence_of, log_alpha_of

V, d = 60, 5
NAMES = ["sparse-vd", "sparse-vd-words", "vvd"]


def test_the_divergence_is_nearly_the_integral():
    """−½·log α + E log|1 + √α·ε| (ε normal) + a constant that makes it 0 at large α, by a fine sum over ε."""
    eps = torch.linspace(-10, 10, 200_001, dtype=torch.float64)
    density = torch.exp(-eps.square() / 2) / math.sqrt(2 * math.pi) * float(eps[1] - eps[0])
    log_alpha = torch.linspace(-6, 6, 13, dtype=torch.float64)
    expectation = torch.stack([(density * torch.log((1 + math.exp(x / 2) * eps).abs() + 1e-12)).sum() for x in log_alpha])
    kl = expectation - log_alpha / 2
    limit = (density * torch.log(eps.abs() + 1e-12)).sum()  # α → ∞
    torch.testing.assert_close(divergence_of(log_alpha), kl - limit, atol=0.02, rtol=0)


def test_log_alpha_by_hand():
    mean, log_variance = torch.tensor([0.5, -0.5, 0.0]), torch.tensor([math.log(0.5), 0.0, 0.0])
    expected = torch.tensor([math.log(2), math.log(4), 8.0])
    torch.testing.assert_close(log_alpha_of(mean, log_variance), expected)


@pytest.mark.parametrize("name", NAMES)
def test_noise_has_the_mean_and_the_variance_that_the_tables_say(name):
    layer = EMBEDDINGS[name](3, d, 2)
    with torch.no_grad():
        for table, value in zip(
            layer.tables[1:], {"vvd": [-0.1], "sparse-vd": [-0.3]}.get(name, [-0.3, 1.5, -0.05]), strict=True
        ):
            table.weight.fill_(value)
    draws = layer(torch.tensor([1]).expand(40_000)).detach()
    w = layer.rows.weight[1].detach()
    if name == "vvd":
        mean, variance = w, math.exp(-1) * w.square()
    else:
        factor, spread = (1.5, math.exp(-0.5)) if name == "sparse-vd-words" else (1.0, 0.0)
        mean, variance = factor * w, math.exp(-3) * (factor**2 + spread) + spread * w.square()
    torch.testing.assert_close(draws.mean(0), mean, atol=0.02, rtol=0)
    torch.testing.assert_close(draws.var(0), variance, rtol=0.05, atol=1e-4)
    assert layer(torch.tensor([2, 2])).eq(0).all()  # padding is not noisy
    if name == "vvd":  # one number for the whole vector
        assert torch.linalg.matrix_rank(draws[:50].double(), rtol=1e-5) == 1


@pytest.mark.parametrize("name", NAMES)
def test_what_is_noise_is_dropped(name, tmp_path):
    layer = EMBEDDINGS[name](V, d, 0).eval()
    assert layer.row_index() is None
    noise = layer.tables[-1].weight
    with torch.no_grad():
        noise[10:] = (3.1 if name != "sparse-vd" else 3.1 + 6) / layer.speed
    if name == "sparse-vd":  # its noise is σ², to be held against w²
        assert layer.to_dense()[10:].eq(0).float().mean() > 0.95
    else:
        assert layer.to_dense()[10:].eq(0).all()
        assert layer.usage().parameters <= 9 * d
    assert layer.to_dense()[1:10].ne(0).float().mean() > 0.9
    torch.testing.assert_close(layer(torch.arange(V)), layer.to_dense())
    table = ant.export(layer, tmp_path / "t.ant")
    assert (table.parameters, table.size) == (layer.usage().parameters, layer.usage().bytes)
    with torch.no_grad():
        noise[:] = 2.9 / layer.speed if name != "sparse-vd" else -2
    assert layer.to_dense()[1:].ne(0).float().mean() > 0.9


@pytest.mark.parametrize("name", NAMES)
def test_the_estimate_over_some_rows_is_unbiased(name, monkeypatch):
    layer = EMBEDDINGS[name](V, d, 0)
    with torch.no_grad():
        for table in layer.tables:
            table.weight.normal_(std=0.3)
    exact = layer.divergence()
    every = torch.stack([layer.divergence_over(torch.tensor([v])) for v in range(V)])
    torch.testing.assert_close(every.mean(), exact, rtol=1e-5, atol=1e-5)
    with torch.no_grad():
        layer.rows.weight[0] = layer.tables[1].weight[0] = 7.0
    torch.testing.assert_close(layer.divergence(), exact, rtol=1e-5, atol=1e-5)  # padding pays nothing
    monkeypatch.setattr(variational, "EXACT", 0)
    monkeypatch.setattr(variational, "SHARE", 6)
    draws = torch.stack([layer.divergence() for _ in range(400)])
    error = draws.std() / math.sqrt(len(draws))
    assert error > 0
    assert (draws.mean() - exact).abs() < 4 * error


@pytest.mark.parametrize("rule", [ant.ProximalYogi, ant.optim.ProximalAdam])
@pytest.mark.parametrize("name", NAMES)
def test_noisy_lazy_training_equals_dense_training(name, rule, monkeypatch):
    monkeypatch.setattr(variational, "EXACT", 0)
    torch.set_num_threads(1)
    results = []
    for sparse in (False, True):
        torch.manual_seed(0)
        layer = EMBEDDINGS[name](V, d, 1, sparse=sparse, dtype=torch.float64)
        optimizer = rule(ant.param_groups(layer, l1_penalty=1e-3))
        for step in range(30):
            ids = torch.randint(0, V, (5,), generator=torch.Generator().manual_seed(step))
            optimizer.zero_grad()
            ((layer(ids) - 0.3).square().sum() + layer.divergence() / 1000).backward()
            optimizer.step()
        layer.flush()
        results.append([table.weight.detach() for table in layer.tables])
    for dense, lazy in zip(*results, strict=True):
        torch.testing.assert_close(dense, lazy, atol=1e-11, rtol=0)


@pytest.mark.parametrize("name", NAMES)
def test_words_that_say_nothing_are_dropped(name):
    """The first half of the words stand for 1, the others for 0: the first stay, though noisy, and the others go."""
    torch.set_num_threads(1)  # as busy machines want it
    examples = 100 if name == "vvd" else 500  # the fewer, the more the divergence counts; one number a word has little of it
    layer, wanted = EMBEDDINGS[name](V, d, sparse=True), torch.where(torch.arange(V) < V // 2, 1.0, 0.0)
    optimizer = ant.optim.ProximalAdam(layer.param_groups(0.0))
    for step in range(400):
        ids = torch.randint(0, V, (32,), generator=torch.Generator().manual_seed(step))
        for group in optimizer.param_groups:
            group["lr"] = 0.02 * (1 - step / 400)
        optimizer.zero_grad()
        errors = layer(ids).sum(-1) - wanted[ids]
        (errors.square().mean() / 2 + min(step / 100, 1.0) * layer.divergence() / examples).backward()
        optimizer.step()
    left = (layer.eval().to_dense() != 0).any(dim=1)
    assert left[: V // 2].all()
    assert left[V // 2 :].float().mean() < 0.3
    assert (layer.to_dense().sum(-1) - wanted).square().mean() < 0.3  # all zeros would have .5


def test_a_number_of_words_is_kept():
    layer = ant.baselines.VocabularyDropout(V, d, 0)
    with torch.no_grad():
        layer.tables[1].weight[:, 0] = -torch.arange(V) / V
        layer.tables[1].weight[-1] = 0.5  # the last is dropped already
    assert layer.keep_rows(12) == V - 2 - 12
    assert (layer.to_dense() != 0).any(dim=1).nonzero()[:, 0].tolist() == list(range(V - 13, V - 1))
    other = ant.baselines.SparseVariationalEmbedding(V, d)
    before = other.usage().nnz
    assert other.keep(17) == before - 17
    assert other.usage().nnz == 17
    with pytest.raises(ValueError, match="speed must be > 0, got 0"):
        ant.baselines.VocabularyDropout(V, d, speed=0)


def test_other_tables_have_no_divergence():
    assert ant.baselines.FullEmbedding(V, d).divergence() is None
