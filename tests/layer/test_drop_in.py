"""What code written for nn.Embedding expects of a layer: weight, reset_parameters, checkpoints, and what it cannot have."""

import copy

import pytest
import torch
from torch import nn

import antembed as ant
from antembed.baselines import EMBEDDINGS
from antembed.layer.anchor import AnchoredTable

V, d, K = 30, 6, 4
ANCHORED = [name for name, kind in EMBEDDINGS.items() if issubclass(kind, AnchoredTable)]
RESET = [*ANCHORED, "mixture", "softmax-mixture", "full", "sparse", "group-lasso", "hashed"]


def layer_of(**more):
    return ant.AnchorEmbedding(V, d, num_anchors=K, **more)


@pytest.mark.parametrize("name", ANCHORED)
def test_weight_is_the_dense_table(name):
    layer = EMBEDDINGS[name](V, d, num_anchors=K, padding_idx=1)
    assert layer.weight.shape == (V, d)
    assert torch.equal(layer.weight, layer.to_dense())
    torch.testing.assert_close(layer.weight[torch.tensor([1, 5])], layer(torch.tensor([1, 5])))


def test_weight_is_up_to_date_after_lazy_steps():
    layers = [layer_of(sparse=sparse) for sparse in (False, True)]
    layers[1].load_state_dict(layers[0].state_dict())
    for layer in layers:
        optimizer = ant.ProximalYogi(layer.param_groups(1e-2))
        for ids in ([1, 2], [3], [4, 4]):
            optimizer.zero_grad()
            layer(torch.tensor(ids)).sum().backward()
            optimizer.step()
    torch.testing.assert_close(layers[1].weight, layers[0].weight)


@pytest.mark.parametrize("value", [torch.zeros(V, d), nn.Parameter(torch.zeros(V, d)), None])
def test_weight_cannot_be_set(value):
    layer = layer_of()
    before = layer.to_dense()
    with pytest.raises(AttributeError, match=r"AnchorEmbedding\.from_pretrained\(weight\).*to_dense\(\).*logits\(hidden\)"):
        layer.weight = value
    assert torch.equal(layer.weight, before)


def test_an_output_layer_is_not_tied_silently():
    with pytest.raises(TypeError, match="weight"):
        nn.Linear(d, V, bias=False).weight = layer_of().weight
    assert "logits" in ant.AnchorEmbedding.weight.__doc__


def test_weight_is_no_parameter():
    layer = layer_of()
    assert list(layer.state_dict()) == ["anchors", "rows.weight"]
    assert [name for name, _ in layer.named_parameters()] == ["anchors", "rows.weight"]
    twin = copy.deepcopy(layer)
    assert torch.equal(twin.weight, layer.weight)
    compiled = torch.compile(lambda ids: layer(ids) + layer.weight[0], fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(torch.tensor([2])), layer(torch.tensor([2])) + layer.weight[0])


@pytest.mark.parametrize("name", RESET)
def test_reset_parameters_is_a_new_start(name):
    layer = EMBEDDINGS[name](400, d, num_anchors=K, padding_idx=3, sparse=True)
    before = [p.detach().clone() for p in layer.parameters()]
    optimizer = ant.ProximalYogi(layer.param_groups(1e-3))
    layer(torch.tensor([1, 2])).sum().backward()
    optimizer.step()
    layer.reset_parameters()
    assert layer.to_dense()[3].eq(0).all()
    for now, old in zip(layer.parameters(), before, strict=True):
        if not now.requires_grad:  # codes are fixed
            assert torch.equal(now, old)
            continue
        assert not torch.equal(now, old)
        assert now.detach().square().mean().item() == pytest.approx(old.square().mean().item(), rel=0.9)
        assert bool((now < 0).any()) == bool((old < 0).any())


@pytest.mark.parametrize("name", ["anchor", "mixture", "full"])
def test_reset_parameters_draws_what_construction_draws(name):
    torch.manual_seed(5)
    layer = EMBEDDINGS[name](V, d, num_anchors=K)
    start = layer.to_dense().detach().clone()
    with torch.no_grad():
        for p in layer.parameters():
            p.mul_(2)
    torch.manual_seed(5)
    layer.reset_parameters()
    assert torch.equal(layer.to_dense(), start)


def test_resetting_every_module_leaves_t_positive():
    """The usual loop reaches the inner table after the layer, and nn.Embedding would draw N(0, 1) there."""
    model = nn.Sequential(layer_of(), nn.Linear(d, 2))
    for module in model.modules():
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()
    assert (model[0].transform > 0).all()


def test_reset_forgets_the_factorization():
    layer = ant.AnchorEmbedding.from_pretrained(torch.randn(V, d), num_anchors=K)
    assert layer.reconstruction_error is not None
    layer.reset_parameters()
    assert layer.reconstruction_error is None


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("prefix", ["", "0."])
@pytest.mark.parametrize("kind", [ant.AnchorEmbedding, ant.AnchorEmbeddingBag])
def test_a_checkpoint_of_nn_embedding_names_from_pretrained(kind, prefix, strict):
    layer = kind(V, d, num_anchors=K)
    model, plain = (layer, nn.Embedding(V, d)) if not prefix else (nn.Sequential(layer), nn.Sequential(nn.Embedding(V, d)))
    text = rf"{prefix}weight: .*dense table of \({V}, {d}\).*this layer T and A.*AnchorEmbedding\.from_pretrained\(weight"
    with pytest.raises(RuntimeError, match=text):
        model.load_state_dict(plain.state_dict(), strict=strict)
    table = ant.AnchorEmbedding.from_pretrained(torch.randn(V, d), num_anchors=9)
    layer.load_state_dict(table.state_dict())  # the remedy
    assert torch.equal(layer.weight, table.weight)
