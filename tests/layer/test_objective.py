"""The objective of SPEC §1, the paper's Appendix L as arithmetic, and the prior it comes from."""

import math

import numpy as np
import pytest

import antembed as ant
from antembed.layer.growth_rule import log_probability, nbant_objective, penalties, sample_ibp, small_variance_limit

# |A|, perplexity, nnz(T), λ2, then the objective for λ1 = 2e-5, 1e-4, 1e-1, as printed
APPENDIX_L = [
    (2000, 77.7, 245_000, 1e-6, 4.64, 4.80, 204.6),
    (1000, 79.4, 214_000, 1e-6, 4.61, 4.69, 104.6),
    (500, 84.5, 171_000, 1e-6, 4.62, 4.66, 54.6),
    (100, 106.6, 25_000, 1e-5, 4.92, 4.93, 14.9),
]


@pytest.mark.parametrize(("column", "lambda1", "tolerance"), [(4, 2e-5, 0.006), (5, 1e-4, 0.006), (6, 1e-1, 0.06)])
def test_appendix_l_adds_up(column, lambda1, tolerance):
    for row in APPENDIX_L:
        K, perplexity, nnz, lambda2 = row[:4]
        assert nbant_objective(math.log(perplexity), nnz, K, lambda1, lambda2) == pytest.approx(row[column], abs=tolerance)


@pytest.mark.parametrize(("lambda1", "chosen"), [(2e-5, 1000), (1e-4, 500), (1e-1, 100)])
def test_appendix_l_chooses_the_models_printed_in_bold(lambda1, chosen):
    assert min(APPENDIX_L, key=lambda r: nbant_objective(math.log(r[1]), r[2], r[0], lambda1, r[3]))[0] == chosen


def test_penalties_are_read_from_the_groups():
    layer = ant.AnchorEmbedding(5, 2, num_anchors=3)
    optimizer = ant.ProximalYogi(layer.param_groups(l1_penalty=0.5))
    assert penalties(optimizer) == pytest.approx(0.5 * layer.transform.sum().item())
    optimizer.param_groups[0]["prox"].strength = 0.25
    assert penalties(optimizer) == pytest.approx(0.25 * layer.transform.sum().item())
    assert penalties(optimizer, 2.0) == pytest.approx(2 * layer.transform.sum().item())
    assert optimizer.param_groups[0]["prox"].strength == 0.25


@pytest.mark.parametrize(("a", "b"), [(0.7, 1.0), (0.7, 1.3), (0.4, 2.5)])
def test_the_prior_sums_to_one(a, b):
    """Two objects: a class of matrices is a count of the columns (1,0), (0,1) and (1,1)."""
    total = 0.0
    for n10, n01, n11 in np.ndindex(14, 14, 14):
        columns = [[1, 0]] * n10 + [[0, 1]] * n01 + [[1, 1]] * n11
        total += math.exp(log_probability(np.array(columns, np.int8).reshape(-1, 2).T, math.log(a), math.log(b)))
    assert total == pytest.approx(1, abs=1e-9)


@pytest.mark.parametrize(("a", "b"), [(1.5, 1.0), (1.5, 3.0)])
def test_samples_have_the_moments_of_the_process(a, b):
    rng = np.random.default_rng(0)
    V, samples = 12, [sample_ibp(12, a, b, rng=rng) for _ in range(3000)]
    per_object = np.mean([Z.sum(axis=1) for Z in samples], axis=0)
    np.testing.assert_allclose(per_object, a, rtol=0.1)  # every object has Poisson(a) anchors
    anchors = a * b * sum(1 / (b + j) for j in range(V))
    assert np.mean([Z.shape[1] for Z in samples]) == pytest.approx(anchors, rel=0.05)
    assert all(Z.any(axis=0).all() for Z in samples)


def test_samples_follow_the_log_probability():
    """The frequency of a class of small matrices is its probability."""
    rng, a, b = np.random.default_rng(1), 0.6, 1.7
    samples = [sample_ibp(2, a, b, rng=rng) for _ in range(20_000)]
    for columns in ([], [[1, 1]], [[1, 0], [0, 1]]):
        Z = np.array(columns, np.int8).reshape(-1, 2).T
        same = [sorted(map(tuple, S.T.tolist())) == sorted(map(tuple, Z.T.tolist())) for S in samples]
        assert np.mean(same) == pytest.approx(math.exp(log_probability(Z, math.log(a), math.log(b))), abs=0.012)


def test_the_small_variance_limit_is_the_objective():
    Z = sample_ibp(9, 2.0, 1.5, rng=np.random.default_rng(3))
    lambda1, lambda2 = 0.3, 0.1
    limit = small_variance_limit(Z, lambda1, lambda2)
    assert -limit == pytest.approx(nbant_objective(0.0, int(Z.sum()), Z.shape[1], lambda1, lambda2))
    gaps = [abs(log_probability(Z, -beta * lambda1, beta * lambda2) / beta - limit) for beta in (50, 200, 800, 3200)]
    assert gaps == sorted(gaps, reverse=True)
    assert gaps[-1] < 0.01


def test_log_probability_ignores_empty_columns_and_their_order():
    Z = np.array([[1, 0, 1], [1, 1, 0]], np.int8)
    padded = np.concatenate([np.zeros((2, 1), np.int8), Z[:, ::-1]], axis=1)
    assert log_probability(Z, 0.1, 0.2) == pytest.approx(log_probability(padded, 0.1, 0.2))


def test_log_probability_does_not_overflow():
    Z = np.array([[1, 0, 1], [1, 1, 0]], np.int8)
    assert log_probability(Z, -3000.0, 1000.0) / 1000 == pytest.approx(small_variance_limit(Z, 3.0, 1.0), rel=1e-3)
