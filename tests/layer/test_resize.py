"""Anchors come and go: what stays is bit-equal, with its optimizer state and its free entries."""

import pytest
import torch

from antembed.layer.anchor import AnchorEmbedding
from antembed.layer.bag import AnchorEmbeddingBag
from antembed.layer.mixture import MixtureEmbedding
from antembed.layer.optim.prox import FreeEntries
from antembed.layer.optim.rules import ProximalSGD, ProximalYogi
from antembed.layer.resize_anchors import RemovedAnchors, add_anchors, free_pairs, remove_anchors


@pytest.fixture(autouse=True)
def _one_thread(_same_start):
    torch.set_num_threads(1)  # nothing here is large enough for two


def trained(sparse=True, optimizer=ProximalYogi, free=None, steps=3, **settings):
    layer = AnchorEmbedding(20, 4, num_anchors=5, sparse=sparse, dtype=torch.float64)
    held = optimizer(layer.param_groups(l1_penalty=1e-3, free=free), lr=0.1, **settings)
    step(layer, held, steps)
    return layer, held


def step(layer, optimizer, n):
    for seed in range(n):
        ids = torch.randint(0, 20, (6,), generator=torch.Generator().manual_seed(seed))
        layer(ids).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def state(layer, optimizer):
    T, A = layer.rows.weight, layer.anchors
    found = {"T": layer.transform.detach().clone(), "A": A.detach().clone()}
    for name, p in (("T", T), ("A", A)):
        found |= {f"{name}/{k}": v.clone() for k, v in optimizer.state[p].items() if isinstance(v, torch.Tensor)}
    return found


def columns(found, chosen):
    return {name: t[:, chosen] if name.startswith("T") else t[chosen] for name, t in found.items()}


def assert_same(one, other):
    assert one.keys() == other.keys()
    for name in one:
        assert torch.equal(one[name], other[name]), name


@pytest.mark.parametrize("sparse", [True, False])
@pytest.mark.parametrize("optimizer", [ProximalYogi, lambda g, lr: ProximalSGD(g, lr, 0.9), ProximalSGD])
def test_what_stays_is_bit_equal_and_the_parameters_are_the_same_objects(sparse, optimizer):
    layer, held = trained(sparse, optimizer)
    before, objects = state(layer, held), (layer.rows.weight, layer.anchors)
    aside = remove_anchors(layer, held, [3, 1])
    assert_same(state(layer, held), columns(before, [0, 2, 4]))
    assert (layer.rows.weight, layer.anchors) == objects
    assert add_anchors(layer, held, 3, aside) is None
    after = state(layer, held)
    assert_same(columns(after, [0, 1, 2, 3, 4]), columns(before, [0, 2, 4, 1, 3]))
    assert layer.num_anchors == layer.rows.embedding_dim == 6
    assert (after["T"][:, 5] > 0).all()
    assert (after["A"][5] != 0).all()
    step(layer, held, 2)  # and training goes on
    assert torch.isfinite(layer.to_dense()).all()


def test_lazy_and_dense_rows_agree_across_a_resize():
    ends = []
    for sparse in (True, False):
        torch.manual_seed(0)
        layer, held = trained(sparse)
        remove_anchors(layer, held, [2])
        step(layer, held, 4)
        ends.append(layer.to_dense().detach())
    assert torch.allclose(*ends, atol=1e-12)


def test_free_entries_move_with_their_anchors():
    layer, held = trained(free=FreeEntries(torch.tensor([0, 7, 7]), torch.tensor([4, 1, 2]), (20, 5)))
    aside = remove_anchors(layer, held, [1, 0])
    prox = held.param_groups[0]["prox"]
    assert free_pairs(prox).tolist() == [[0, 2], [7, 0]]
    assert prox.free.shape == (20, 3)
    step(layer, held, 1)
    add_anchors(layer, held, 2, aside)
    assert free_pairs(prox).tolist() == [[0, 2], [7, 0], [7, 4]]


def test_the_last_removed_comes_back_first_also_after_objects_were_added():
    layer, held = trained()
    before = state(layer, held)
    aside = remove_anchors(layer, held, [0]).append(remove_anchors(layer, held, [0]))
    aside = RemovedAnchors.from_tensors(aside.tensors())  # by way of a checkpoint
    layer.add_objects(2)
    held.state_of(layer.rows.weight, held.param_groups[0])
    rest = add_anchors(layer, held, 1, aside)
    assert rest is not None
    assert len(rest) == 1
    assert torch.equal(layer.anchors[-1], before["A"][1])
    assert torch.equal(layer.transform[:, -1], torch.cat([before["T"][:, 1], torch.zeros(2)]))


def test_fresh_anchors_are_small_of_both_signs_and_by_the_generator():
    layer, held = trained()
    drawn = []
    for _ in range(2):
        remove_anchors(layer, held, list(range(5, layer.num_anchors)))
        add_anchors(layer, held, 40, generator=torch.Generator().manual_seed(3))
        drawn.append(layer.to_dense().detach())
    assert torch.equal(*drawn)
    assert 0.3 < float((layer.anchors[5:] > 0).double().mean()) < 0.7
    parts = layer.transform * layer.anchors.norm(dim=1)
    old = parts[:, :5][parts[:, :5] > 0].mean()
    assert 0.05 * old < parts[:, 5:].mean() < old


def test_refusals():
    layer, held = trained()
    with pytest.raises(ValueError, match="5 of 5 anchors cannot be removed, 1 must stay; remove 4 at most"):
        remove_anchors(layer, held, [0, 1, 2, 3, 4])
    with pytest.raises(ValueError, match="there are 5, numbered from 0 to 4"):
        remove_anchors(layer, held, [5])
    with pytest.raises(ValueError, match="a number ≥ 0, got -1"):
        add_anchors(layer, held, -1)
    mixture = MixtureEmbedding(20, 4, num_anchors=(2, 2))
    with pytest.raises(TypeError, match="MixtureEmbedding cannot change its number of anchors"):
        remove_anchors(mixture, ProximalYogi(mixture.param_groups(1e-3)), [0])
    with pytest.raises(ValueError, match="the optimizer does not hold this layer"):
        remove_anchors(layer, ProximalYogi([torch.nn.Parameter(torch.zeros(1))]), [0])


def test_a_bag_can_be_resized():
    bag = AnchorEmbeddingBag(20, 4, num_anchors=3)
    held = ProximalYogi(bag.param_groups(1e-3))
    remove_anchors(bag, held, [0])
    assert bag(torch.tensor([[1, 2]])).shape == (1, 4)
    assert bag.num_anchors == 2
