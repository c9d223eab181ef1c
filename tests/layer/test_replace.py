"""Anchored layers in other people's models."""

import copy

import pytest
import torch
from torch import nn

import antembed as ant
from antembed.layer.replace import TiedHead


class Tied(nn.Module):
    """A model of the usual kind: one table at both ends, positions, and the table under a second name."""

    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(60, 12, padding_idx=0), nn.Embedding(9, 12)
        self.encoder = nn.ModuleDict({"shared": self.words})
        self.body = nn.Linear(12, 12)
        self.head = nn.Linear(12, 60)
        self.head.weight = self.words.weight

    def forward(self, ids):
        return self.head(self.body(self.encoder["shared"](ids) + self.places(torch.arange(ids.shape[-1]))))


def test_layers_are_replaced_and_stay_tied():
    torch.manual_seed(0)
    model = Tied()
    before = model.head.bias
    made = ant.replace_embeddings(model, num_anchors=20, pattern="words")
    assert list(made) == ["words"]
    assert model.words is model.encoder["shared"] is made["words"]
    assert isinstance(model.head, TiedHead)
    assert model.head.bias is before
    assert isinstance(model.places, nn.Embedding)
    hidden = torch.randn(3, 12)
    torch.testing.assert_close(model.head(hidden), hidden @ model.words.to_dense().T + before, rtol=1e-4, atol=1e-5)
    assert not any("head.tied" in name for name in model.state_dict())
    assert sum(name.endswith("rows.weight") for name in dict(model.named_parameters())) == 1


def test_layers_that_share_a_weight_stay_one():
    model = nn.ModuleList([nn.Embedding(20, 4), nn.Embedding(20, 4), nn.Embedding(20, 4)])
    model[1].weight = model[0].weight
    made = ant.replace_embeddings(model, num_anchors=3)
    assert model[0] is model[1] is made["1"]
    assert model[2] is not model[0]


def test_it_trains_at_both_ends_and_becomes_small():
    torch.manual_seed(0)
    model = Tied()
    ant.replace_embeddings(model, num_anchors=8, pattern="words")
    optimizer = ant.optim.ProximalAdam(ant.param_groups(model, l1_penalty=0.0), lr=0.01)
    data = [torch.randint(1, 60, (16, 6)) for _ in range(10)]

    def loss(ids):
        return nn.functional.cross_entropy(model(ids).flatten(0, 1), ids.flatten())

    sparsifier = ant.Recode(model, optimizer, budget="400", events=3, max_loss=1.0)
    for _ in range(8):
        for ids in data:
            optimizer.zero_grad()
            loss(ids).backward()
            optimizer.step()
        sparsifier.step(data, loss)
    assert model.words.usage().parameters <= 400
    assert (model.words.transform == 0).any()


def test_copies_and_checkpoints_are_tied_to_themselves():
    model = Tied()
    ant.replace_embeddings(model, num_anchors=6)
    clone = copy.deepcopy(model)
    with torch.no_grad():
        clone.words.anchors.zero_()
    assert clone.head.weight.abs().sum().item() == 0
    assert model.head.weight.abs().sum().item() > 0
    other = Tied()
    ant.replace_embeddings(other, num_anchors=6, fresh=True)
    other.load_state_dict(model.state_dict())
    ids = torch.randint(1, 60, (2, 5))
    torch.testing.assert_close(other(ids), model(ids))


def test_weights_are_kept_as_far_as_the_anchors_go():
    layer = nn.Embedding(40, 6)
    model = nn.Sequential(layer)
    before = layer.weight.detach().clone()
    made = ant.replace_embeddings(model, num_anchors=40)["0"]
    torch.testing.assert_close(made.to_dense(), before, rtol=0.05, atol=0.3)
    assert made.reconstruction_error < 0.1


def test_bags_padding_and_what_is_refused():
    bags = nn.Sequential(nn.EmbeddingBag(30, 4, mode="sum", padding_idx=2))
    made = ant.replace_embeddings(bags, num_anchors=3)["0"]
    assert isinstance(made, ant.AnchorEmbeddingBag)
    assert (made.mode, made.padding_idx) == ("sum", 2)
    with pytest.raises(ValueError, match=r"max_norm=1\.0, which T·A cannot follow"):
        ant.replace_embeddings(nn.Sequential(nn.Embedding(5, 2, max_norm=1.0)))
    with pytest.raises(ValueError, match="0 embeddings match 'x'; the model has: 0"):
        ant.replace_embeddings(nn.Sequential(nn.Embedding(5, 2)), pattern="x")
    with pytest.raises(ValueError, match="0 embeddings match"):  # ours are not replaced again
        ant.replace_embeddings(bags)


def test_tables_without_rows_are_named():
    with pytest.raises(ValueError, match="0 has 0 rows, nothing to replace; leave it out by pattern"):
        ant.replace_embeddings(nn.Sequential(nn.Embedding(0, 4)))
    for budget in (None, "2x"):
        with pytest.raises(ValueError, match="a table of 0 × 4 has no vectors to factorize"):
            ant.AnchorEmbedding.from_pretrained(torch.empty(0, 4), budget=budget)
