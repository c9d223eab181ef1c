"""The proximal operators against pyproximal, against their definition, and on the edge."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import antembed as ant
from antembed.layer.optim.prox import (
    L1,
    FreeEntries,
    GroupL2,
    NonNegativeL1,
    group_soft_threshold,
    nonnegative_soft_threshold,
    shrinks_linearly,
    soft_threshold,
)

pyproximal = pytest.importorskip("pyproximal")

amounts = st.floats(1e-6, 3)


def numbers(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@given(seed=st.integers(0, 1000), amount=amounts)
@settings(max_examples=40, deadline=None)
def test_l1_agrees_with_pyproximal(seed, amount):
    t = numbers(seed, 30)
    expected = pyproximal.L1(sigma=1.0).prox(t.numpy(), amount)
    np.testing.assert_allclose(soft_threshold(t, amount).numpy(), expected, atol=1e-12)


@given(seed=st.integers(0, 1000), amount=amounts)
@settings(max_examples=40, deadline=None)
def test_nonnegative_l1_agrees_with_pyproximal(seed, amount):
    # prox of amount·x over x ≥ 0 is the projection onto x ≥ 0 of t − amount
    t = numbers(seed, 30)
    expected = pyproximal.Box(lower=0.0).prox(t.numpy() - amount, 1.0)
    np.testing.assert_allclose(nonnegative_soft_threshold(t, amount).numpy(), expected, atol=1e-12)


@given(seed=st.integers(0, 1000), amount=st.floats(0.01, 3))
@settings(max_examples=40, deadline=None)
def test_group_norm_agrees_with_pyproximal_row_by_row(seed, amount):
    t = numbers(seed, 5, 8)
    ours = group_soft_threshold(t, amount)
    for row, mine in zip(t.numpy(), ours.numpy(), strict=True):
        np.testing.assert_allclose(mine, pyproximal.Euclidean(sigma=1.0).prox(row, amount), atol=1e-12)


@given(seed=st.integers(0, 1000))
@settings(max_examples=40, deadline=None)
def test_group_norm_in_a_diagonal_metric_is_the_minimiser(seed):
    t, amount = numbers(seed, 6, 5) * 2, 10.0 ** (numbers(seed + 1, 6, 5) * 3 - 1)  # over many orders of magnitude
    x = group_soft_threshold(t, amount)

    def objective(y):
        return ((y - t).square() / (2 * amount)).sum(-1) + y.norm(dim=-1)

    for trial in range(30):
        nearby = x + numbers(trial, 6, 5) * amount.clamp(max=1) * 10.0 ** -(trial % 6)
        assert (objective(x) <= objective(nearby) * (1 + 1e-9) + 1e-9).all()


def test_group_norm_with_equal_amounts_is_the_plain_one():
    t = numbers(0, 20, 6)
    torch.testing.assert_close(group_soft_threshold(t, torch.full_like(t, 0.7)), group_soft_threshold(t, 0.7))


def test_group_norm_of_a_zero_row_is_zero():
    assert group_soft_threshold(torch.zeros(3, 4), 0.5).eq(0).all()
    assert group_soft_threshold(torch.zeros(3, 4), torch.full((3, 4), 0.5)).eq(0).all()


def test_free_entries_are_not_shrunk_but_clamped():
    free = FreeEntries(torch.tensor([0, 2]), torch.tensor([1, 0]), (3, 2))
    t = torch.tensor([[0.5, 0.5], [0.5, 0.5], [-0.5, 0.5]])
    shrunk = NonNegativeL1(1.0, free)(t, 0.2)
    torch.testing.assert_close(shrunk, torch.tensor([[0.3, 0.5], [0.3, 0.3], [0.0, 0.3]]))
    torch.testing.assert_close(L1(1.0, free)(t, 0.2)[2], torch.tensor([-0.5, 0.3]))


def test_penalties_leave_free_entries_out():
    free = FreeEntries(torch.tensor([0]), torch.tensor([0]), (2, 2))
    t = torch.tensor([[10.0, 1.0], [2.0, 3.0]])
    assert NonNegativeL1(0.5, free).penalty(t).item() == pytest.approx(3.0)
    assert GroupL2(2.0).penalty(torch.tensor([[3.0, 4.0]])).item() == pytest.approx(10.0)


def test_free_entries_drop_duplicates_and_give_rows():
    free = FreeEntries(torch.tensor([4, 1, 4, 1]), torch.tensor([0, 2, 0, 1]), (5, 3))
    assert len(free) == 3
    mask = torch.zeros(5, 3, dtype=torch.bool)
    mask[4, 0] = mask[1, 2] = mask[1, 1] = True
    assert torch.equal(free.mask(), mask)
    rows = torch.tensor([1, 0, 4, 1])
    assert torch.equal(free.mask(rows), mask[rows])


@pytest.mark.parametrize(
    ("objects", "anchors", "text"),
    [([5], [0], "object 5, but there are 5"), ([0], [3], "anchor 3"), ([-1, 2], [0, 0], "object -1")],
)
def test_free_entries_outside_the_table(objects, anchors, text):
    with pytest.raises(ValueError, match=text):
        FreeEntries(torch.tensor(objects), torch.tensor(anchors), (5, 3))


def test_free_entries_of_another_table():
    free = FreeEntries(torch.tensor([0]), torch.tensor([0]), (2, 2))
    with pytest.raises(ValueError, match=r"\(2, 2\), this one is \(3, 2\)"):
        NonNegativeL1(0.1, free)(torch.ones(3, 2), 1.0)


@pytest.mark.parametrize("strength", [-1.0, float("nan")])
def test_a_negative_strength_is_an_error(strength):
    with pytest.raises(ValueError, match="must be ≥ 0"):
        NonNegativeL1(strength)


def test_an_operator_of_ones_own_is_not_taken_for_the_usual_one():
    """Lazy rows and the fused engine know NonNegativeL1's closed form; a subclass with its own operator is dense."""

    @dataclass
    class Halved(NonNegativeL1):
        def __call__(self, t, step):
            return super().__call__(t, step) / 2

    assert shrinks_linearly(None)
    assert shrinks_linearly(NonNegativeL1(0.1))
    assert not shrinks_linearly(Halved(0.1))
    layer = ant.AnchorEmbedding(5, 2, num_anchors=3, sparse=True)
    groups = layer.param_groups(0.0)
    groups[0]["prox"] = Halved(0.0)
    optimizer = ant.ProximalYogi(groups, lr=0.0)
    before = layer.transform.detach().clone()
    layer(torch.tensor([0])).sum().backward()
    optimizer.step()
    torch.testing.assert_close(layer.transform, before / 2)  # all rows, not only the one that was read
