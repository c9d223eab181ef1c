"""Appendix I of the paper: what Anchor & Transform becomes with T fixed, without a penalty, and with one free entry a row."""

import torch

import antembed as ant
from antembed.baselines.low_rank import NonnegativeLowRank
from antembed.layer.optim.prox import FreeEntries, NonNegativeL1

V, d = 40, 6


def fit(groups, vectors, target, steps=200):
    torch.set_num_threads(1)  # tables this small are faster so, on a busy machine many times
    optimizer = ant.optim.ProximalSGD(groups, lr=0.5)
    for _ in range(steps):
        optimizer.zero_grad()
        ((vectors() - target).square().sum() / 2 / len(target)).backward()
        optimizer.step()


def test_a_fixed_transform_is_vocabulary_selection():
    """T[a, a] = 1 for the K most frequent and 0 otherwise, only A learned: a table that has rows for those alone."""
    torch.manual_seed(0)
    target, K = torch.randn(V, d), 10
    frequent = torch.randperm(V)[:K]
    codes = torch.zeros(V, K)
    codes[frequent, torch.arange(K)] = 1
    ours = ant.baselines.SparseCodeEmbedding(V, d, num_anchors=K, codes=codes)
    plain = ant.baselines.FullEmbedding(K, d)
    with torch.no_grad():
        plain.rows.weight.copy_(ours.anchors)
    own = torch.zeros(V, dtype=torch.long)
    own[frequent] = torch.arange(K)
    known = codes.any(dim=1, keepdim=True)
    everybody = torch.arange(V)
    fit(ours.param_groups(l1_penalty=0.1), lambda: ours(everybody), target)
    fit(plain.param_groups(), lambda: plain(own) * known, target)
    selected = (plain(own) * known).detach()
    torch.testing.assert_close(ours(everybody).detach(), selected)
    assert torch.equal(ours.transform, codes)
    assert (selected[frequent] - target[frequent]).norm() < 0.2 * target[frequent].norm()
    assert ours.usage().parameters == K * d + K


def test_one_anchor_a_set_without_a_penalty_is_low_rank():
    """The mixture trained with λ2 = 0 is U·W of rank M with U ≥ 0, step by step."""
    torch.manual_seed(0)
    M, target = 3, torch.rand(V, 3) @ torch.randn(3, d)
    mixture = ant.baselines.MixtureEmbedding(V, d, num_anchors=(1,) * M)
    low = NonnegativeLowRank(V, d, num_anchors=M)
    with torch.no_grad():
        low.rows.weight.copy_(torch.cat([table.weight for table in mixture.tables], 1))
        low.anchors.copy_(torch.cat(list(mixture.anchors)))
    everybody = torch.arange(V)
    start = (mixture(everybody).detach() - target).norm()
    for layer in (mixture, low):
        fit(layer.param_groups(l1_penalty=0.0), lambda layer=layer: layer(everybody), target, steps=300)
    torch.testing.assert_close(mixture.to_dense(), low.to_dense(), atol=1e-4, rtol=1e-4)
    assert torch.linalg.matrix_rank(mixture.to_dense().detach().double(), rtol=1e-5) == M
    assert (mixture(everybody).detach() - target).norm() < 0.5 * start


def test_one_free_entry_a_row_with_a_huge_price_is_a_compositional_code():
    """In each set an object ends with its one free anchor: E_i = Σ_m t·A_m[code_m(i)]."""
    torch.manual_seed(0)
    M, K = 2, 4
    codes = torch.randint(0, K, (V, M))
    layer = ant.baselines.MixtureEmbedding(V, d, num_anchors=(K,) * M)
    groups = layer.param_groups(l1_penalty=1e3)
    for m, group in enumerate(groups[:M]):
        group["prox"] = NonNegativeL1(1e3, FreeEntries(torch.arange(V), codes[:, m], (V, K)))
    everybody, books = torch.arange(V), torch.rand(M, K, d)
    target = sum(books[m][codes[:, m]] for m in range(M))
    fit(groups, lambda: layer(everybody), target)
    for m, table in enumerate(layer.tables):
        used = table.current != 0
        assert torch.equal(used.sum(1), torch.ones(V, dtype=torch.long))
        assert torch.equal(used.int().argmax(1), codes[:, m])
    composed = sum(
        table.current[everybody, codes[:, m]].unsqueeze(1) * layer.anchors[m][codes[:, m]]
        for m, table in enumerate(layer.tables)
    )
    torch.testing.assert_close(layer(everybody), composed)
    assert (composed - target).norm() < 0.2 * target.norm()  # the books are learned
    assert layer.usage().nnz == V * M
