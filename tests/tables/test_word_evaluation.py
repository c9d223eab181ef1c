"""Correlations and p-values without scipy are scipy's."""

import numpy as np
import pytest

from antembed.tables.word_evaluation import p_value, pearson, solved, spearman


@pytest.mark.parametrize("n", [2, 3, 4, 30, 353, 3000])
@pytest.mark.parametrize("noise", [0.0, 0.01, 1.0, 30.0])
def test_correlations_and_p_values(n, noise):
    stats = pytest.importorskip("scipy.stats")
    rng = np.random.default_rng(n)
    x = rng.integers(0, 20, n) + np.arange(n)  # with ties
    y = x + noise * n * rng.standard_normal(n)
    wanted = stats.pearsonr(x, y)
    assert pearson(x, y) == pytest.approx(wanted.statistic, abs=1e-12)
    assert spearman(x, y) == pytest.approx(stats.spearmanr(x, y).statistic, abs=1e-12)
    if abs(pearson(x, y)) < 1 - 1e-9:  # beyond, 1 − r² has no digits left
        assert p_value(pearson(x, y), n) == pytest.approx(wanted.pvalue, rel=1e-6, abs=1e-300)


def test_constant_numbers_have_no_correlation():
    assert np.isnan(pearson(np.ones(4), np.arange(4.0)))
    assert np.isnan(p_value(np.nan, 4))


def test_words_that_are_taken_as_one_are_left_out_together():
    unit = np.eye(4)[[0, 1, 2, 3, 1]]  # row 4 is row 1 again
    unit[3] = (unit[1] + unit[2] - unit[0]) / np.sqrt(3)
    questions = np.array([[0, 1, 2, 3]])
    assert solved(unit, questions).tolist() == [True]
    unit[3] = [0.9, 0.1, 0.1, 0.1]
    assert solved(unit, questions).tolist() == [False]  # row 4 is nearer
    assert solved(unit, questions, np.array([0, 1, 2, 3, 1])).tolist() == [True]
