"""Polishing freezes the support in every path, and moves what is left."""

import pytest
import torch

import antembed as ant
from antembed.train.callbacks import PROHIBITIVE, free_entries, freeze, thaw


def layer_and_optimizer(sparse):
    torch.manual_seed(0)
    layer = ant.AnchorEmbedding(30, 6, num_anchors=5, sparse=sparse, dtype=torch.float64)
    with torch.no_grad():
        layer.rows.weight[torch.rand(30, 5) < 0.5] = 0
    optimizer = ant.ProximalYogi(layer.param_groups(l1_penalty=1e-3), lr=0.05)
    return layer, optimizer


@pytest.mark.parametrize("sparse", [False, True])
def test_polishing_keeps_the_zeros_and_moves_the_rest(sparse):
    layer, optimizer = layer_and_optimizer(sparse)
    before = layer.transform.detach().clone()
    spared = free_entries(optimizer)
    freeze(optimizer, spared)
    for group in optimizer.param_groups:
        if group["prox"] is not None:
            group["prox"].strength = PROHIBITIVE
    for step in range(30):
        ids = torch.randint(0, 30, (8,), generator=torch.Generator().manual_seed(step))
        (layer(ids) - 1).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    after = layer.transform.detach()
    assert after[before == 0].eq(0).all()
    assert after.sum() > 1.2 * before.sum()  # up, towards 1: nothing shrinks them
    thaw(optimizer, spared)
    assert optimizer.param_groups[0]["prox"].free is None


def test_lazy_and_dense_polishing_agree():
    found = []
    for sparse in (False, True):
        layer, optimizer = layer_and_optimizer(sparse)
        freeze(optimizer, {})
        optimizer.param_groups[0]["prox"].strength = PROHIBITIVE
        for step in range(20):
            ids = torch.randint(0, 30, (4,), generator=torch.Generator().manual_seed(step))
            (layer(ids) - 1).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        found.append(layer.transform.detach().clone())
    torch.testing.assert_close(*found, atol=1e-12, rtol=0)


def test_entries_that_were_free_stay_free():
    layer, optimizer = layer_and_optimizer(False)
    row, column = (int(n) for n in (layer.rows.weight == 0).nonzero()[0])
    optimizer.param_groups[0]["prox"].free = ant.penalties.FreeEntries(torch.tensor([row]), torch.tensor([column]), (30, 5))
    spared = free_entries(optimizer)
    freeze(optimizer, spared)
    assert optimizer.param_groups[0]["prox"].free.mask()[row, column]
