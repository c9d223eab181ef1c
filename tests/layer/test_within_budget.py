"""Trained tables become anchored ones of a given size."""

import pytest
import torch
from torch import nn

import antembed as ant
from antembed.budget import BudgetError, parse_budget
from antembed.layer.factorize import factorize_within, nonnegative_factorize


def planted(V=400, d=16, K=12, per_row=3, noise=0.05):
    torch.manual_seed(0)
    T = torch.rand(V, K) * (torch.rand(V, K) < per_row / K)
    return T @ torch.randn(K, d) + noise * torch.randn(V, d)


@pytest.mark.parametrize("budget", ["4x", "1500", "7KB"])
def test_a_budget_is_met_and_used(budget):
    E = planted()
    layer = ant.AnchorEmbedding.from_pretrained(E, budget=budget)
    wanted, usage = parse_budget(budget, 4.0 * E.numel()), layer.usage()
    size = usage.bytes if wanted.unit == "bytes" else usage.parameters
    assert 0.9 * wanted.amount <= size <= wanted.amount
    assert layer.reconstruction_error == pytest.approx(float((E - layer.to_dense().detach()).norm() / E.norm()), rel=1e-3)
    assert layer.reconstruction_error < 0.5


def test_weights_fitted_in_rounds_lose_less_than_the_largest_at_once():
    E = planted()
    allowed = parse_budget("1400", 0.0)
    T, _, error = factorize_within(E, allowed, 12)
    dense, A, _ = nonnegative_factorize(E, 12)
    left = int(T.count_nonzero())
    least = dense.reshape(-1).sort(descending=True).values[left - 1]
    assert error < 0.8 * float((E - torch.where(dense >= least, dense, 0) @ A).norm() / E.norm())
    assert (T >= 0).all()


def test_models_are_small_at_once_and_stay_so():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(400, 16), nn.Flatten(), nn.Linear(48, 2))
    model[0].weight.data.copy_(planted())
    (layer,) = ant.replace_embeddings(model, budget="5x").values()
    before = layer.usage()
    assert before.bytes <= 400 * 16 * 4 / 5
    optimizer = ant.optim.ProximalAdam(ant.param_groups(model, l1_penalty=0.0), lr=0.01)
    optimizer.freeze_support(layer.rows.weight)
    for _ in range(3):
        nn.functional.cross_entropy(model(torch.randint(0, 400, (32, 3))), torch.randint(0, 2, (32,))).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert layer.usage().nnz <= before.nnz


def test_several_tables_share_a_budget_by_their_sizes():
    model = nn.ModuleDict({"a": nn.Embedding(300, 8), "b": nn.Embedding(100, 8)})
    made = ant.replace_embeddings(model, budget="1200")
    assert made["a"].usage().parameters <= 900
    assert made["b"].usage().parameters <= 300


def test_what_cannot_be():
    E = planted()
    with pytest.raises(BudgetError, match=r"cannot be met|no weight at all"):
        ant.AnchorEmbedding.from_pretrained(E, budget="10B")
    with pytest.raises(ValueError, match=r"budget of 4x and an l1_penalty of 0\.1 both say how sparse T is"):
        ant.AnchorEmbedding.from_pretrained(E, budget="4x", l1_penalty=0.1)
    with pytest.raises(ValueError, match="fresh layers have none; leave out one of the two"):
        ant.replace_embeddings(nn.ModuleList([nn.Embedding(9, 2)]), budget="4x", fresh=True)
    with pytest.raises(ValueError, match="≥ 1"):
        ant.AnchorEmbedding.from_pretrained(E, num_anchors=0)


def test_vectors_that_are_hardly_the_same_are_said():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(400, 16))
    with pytest.warns(UserWarning, match=r"within 600 parameters, vectors are off by \d+ % of their length: train on"):
        ant.replace_embeddings(model, budget="600")


def test_tables_that_are_too_small_for_a_budget_stay():
    torch.manual_seed(0)
    model = nn.ModuleDict({"words": nn.Embedding(400, 16), "types": nn.Embedding(2, 16), "one": nn.Embedding(1, 16)})
    model["words"].weight.data.copy_(planted())
    assert list(ant.replace_embeddings(model, budget="5x")) == ["words"]
    assert type(model["types"]) is type(model["one"]) is nn.Embedding
    with pytest.raises(BudgetError, match=r"8x is less than two anchors take, for types \(2 × 16: 16 bytes\).*; allow more"):
        ant.replace_embeddings(model, budget="8x", pattern="types|one")


def test_a_budget_error_names_its_table():
    model = nn.ModuleDict({"words": nn.Embedding(400, 16), "zeros": nn.Embedding(300, 16)})
    model["words"].weight.data.copy_(planted())
    nn.init.zeros_(model["zeros"].weight)
    with pytest.raises(BudgetError, match=r"zeros \(300 × 16\): .* every weight was lost.*, or leave this table out"):
        ant.replace_embeddings(model, budget="4x")
