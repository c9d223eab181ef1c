"""The baselines of recommendation, beyond the contract: who has which row, what they cost, what a subgradient does."""

import numpy as np
import pytest
import torch

import antembed as ant
from antembed.baselines.after_training import ksvd, post_sparse_hash, pursuit
from antembed.baselines.hashed import buckets_of
from antembed.baselines.low_rank import LowRankEmbedding
from antembed.baselines.mixed_dimension import blocks_of
from antembed.baselines.slimming import SparseEmbedding, SubgradientSparseEmbedding
from antembed.baselines.tensor_train import three_factors
from antembed.layer.embedding import keep_largest
from antembed.layer.optim import OPTIMIZERS
from antembed.layer.optim.prox import L1, SubgradientL1

V, d = 60, 8
COUNTS = torch.randint(0, 1000, (V,), generator=torch.Generator().manual_seed(0)) ** 2


def mixed(**more):
    return ant.baselines.MixedDimensionEmbedding(V, d, counts=COUNTS, alpha=0.6, **more)


class TestMixedDimension:
    def test_blocks_by_hand(self):
        """32 occurrences in 4 blocks of 8: one object, then 2, 4 and 9, of mean 8, 4, 2, 8/9."""
        popularity = np.array([8, 4, 4, 2, 2, 2, 2] + 8 * [1] + [0.0])
        assert blocks_of(popularity, 4, 16, 1.0) == [(1, 16), (2, 8), (4, 4), (9, 2)]
        assert blocks_of(popularity, 4, 16, 0.6) == [(1, 16), (2, 8), (4, 8), (9, 4)]  # 16, 10.6, 7.0, 4.3
        assert blocks_of(popularity, 4, 16, 0.0) == [(1, 16), (2, 16), (4, 16), (9, 16)]
        assert blocks_of(popularity, 4, 6, 9.0) == [(1, 6), (2, 1), (4, 1), (9, 1)]

    def test_one_object_may_have_more_than_a_block_s_share(self):
        assert blocks_of(np.array([96.0, 2, 1, 1]), 4, 4, 0.5) == [(1, 4), (3, 1)]
        assert blocks_of(np.zeros(6), 2, 4, 0.5) == [(3, 4), (3, 4)]
        assert blocks_of(np.zeros(0), 2, 4, 0.5) == [(0, 4)]

    def test_no_two_ids_share_a_row(self):
        """Each id's vector moves with one row of one table, and no other id's does (the authors' bucket·n + id collides)."""
        layer = mixed()
        assert len(layer.tables) > 2
        before, moved = layer(torch.arange(V)).detach(), torch.zeros(V, dtype=torch.long)
        with torch.no_grad():
            for table in layer.tables:
                for row in range(table.num_embeddings):
                    table.weight[row] += 1
                    changed = (layer(torch.arange(V)) != before).any(1)
                    assert int(changed.sum()) == 1
                    moved += changed
                    table.weight[row] -= 1
                    before = layer(torch.arange(V))  # but for rounding what it was
        assert moved.eq(1).all()

    def test_the_popular_are_wide(self):
        layer = mixed()
        T, _ = layer.factors()
        width = torch.count_nonzero(T, dim=1)[torch.argsort(COUNTS, descending=True)]
        assert (width.diff() <= 0).all()
        assert width[0] == d
        assert width[-1] < d

    def test_parameters_by_hand(self):
        layer = ant.baselines.MixedDimensionEmbedding(7, 4, counts=torch.tensor([1, 1, 8, 4, 4, 1, 1]), alpha=1.0, blocks=2)
        assert [tuple(table.weight.shape) for table in layer.tables] == [(2, 4), (5, 1)]
        used = layer.usage()
        assert used.nnz == 2 * 4 + 5 * 1
        assert used.parameters == used.nnz + (4 + 1) * 4  # the identity of the wide block is stored, and counted

    def test_a_checkpoint_brings_its_blocks(self):
        """Who opens a trained table does not know the counts any more."""
        layer = mixed(padding_idx=5)
        other = ant.baselines.MixedDimensionEmbedding(V, d, padding_idx=5, blocks=2)
        other.load_state_dict(layer.state_dict())
        assert torch.equal(other.to_dense(), layer.to_dense())
        other(torch.arange(V)).sum().backward()
        assert [table.padding_idx for table in other.tables] == [table.padding_idx for table in layer.tables]

    def test_new_objects_are_narrow(self):
        layer = mixed()
        sizes = [table.num_embeddings for table in layer.tables]
        layer.add_objects(4)
        assert [table.num_embeddings for table in layer.tables] == [*sizes[:-1], sizes[-1] + 4]
        torch.testing.assert_close(layer(torch.arange(V + 4)), layer.to_dense())

    def test_wrong_counts(self):
        with pytest.raises(ValueError, match="counts are for 60 objects, this layer has 61; give one for each"):
            ant.baselines.MixedDimensionEmbedding(61, d, counts=COUNTS)
        with pytest.raises(ValueError, match="alpha must be ≥ 0 and blocks ≥ 1, got -1 and 8"):
            ant.baselines.MixedDimensionEmbedding(V, d, alpha=-1)


class TestHash:
    def test_the_frequent_have_a_row_each(self):
        layer = ant.baselines.HashEmbedding(V, d, own=10, buckets=6, counts=COUNTS)
        frequent = torch.argsort(COUNTS, descending=True, stable=True)[:10]
        assert torch.equal(layer.row_index()[frequent], torch.arange(10))
        rest = torch.ones(V, dtype=torch.bool)
        rest[frequent] = False
        assert set(layer.row_index()[rest].tolist()) == set(range(10, 16))

    def test_buckets_fill_evenly_and_by_seed(self):
        """1 000 a bucket on average; ids in steps of a power of two are no harder."""
        for ids in (np.arange(50_000), np.arange(50_000) * 1024):
            sizes = np.bincount(buckets_of(ids, 50, seed=3), minlength=50)
            assert sizes.min() > 500
            assert sizes.max() < 1500
        one, other = (buckets_of(np.arange(1000), 50, seed) for seed in (0, 1))
        assert (one != other).mean() > 0.9

    def test_parameters_by_hand(self):
        used = ant.baselines.HashEmbedding(V, d, own=10, buckets=6).usage()
        assert (used.num_embeddings, used.nnz, used.parameters) == (V, 16 * d, 16 * d)
        more = ant.baselines.HashEmbedding(V + 1000, d, own=10, buckets=6).usage()
        assert more.parameters == used.parameters
        assert 1000 <= more.bytes - used.bytes < 1010  # a byte a place, and the header's digits

    def test_padding_has_a_row_of_its_own(self):
        layer = ant.baselines.HashEmbedding(V, d, 59, own=10, buckets=6)
        assert (layer.row_index() == layer.row_index()[59]).sum() == 1
        assert layer.usage().nnz == 16 * d

    def test_wrong_sizes(self):
        with pytest.raises(ValueError, match="own must be ≥ 0 and buckets ≥ 1, got 5 and 0"):
            ant.baselines.HashEmbedding(V, d, own=5, buckets=0)
        with pytest.raises(ValueError, match="counts are for 60 objects, this layer has 61"):
            ant.baselines.HashEmbedding(61, d, own=5, buckets=2, counts=COUNTS)
        with pytest.raises(ValueError, match="padding_idx 60 is outside a table of 60 rows"):
            ant.baselines.HashEmbedding(V, d, 60, own=5, buckets=2)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_subgradient_is_a_term_of_the_loss(name):
    """The plain twin: the same rule without a penalty, on the loss plus λ·‖x‖₁."""
    start, results = torch.randn(5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0)), []
    for prox, l1 in ((SubgradientL1(0.05), 0.0), (None, 0.05)):
        weight = torch.nn.Parameter(start.clone())
        optimizer = OPTIMIZERS[name]([{"params": [weight], "prox": prox}], lr=0.1)
        for _ in range(20):
            optimizer.zero_grad()
            ((weight - 0.1).square().sum() + l1 * weight.abs().sum()).backward()
            optimizer.step()
        results.append(weight.detach())
    assert not torch.equal(results[0], start)
    torch.testing.assert_close(*results, atol=1e-12, rtol=0)


@pytest.mark.parametrize("sparse", [False, True])
def test_the_prox_ends_in_zeros_and_the_subgradient_does_not(sparse):
    zeros = {}
    for kind in (SparseEmbedding, SubgradientSparseEmbedding):
        torch.manual_seed(0)
        layer = kind(V, d, sparse=sparse)
        optimizer = ant.optim.ProximalSGD(layer.param_groups(l1_penalty=0.3), lr=0.1)
        target = torch.randn(V, d, generator=torch.Generator().manual_seed(1))
        for _ in range(60):
            optimizer.zero_grad()
            (layer(torch.arange(V)) - target).square().sum().div(2).backward()
            optimizer.step()
        zeros[kind] = layer.to_dense() == 0
        if kind is SubgradientSparseEmbedding:
            assert layer.to_dense()[target.abs() < 0.25].abs().max() < 0.1  # near zero, never there
    assert torch.equal(zeros[SparseEmbedding], target.abs() <= 0.3)
    assert not zeros[SubgradientSparseEmbedding].any()


def test_a_sparse_table_is_counted_by_its_non_zeros():
    layer = ant.baselines.SparseEmbedding(V, d)
    assert layer.usage().parameters == V * d
    layer.keep(17)
    used = layer.usage()
    assert (used.nnz, used.parameters) == (17, 17)


def test_slimming_of_the_transform_by_hand():
    layer = ant.baselines.SlimmingTransform(V, d, num_anchors=3)
    assert isinstance(layer.param_groups(0.1)[0]["prox"], SubgradientL1)
    assert (layer.transform < 0).any()
    with torch.no_grad():
        layer.rows.weight.zero_()
        layer.rows.weight[:3] = torch.tensor([[1.0, 0.0, -2.0], [0.0, 0.0, 3.0], [-4.0, 0.0, 0.0]])
        layer.anchors.copy_(torch.tensor([[1.0], [1.0], [0.1]]).expand(3, d))
    assert layer.keep(2) == 2  # of the contributions 1, .2, .3, 4 (times √d)
    assert torch.equal(layer.transform[:3], torch.tensor([[1.0, 0, 0], [0, 0, 0], [-4, 0, 0]]))
    assert layer.usage().parameters == 2 + d  # one anchor is left in use
    with pytest.raises(ValueError, match="1 free entries were given, but SlimmingTransform supports 0"):
        layer.param_groups(0.1, free=ant.penalties.FreeEntries(torch.tensor([0]), torch.tensor([0]), (V, 3)))


def test_the_largest_over_several_layers():
    small, large = ant.baselines.FullEmbedding(V, d), ant.baselines.FullEmbedding(V, d, std=100.0)
    keep_largest([small, large], V * d)
    assert small.usage().nnz < 0.05 * V * d
    assert small.usage().nnz + large.usage().nnz == V * d


def test_other_optimizers_do_not_ignore_a_subgradient():
    layer = SubgradientSparseEmbedding(V, d)
    with pytest.raises(ValueError, match="SubgradientL1 acts on the gradient, before the step; use ProximalSGD"):
        ant.optim.Proximal(torch.optim.SGD(layer.param_groups(0.1), lr=0.1))
    assert L1(0.1).subgradient(torch.ones(2)) is None


class TestTensorTrain:
    def test_factors(self):
        assert three_factors(200, exact=True) == (8, 5, 5)
        assert three_factors(7, exact=True) == (7, 1, 1)
        for n in (1, 2, 50, 9999, 253_854):
            a, b, c = three_factors(n, exact=False)
            assert n <= a * b * c <= 1.2 * n + 8

    def test_vectors_by_hand(self):
        """Digit by digit: G₁[i]·G₂[j]·G₃[k], as sums over the ranks."""
        layer = ant.baselines.TensorTrainEmbedding(60, 12, num_anchors=3, padding_idx=5)
        (_, J, K), (d1, d2, d3), r = layer.digits, layer.widths, layer.rank
        one, two, three = (core.weight for core in layer.tables)
        for word in (0, 17, 59):
            i, j, k = word // (J * K), word // K % J, word % K
            parts = one[i].view(d1, r), two[j].view(r, d2, r), three[k].view(r, d3)
            torch.testing.assert_close(layer(torch.tensor(word)), torch.einsum("ap,pbq,qc->abc", *parts).reshape(12))
        assert not layer(torch.tensor(5)).any()
        assert layer.usage().parameters == sum(core.weight.numel() for core in layer.tables)

    def test_grouped_and_one_by_one_agree(self):
        layer = ant.baselines.TensorTrainEmbedding(60, 12, num_anchors=3)
        ids = torch.randint(0, 60, (40,))
        torch.testing.assert_close(layer._by_middle(ids), layer._one_by_one(ids))
        gradients = []
        for way in (layer._by_middle, layer._one_by_one):
            layer.zero_grad()
            way(ids).square().sum().backward()
            gradients.append([core.weight.grad.clone() for core in layer.tables])
        torch.testing.assert_close(*gradients)
        assert layer(torch.empty(0, dtype=torch.long)).shape == (0, 12)

    def test_new_objects_are_rows_of_the_first_core(self):
        layer = ant.baselines.TensorTrainEmbedding(60, 12, num_anchors=3)
        before = layer.to_dense()
        layer.add_objects(50)
        torch.testing.assert_close(layer.to_dense()[:60], before)
        assert layer(torch.arange(110)).shape == (110, 12)


class TestAfterTraining:
    def test_matching_pursuit_finds_what_is_there(self):
        """Mixes of two of eight orthogonal vectors are found exactly."""
        generator = torch.Generator().manual_seed(0)
        A = torch.linalg.qr(torch.randn(8, 8, generator=generator)).Q
        T = torch.zeros(50, 8)
        for row in T:
            row[torch.randperm(8, generator=generator)[:2]] = torch.randn(2, generator=generator)
        torch.testing.assert_close(pursuit(T @ A, A, 2), T, atol=1e-4, rtol=1e-4)

    @pytest.mark.parametrize("method", [post_sparse_hash, ksvd])
    def test_rows_are_mixes(self, method):
        generator = torch.Generator().manual_seed(0)
        A, T = torch.randn(6, 10, generator=generator), torch.rand(200, 6, generator=generator)
        E = (T * (torch.rand(200, 6, generator=generator) < 0.4)) @ A
        layer = method(E, num_anchors=12, nonzeros=3)
        assert (layer.rows.weight.count_nonzero(1) <= 3).all()
        rank3 = LowRankEmbedding.from_pretrained(E, num_anchors=3).reconstruction_error
        assert layer.reconstruction_error < rank3
        again = method(E, num_anchors=12, nonzeros=3)
        assert torch.equal(again.rows.weight, layer.rows.weight)

    def test_ksvd_is_better_than_the_nearest(self):
        E = torch.randn(300, 12, generator=torch.Generator().manual_seed(1))
        found = [method(E, num_anchors=24, nonzeros=4).reconstruction_error for method in (ksvd, post_sparse_hash)]
        assert found[0] < found[1]

    def test_too_few_anchors(self):
        with pytest.raises(ValueError, match="5 of 4 anchors for 9 rows"):
            ksvd(torch.randn(9, 3), num_anchors=4, nonzeros=5)
