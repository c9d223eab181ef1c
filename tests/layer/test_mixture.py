"""Mixtures: the sparse softmax against the dense one, and one anchor a set as low rank."""

import pytest
import torch

import antembed as ant
from antembed.layer.mixture import MixtureEmbedding, SoftmaxMixture, sparse_softmax_weights


@pytest.mark.parametrize("scale", [1.0, 50.0, 1e4])
def test_the_sparse_softmax_is_the_softmax(scale):
    t = torch.rand(20, 9, dtype=torch.float64) * scale
    t[torch.rand_like(t) < 0.7] = 0
    weights, share = sparse_softmax_weights(t)
    torch.testing.assert_close(weights + share, t.softmax(-1))
    assert weights[t == 0].eq(0).all()


def test_its_gradient_is_that_of_the_softmax():
    t = torch.rand(4, 5, dtype=torch.float64, requires_grad=True)
    weights, share = sparse_softmax_weights(t)
    direction = torch.randn(4, 5, dtype=torch.float64)
    (ours,) = torch.autograd.grad(((weights + share) * direction).sum(), t)
    (dense,) = torch.autograd.grad((t.softmax(-1) * direction).sum(), t)
    torch.testing.assert_close(ours, dense)


@pytest.mark.parametrize("kind", [MixtureEmbedding, SoftmaxMixture])
def test_sets_of_different_sizes(kind):
    layer = kind(30, 4, num_anchors=(2, 5, 3))
    ids = torch.randint(0, 30, (7,))
    expected = 0
    for table, A in zip(layer.tables, layer.anchors, strict=True):
        t = table.weight[ids]
        expected = expected + (t.softmax(-1) if kind is SoftmaxMixture else t) @ A
    torch.testing.assert_close(layer(ids), expected)


def test_one_anchor_a_set_without_a_penalty_is_low_rank():
    layer = ant.baselines.MixtureEmbedding(30, 8, num_anchors=(1, 1, 1))
    assert torch.linalg.matrix_rank(layer.to_dense()) == 3


@pytest.mark.parametrize(("num_anchors", "sets"), [(5, (3, 2)), (2, (1, 1)), (1, (1,))])
def test_one_number_is_split_into_two_sets(num_anchors, sets):
    assert ant.baselines.MixtureEmbedding(3, 3, num_anchors=num_anchors).num_anchors == sets


def test_bad_mixtures():
    with pytest.raises(ValueError, match="got none"):
        ant.baselines.MixtureEmbedding(3, 3, num_anchors=())
    with pytest.raises(ValueError, match="≥ 1, got 0"):
        ant.baselines.MixtureEmbedding(3, 3, num_anchors=(2, 0))
