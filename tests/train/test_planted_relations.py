"""The issue's planted test: with free entries from a planted graph, just what is related is kept, on every path."""

from unittest import mock

import numpy as np
import pytest
import torch

import antembed as ant
from antembed.data.relations import free_entries, from_pairs
from antembed.layer.anchors.init_weights import init_weights
from antembed.recommend.fused import FusedEngine
from antembed.recommend.model import MatrixFactorization, half_squared_error
from antembed.train.engine import TorchEngine
from antembed.train.examples import Examples

V, K, d = 60, 5, 8
ANCHORS = np.array([4, 11, 23, 37, 52])


def first_weights() -> torch.Tensor:
    """Some weight of every row on every anchor."""
    with mock.patch("antembed.layer.anchors.init_weights.NEAREST", K):
        return init_weights(V, d, ANCHORS, seed=1)[0] + 0.05


@pytest.fixture(autouse=True)
def _one_thread(_same_start):
    torch.set_num_threads(1)  # for tensors as small as these, threads only wait for each other


def planted(seed):
    """A graph in which every object is related to one or two anchors; T* lives on it; E* = T*·A* with A* orthonormal."""
    rng = np.random.default_rng(seed)
    chosen = np.argsort(rng.random((V, K)), axis=1)[:, :2]
    objects = np.repeat(np.arange(V), 2)
    keep = (np.arange(2 * V) % 2 == 0) | (rng.random(2 * V) < 0.5)
    relations = from_pairs(objects[keep], ANCHORS[chosen.ravel()[keep]], V)
    entries = free_entries(relations, ANCHORS)
    T = np.zeros((V, K), np.float32)
    T[entries] = 0.5 + rng.random(len(entries[0]))
    A = np.linalg.qr(rng.standard_normal((d, K)))[0].T.astype(np.float32)
    return entries, T, A


def layers(sparse):
    """Layers that start with all weights alive, so that what ends at zero was taken there."""
    entries, T, A = planted(0)
    layer = ant.AnchorEmbedding(V, d, num_anchors=K, sparse=sparse)
    first = first_weights()
    with torch.no_grad():
        layer.rows.weight.copy_(first)
        layer.anchors.copy_(torch.from_numpy(A) + 0.02 * torch.randn(K, d))
    return layer, entries, torch.from_numpy(T @ A)


@pytest.mark.parametrize("l1", [0.03, 1e6], ids=["a penalty", "a penalty that nothing is worth"])
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "lazy"])
def test_exactly_the_related_weights_are_kept(sparse, l1):
    layer, entries, E = layers(sparse)
    free = ant.penalties.FreeEntries(*entries, (V, K))
    optimizer = ant.ProximalYogi(layer.param_groups(l1_penalty=l1, free=free), lr=0.02)
    generator = torch.Generator().manual_seed(2)
    for _ in range(300):
        ids = torch.randint(0, V, (30,), generator=generator)
        optimizer.zero_grad()
        (layer(ids) - E[ids]).square().sum(1).mean().div(2).backward()
        optimizer.step()
    assert torch.equal(layer.transform > 0, free.mask())
    assert 0.25 < float(free.mask().float().mean()) < 0.5  # neither nothing nor all
    assert ((layer.to_dense() - E).norm() / E.norm()).item() < 0.05


def test_without_free_entries_a_large_penalty_leaves_nothing():
    layer, _, E = layers(sparse=True)
    optimizer = ant.ProximalYogi(layer.param_groups(l1_penalty=1e6), lr=0.02)
    for _ in range(3):
        optimizer.zero_grad()
        (layer(torch.arange(V)) - E).square().sum().backward()
        optimizer.step()
    assert not layer.transform.any()


def factorization():
    """Ratings e_u·e_i of planted users and items that share their anchors, each side with its own graph."""
    (user_free, user_T, A), (item_free, item_T, _) = planted(0), planted(1)
    rng = np.random.default_rng(3)
    users, items = rng.integers(0, V, (2, 6000))
    E_users, E_items = user_T @ A, item_T @ A
    ratings = (E_users[users] * E_items[items]).sum(1).astype(np.float32)
    torch.manual_seed(0)
    tables = [ant.AnchorEmbedding(V, d, num_anchors=K, sparse=True) for _ in range(2)]
    with torch.no_grad():
        for table in tables:
            table.rows.weight.copy_(first_weights())
            table.anchors.copy_(torch.from_numpy(A))
    model = MatrixFactorization(*tables)
    frees = [ant.penalties.FreeEntries(*entries, (V, K)) for entries in (user_free, item_free)]
    return model, frees, Examples((users, items, ratings), np.arange(6000))


@pytest.mark.parametrize("l1", [0.02, 1e6], ids=["a penalty", "a penalty that nothing is worth"])
@pytest.mark.parametrize("engine", ["torch", "fused"])
def test_both_engines_keep_exactly_the_related_weights(engine, l1):
    model, frees, examples = factorization()
    groups = ant.param_groups(model, l1)
    for group, free in zip((group for group in groups if group.get("prox")), frees, strict=True):
        group["prox"].free = free
    optimizer = ant.ProximalYogi(groups, lr=0.02)
    if engine == "fused":
        runner = FusedEngine(model, optimizer)
    else:
        runner = TorchEngine(optimizer, lambda batch, step: half_squared_error(model, batch))
    error = 0.0
    for epoch in range(8):
        error = sum(part for _, part in runner.run(examples, 100, 60 * epoch, lambda step: 0.02, lambda step: l1))
    assert error / 6000 < 0.01
    for table, free in zip((model.users, model.items), frees, strict=True):
        assert torch.equal(table.transform > 0, free.mask())
