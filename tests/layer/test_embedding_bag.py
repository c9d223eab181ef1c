"""AnchorEmbeddingBag against nn.EmbeddingBag over the same dense table, lazily read or not."""

import pytest
import torch
from torch import nn

import antembed as ant

V, d, K = 30, 5, 4


def pair(lazy, **more):
    bag = ant.AnchorEmbeddingBag(V, d, num_anchors=K, sparse=lazy, dtype=torch.float64, **more)
    if lazy:
        optimizer = ant.ProximalYogi(bag.param_groups(l1_penalty=1e-3))
        for _ in range(5):
            bag(torch.tensor([[1, 2]])).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        assert bag.rows.pending is not None
    peer = nn.EmbeddingBag.from_pretrained(
        bag.to_dense().detach(), mode=bag.mode, include_last_offset=bag.include_last_offset, padding_idx=bag.padding_idx
    )
    return bag, peer


@pytest.mark.parametrize("lazy", [False, True], ids=["plain", "lazy"])
@pytest.mark.parametrize("padding_idx", [None, 3])
@pytest.mark.parametrize("mode", ["sum", "mean"])
class TestAgainstTorch:
    def test_rows_are_bags(self, mode, padding_idx, lazy):
        bag, peer = pair(lazy, mode=mode, padding_idx=padding_idx)
        ids = torch.randint(0, V, (6, 7))
        ids[0, :3] = ids[1] = 3
        torch.testing.assert_close(bag(ids), peer(ids))

    @pytest.mark.parametrize("include_last", [False, True])
    def test_offsets(self, mode, padding_idx, lazy, include_last):
        bag, peer = pair(lazy, mode=mode, padding_idx=padding_idx, include_last_offset=include_last)
        ids = torch.randint(0, V, (12,))
        offsets = torch.tensor([0, 0, 5, 5, 9, 12][: 6 if include_last else 5])  # with empty bags
        torch.testing.assert_close(bag(ids, offsets), peer(ids, offsets))

    def test_no_ids_at_all(self, mode, padding_idx, lazy):
        bag, _ = pair(lazy, mode=mode, padding_idx=padding_idx)
        out = bag(torch.empty(0, dtype=torch.long), torch.tensor([0, 0]))
        assert torch.equal(out, torch.zeros(2, d, dtype=torch.float64))


@pytest.mark.parametrize("lazy", [False, True], ids=["plain", "lazy"])
def test_per_sample_weights(lazy):
    bag, peer = pair(lazy, mode="sum")
    ids, weights = torch.randint(0, V, (6, 7)), torch.randn(6, 7, dtype=torch.float64)
    torch.testing.assert_close(bag(ids, per_sample_weights=weights), peer(ids, per_sample_weights=weights))
    flat, offsets = ids.flatten(), torch.arange(0, 42, 7)
    torch.testing.assert_close(bag(flat, offsets, weights.flatten()), peer(flat, offsets, per_sample_weights=weights.flatten()))


def test_lazy_bags_train_like_dense_ones():
    results = []
    for sparse in (False, True):
        torch.manual_seed(0)
        bag = ant.AnchorEmbeddingBag(V, d, num_anchors=K, sparse=sparse, dtype=torch.float64, padding_idx=0)
        optimizer = ant.ProximalYogi(bag.param_groups(l1_penalty=1e-3))
        for step in range(40):
            ids = torch.randint(0, V, (3, 4), generator=torch.Generator().manual_seed(step))
            (bag(ids) - 0.2).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        results.append(bag.to_dense().detach())
    torch.testing.assert_close(*results, atol=1e-12, rtol=0)


@pytest.mark.parametrize("lazy", [False, True], ids=["plain", "lazy"])
def test_bad_input(lazy):
    bag, _ = pair(lazy, mode="mean")
    with pytest.raises(ValueError, match="mode='sum', this bag has mode='mean'"):
        bag(torch.tensor([[1]]), per_sample_weights=torch.ones(1, 1))
    with pytest.raises(IndexError, match=rf"id {V} is outside a table of {V} rows"):
        bag(torch.tensor([[V]]))
    with pytest.raises(TypeError, match="int32 or int64"):
        bag(torch.tensor([[1.0]]))
    with pytest.raises(ValueError, match="offsets"):
        bag(torch.tensor([1, 2]))
    with pytest.raises(ValueError, match="offsets"):
        bag(torch.tensor([[1, 2]]), torch.tensor([0]))
    with pytest.raises(ValueError, match="does not commute"):
        ant.AnchorEmbeddingBag(V, d, mode="max")


def test_a_bag_has_no_smaller_coordinates():
    bag, ids = ant.AnchorEmbeddingBag(V, d, num_anchors=K), torch.randint(0, V, (7, 4))
    vectors, anchors = bag.coordinates(ids)
    assert anchors is None
    torch.testing.assert_close(vectors, bag(ids))
