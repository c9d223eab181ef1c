"""Sparse codes: the minimiser by its own conditions, common words as themselves, and only their vectors learned."""

import pytest
import torch

import antembed as ant
from antembed.baselines.sparse_code import sparse_codes

V, K, f, d = 50, 8, 12, 6


def features():
    F = torch.randn(V, f, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    F[7] = 0  # a word that the pretrained vectors do not know
    return F


COMMON = torch.tensor([3, 10, 11, 20, 21, 30, 40, 49])


def test_codes_are_at_the_minimum():
    """KKT: the gradient is 0 where t > 0, and ≥ 0 where t = 0."""
    l1, T = 0.05, sparse_codes(features(), COMMON, l1_penalty=0.05, sweeps=300)
    unit = torch.nn.functional.normalize(features())
    F = unit[COMMON]
    gradient = (T @ F - unit) @ F.T + l1
    rare = torch.ones(V, dtype=torch.bool)
    rare[COMMON] = False
    assert gradient[rare][T[rare] > 0].abs().max() < 1e-8
    assert gradient[rare][T[rare] == 0].min() > -1e-8
    assert (T >= 0).all()
    assert torch.equal(T[COMMON], torch.eye(K, dtype=torch.float64))
    assert T[7].eq(0).all()


def test_a_planted_code_is_found_and_more_price_is_fewer_words():
    F = features()
    F[25] = 2 * torch.nn.functional.normalize(F[10], dim=0) + torch.nn.functional.normalize(F[40], dim=0)
    code = sparse_codes(F, COMMON, l1_penalty=1e-6, sweeps=300)[25]
    assert code.nonzero()[:, 0].tolist() == [1, 6]
    assert float(code[1] / code[6]) == pytest.approx(2, rel=1e-3)
    sizes = [int(sparse_codes(F, COMMON, l1_penalty=l1).count_nonzero()) for l1 in (0.01, 0.1, 0.3)]
    assert sizes[0] > sizes[1] > sizes[2]
    with pytest.raises(ValueError, match="2 common words are named, but only 1 different"):
        sparse_codes(F, torch.tensor([1, 1]))


@pytest.mark.parametrize("sparse", [False, True])
def test_only_the_common_vectors_are_learned(sparse):
    codes = sparse_codes(features(), COMMON).float()
    layer = ant.baselines.SparseCodeEmbedding(V, d, 2, num_anchors=K, codes=codes, sparse=sparse)
    anchors = layer.anchors.detach().clone()
    optimizer = ant.ProximalYogi(ant.param_groups(layer, l1_penalty=0.1, weight_decay=0.1))
    for _ in range(5):
        optimizer.zero_grad()
        layer(torch.arange(V)).square().sum().backward()
        optimizer.step()
    expected = codes.clone()
    expected[2] = 0
    assert torch.equal(layer.transform, expected)
    assert not torch.equal(layer.anchors, anchors)
    used = layer.usage()
    assert used.parameters == int(expected.count_nonzero()) + K * d


def test_wrong_codes():
    with pytest.raises(ValueError, match=r"codes have the shape \(5, 3\), for 6 objects of 3 common ones"):
        ant.baselines.SparseCodeEmbedding(6, d, num_anchors=3, codes=torch.zeros(5, 3))
