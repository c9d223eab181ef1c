"""Negative pairs and orthogonality against the plain double loop; the sampler never returns a related pair."""

import numpy as np
import pytest
import torch

import antembed as ant
from antembed.data.relations import from_pairs
from antembed.layer.anchors.regularizers import UnrelatedPairs, negative_pairs, orthogonality

V, K = 40, 5


def relations(density=0.3, seed=0):
    u, v = np.nonzero(np.random.default_rng(seed).random((V, V)) < density)
    return from_pairs(u, v, V)


def test_negative_pairs_are_the_double_loop_and_differentiable():
    t = torch.randn(V, K, dtype=torch.float64, requires_grad=True)
    u, v = torch.tensor([1, 4, 4, 9]), torch.tensor([2, 3, 3, 1])
    x = t.detach().abs()
    plain = sum(float(x[a, k] * x[b, k]) for a, b in zip(u, v, strict=True) for k in range(K))
    assert negative_pairs(t[u], t[v]).item() == pytest.approx(plain)
    assert torch.autograd.gradcheck(lambda t: negative_pairs(t[u], t[v]), t)
    assert negative_pairs(torch.eye(2)[:1], torch.eye(2)[1:]) == 0


@pytest.mark.parametrize("cosine", [False, True])
def test_orthogonality_is_the_double_loop_and_differentiable(cosine):
    A = torch.randn(K, 3, dtype=torch.float64, requires_grad=True)
    rows = [a / a.norm() if cosine else a for a in A.detach()]
    plain = sum(abs(float(rows[i] @ rows[j])) for i in range(K) for j in range(K) if i != j)
    assert orthogonality(A, cosine=cosine).item() == pytest.approx(plain)
    assert torch.autograd.gradcheck(lambda A: orthogonality(A, cosine=cosine), A)
    assert orthogonality(3 * torch.eye(4), cosine=cosine) == 0


def test_only_the_raw_form_depends_on_the_scale():
    A = torch.randn(K, 8, dtype=torch.float64)
    assert orthogonality(3 * A) == pytest.approx(9 * orthogonality(A))
    assert orthogonality(3 * A, cosine=True) == pytest.approx(orthogonality(A, cosine=True))
    A[0] = 0.0
    assert orthogonality(A, cosine=True).isfinite()


@pytest.mark.parametrize("among", [None, np.arange(0, V, 2), torch.tensor([0, 1, 5, 5, 5, 17, 20, 33, 38])])
def test_no_pair_is_related(among):
    matrix = relations()
    related = matrix.toarray() > 0
    pairs = UnrelatedPairs(matrix, seed=3)
    allowed = set(range(2, V)) if among is None else {int(i) for i in among} - {0, 1}
    for step in range(50):
        u, v = (side.numpy() for side in pairs(64, step, among))
        assert len(u) == len(v) == 64
        assert not related[u, v].any()
        assert (u != v).all()
        assert {*u, *v} <= allowed


def test_every_unrelated_pair_is_as_likely_as_any():
    matrix = relations()
    u, v = UnrelatedPairs(matrix)(200_000, 0)
    seen = np.zeros((V, V))
    np.add.at(seen, (u, v), 1)
    free = matrix.toarray() == 0
    np.fill_diagonal(free, False)
    free[:2], free[:, :2] = False, False
    np.testing.assert_allclose(seen[free] / 200_000, 1 / free.sum(), rtol=0.35)


def test_a_step_draws_the_same_whenever_it_is_done():
    pairs, others = UnrelatedPairs(relations(), seed=1), UnrelatedPairs(relations(), seed=2)
    first = torch.stack(pairs(20, 7))
    pairs(20, 8)
    assert torch.equal(first, torch.stack(pairs(20, 7)))
    assert not torch.equal(first, torch.stack(pairs(20, 8)))
    assert not torch.equal(first, torch.stack(others(20, 7)))


def test_one_way_relations_are_two_way():
    matrix = relations(0.9)
    one_way = matrix.copy()
    one_way.data[one_way.indices < np.repeat(np.arange(V), np.diff(one_way.indptr))] = 0
    one_way.eliminate_zeros()
    assert one_way.nnz < matrix.nnz
    assert torch.equal(torch.stack(UnrelatedPairs(one_way)(9, 0)), torch.stack(UnrelatedPairs(matrix)(9, 0)))


def test_where_all_are_related_there_is_nothing_to_draw():
    pairs = UnrelatedPairs(from_pairs([5], [6], V))
    with pytest.raises(ValueError, match=r"only 0 of 3 unrelated pairs were found among 2 objects"):
        pairs(3, 0, np.array([5, 6]))
    with pytest.raises(ValueError, match=r"among 0 objects"):
        pairs(3, 0, np.array([0, 1]))
    assert UnrelatedPairs(from_pairs([], [], V))(5, 0)[0].shape == (5,)


def test_negative_pairs_part_the_unrelated():
    """Two groups, related within: trained with nothing but the penalty and a wish to be long, they share no anchor."""
    group = np.arange(V) % 2
    matrix = from_pairs(*np.nonzero(group[:, None] == group[None, :]), V)
    pairs = UnrelatedPairs(matrix, reserved=0)
    layer = ant.AnchorEmbedding(V, 4, num_anchors=4)
    with torch.no_grad():
        layer.rows.weight.copy_(0.5 + 0.1 * torch.rand(V, 4))
        layer.rows.weight[:, :2] += 0.2 * torch.from_numpy(group)[:, None]
        layer.rows.weight[:, 2:] += 0.2 * (1 - torch.from_numpy(group))[:, None]
    torch.set_num_threads(1)
    optimizer = ant.ProximalYogi(layer.param_groups(l1_penalty=0.0), lr=0.02)
    for step in range(200):
        optimizer.zero_grad()
        u, v = pairs(64, step)
        length = (layer.rows.weight.sum(1) - 1).square().sum()
        (length + negative_pairs(layer.rows(u), layer.rows(v))).backward()
        optimizer.step()
    used = torch.stack([layer.transform[group == g].amax(0) > 0.05 for g in (0, 1)])
    assert used.any(1).all()
    assert not used.all(0).any()
