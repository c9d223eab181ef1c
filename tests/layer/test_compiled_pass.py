"""The compiled passes of a large batch against plain torch: look-up, bags, gradients, steps."""

from functools import partial

import pytest
import torch

import antembed as ant
from antembed.layer.lookup import IN_CACHE, fits_compiled_pass

V, K, N = 400, 7, 2500
CLOSE = {"rtol": 1e-4, "atol": 1e-6}  # single precision, sums of some ten terms in another order


def trained(make, read, steps=4, compiled=None):
    """All that training leaves; `read` gives the layer's vectors of a batch."""
    torch.manual_seed(0)
    layer = make()
    optimizer = ant.ProximalYogi(layer.param_groups(l1_penalty=1e-4), compiled=compiled)
    for step in range(steps):
        draws = torch.Generator().manual_seed(step)
        read(layer, draws).pow(2).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return torch.cat([layer.transform.flatten(), layer.anchors.flatten()]).detach()


def ids_of(draws, shape=(N,)):
    return torch.randint(0, V, shape, generator=draws)


@pytest.mark.parametrize("d", [5, 16, 37])
@pytest.mark.parametrize("padding_idx", [None, 3])
def test_look_up_and_steps_equal_plain_torch(d, padding_idx):
    def make():
        return ant.AnchorEmbedding(V, d, padding_idx, num_anchors=K, sparse=True)

    found, plain = (trained(make, lambda layer, draws: layer(ids_of(draws)), compiled=compiled) for compiled in (None, False))
    torch.testing.assert_close(found, plain, **CLOSE)


def test_distinct_ids_in_any_number_of_pieces_and_threads(monkeypatch):
    def read(layer, draws, threads):
        # Rows are lazy from the second step on; the first is torch's own product, which depends on threads.
        torch.set_num_threads(1 if layer.rows.pending is None else threads)
        return layer(torch.randperm(6000, generator=draws)[:5000])

    results = []
    for threads, piece in ((1, 96), (2, 96), (3, 4096)):
        monkeypatch.setattr("antembed.layer.lookup_kernel.CHUNK", piece)
        make = partial(ant.AnchorEmbedding, 6000, 24, num_anchors=12, sparse=True)
        results.append(trained(make, partial(read, threads=threads)))
    assert torch.equal(results[0], results[1])  # threads change nothing
    torch.testing.assert_close(results[0], results[2], **CLOSE)  # pieces change the order of a sum


@pytest.mark.parametrize(("mode", "weighted"), [("sum", False), ("sum", True), ("mean", False)])
@pytest.mark.parametrize("offsets", [False, True])
def test_bags_equal_plain_torch(mode, weighted, offsets):
    def read(layer, draws):
        ids = ids_of(draws) if offsets else ids_of(draws, (N // 5, 5))
        weights = torch.rand(ids.shape, generator=draws) if weighted else None
        starts = torch.randint(0, N, (300,), generator=draws).sort().values if offsets else None
        return layer(ids, None if starts is None else starts.index_fill(0, torch.tensor(0), 0), weights)

    def make():
        return ant.AnchorEmbeddingBag(V, 9, 3, num_anchors=K, sparse=True, mode=mode)

    found, plain = (trained(make, read, compiled=compiled) for compiled in (None, False))
    torch.testing.assert_close(found, plain, **CLOSE)


def one_step_in(layer):
    optimizer = ant.ProximalYogi(layer.param_groups(l1_penalty=1e-4))
    layer(torch.arange(10).view(2, 5)).sum().backward()
    optimizer.step()
    assert layer.rows.pending is not None


def test_derivatives_of_per_sample_weights():
    layer = ant.AnchorEmbeddingBag(V, 6, num_anchors=K, sparse=True, mode="sum")
    one_step_in(layer)
    ids, weights = torch.randint(0, V, (N // 5, 5)), torch.rand(N // 5, 5).requires_grad_()
    (found,) = torch.autograd.grad(layer(ids, None, weights).pow(3).sum(), weights)
    rows, A = layer.transform.detach()[ids], layer.anchors.detach()
    (plain,) = torch.autograd.grad(((rows * weights.unsqueeze(2)).sum(1) @ A).pow(3).sum(), weights)
    torch.testing.assert_close(found, plain, **CLOSE)


def test_second_derivatives_reach_the_rows():
    layer = ant.AnchorEmbedding(V, 6, num_anchors=K, sparse=True)
    one_step_in(layer)
    ids = torch.randint(0, V, (N,))
    (first,) = torch.autograd.grad(layer(ids).pow(3).sum(), layer.anchors, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), layer.rows.weight)
    T, A = layer.transform.detach().requires_grad_(), layer.anchors.detach().requires_grad_()
    (plain,) = torch.autograd.grad((T[ids] @ A).pow(3).sum(), A, create_graph=True)
    (expected,) = torch.autograd.grad(plain.sum(), T)
    torch.testing.assert_close(second.to_dense(), expected, **CLOSE)


def test_what_the_compiled_pass_is_for():
    weight, anchors = torch.zeros(4, K), torch.zeros(K, 8)
    assert fits_compiled_pass(weight, anchors)
    assert not fits_compiled_pass(weight.double(), anchors.double())
    assert not fits_compiled_pass(weight, torch.zeros(8, K).T)
    assert not fits_compiled_pass(weight, torch.zeros(K, IN_CACHE // K + 1))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert not fits_compiled_pass(weight, anchors)


def test_offsets_that_no_bag_can_have():
    layer = ant.AnchorEmbeddingBag(V, 6, num_anchors=K, sparse=True)
    one_step_in(layer)
    for wrong in ([1, 5], [0, 9, 4], [0, N + 1]):
        with pytest.raises(ValueError, match=rf"at most the number of ids, {N}; these begin with {wrong[0]}"):
            layer(torch.zeros(N, dtype=torch.long), torch.tensor(wrong))
