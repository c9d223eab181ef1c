"""max_grad_norm: the same as torch's clipping, also of row-sparse gradients, for which torch has none."""

import copy
import pickle

import pytest
import torch
from torch import nn

import antembed as ant
from antembed.layer.optim import OPTIMIZERS

MAKE = {
    **OPTIMIZERS,
    "wrapper": lambda groups, lr, max_grad_norm=None: ant.optim.Proximal(
        torch.optim.SGD(groups, lr=lr), max_grad_norm=max_grad_norm
    ),
}
IDS = [torch.randint(0, 40, (16,), generator=torch.Generator().manual_seed(step)) for step in range(20)]


def model_of(sparse):
    torch.manual_seed(0)
    layer = ant.AnchorEmbedding(40, 6, num_anchors=5, sparse=sparse, dtype=torch.float64)
    return nn.Sequential(layer, nn.Linear(6, 3, dtype=torch.float64))


def loss_of(model, ids):
    return (model(ids) - 2).square().sum()


def trained(name, sparse, *, by_torch, max_norm=0.5):
    model = model_of(sparse)
    groups = ant.param_groups(model, l1_penalty=1e-3)
    optimizer = MAKE[name](groups, lr=0.05) if by_torch else MAKE[name](groups, lr=0.05, max_grad_norm=max_norm)
    for ids in IDS:
        optimizer.zero_grad()
        loss_of(model, ids).backward()
        if by_torch:
            assert nn.utils.clip_grad_norm_(model.parameters(), max_norm) > max_norm
        optimizer.step()
    return torch.cat([model[0].to_dense().flatten(), model[1].weight.flatten(), model[1].bias]).detach()


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("name", MAKE)
def test_clipping_in_the_step_is_torchs_clipping_of_dense_gradients(name, sparse):
    ours, torchs = trained(name, sparse, by_torch=False), trained(name, False, by_torch=True)
    torch.testing.assert_close(ours, torchs, rtol=1e-9, atol=1e-12)
    assert not torch.allclose(ours, trained(name, sparse, by_torch=False, max_norm=1e9))


@pytest.mark.parametrize("name", MAKE)
def test_gradients_of_a_closure_are_clipped(name):
    results = []
    for by_closure in (False, True):
        model = model_of(sparse=False)
        optimizer = MAKE[name](ant.param_groups(model, l1_penalty=1e-3), lr=0.05, max_grad_norm=0.5)

        def closure(model=model, optimizer=optimizer):
            optimizer.zero_grad()
            loss = loss_of(model, IDS[0])
            loss.backward()
            return loss

        if not by_closure:
            closure()
        loss = optimizer.step(closure if by_closure else None)
        assert (loss is not None) == by_closure
        results.append(model[0].to_dense().detach())
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("name", MAKE)
@pytest.mark.parametrize("twin", [copy.deepcopy, lambda optimizer: pickle.loads(pickle.dumps(optimizer))])
def test_copies_keep_it(name, twin):
    optimizer = MAKE[name](model_of(sparse=False)[0].param_groups(1e-3), lr=0.05, max_grad_norm=0.5)
    assert twin(optimizer).max_grad_norm == 0.5
    optimizer.load_state_dict(optimizer.state_dict())
    assert optimizer.max_grad_norm == 0.5


@pytest.mark.parametrize("name", MAKE)
def test_a_norm_of_zero_is_refused(name):
    with pytest.raises(ValueError, match="max_grad_norm must be > 0, got 0; None switches clipping off"):
        MAKE[name](model_of(sparse=False)[0].param_groups(1e-3), lr=0.05, max_grad_norm=0)
