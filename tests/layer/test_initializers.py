"""Which objects become anchors: every way seeded, K different objects, never padding or unknown; and what each is for."""

from dataclasses import replace

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

from antembed.data.vocabulary import Vocabulary
from antembed.layer.anchors.initializers import (
    INITIALIZERS,
    ObjectStatistics,
    choose_anchors,
    coreset,
    coreset_spread,
    frequency_kmeans,
    kmeans,
    kmeans_plus_plus,
    scores,
    survivors,
)

V = 120


def statistics(**more):
    rng = np.random.default_rng(3)
    counts = rng.permutation(V) + 1
    counts[:2] = 10 * V  # padding and unknown are the most frequent
    document_counts = np.minimum(counts, 1 + rng.integers(0, 50, V))
    features = rng.standard_normal((V, 5))
    features[[5, 9]] = 0.0
    return ObjectStatistics(counts, document_counts, 60, features, rng.random(V) + 0.1, **more)


def islands(rng, per_island=30, islands=4):
    centres = 20 * np.eye(islands)
    return np.concatenate([np.ones((2, islands)), np.repeat(centres, per_island, 0) + rng.standard_normal((4 * per_island, 4))])


@pytest.mark.parametrize("K", [1, 7, 60])
@pytest.mark.parametrize("name", INITIALIZERS)
def test_every_choice_keeps_the_contract(name, K):
    ids = choose_anchors(name, statistics(), K, seed=1)
    assert ids.shape == (K,)
    assert ids.dtype == np.int64
    assert len(set(ids)) == K
    assert ids.min() >= 2
    assert ids.max() < V
    np.testing.assert_array_equal(ids, choose_anchors(name, statistics(), K, seed=1))


@pytest.mark.parametrize("name", ["kmeans", "frequency-kmeans", "random", "coreset"])
def test_another_seed_gives_others(name):
    assert set(choose_anchors(name, statistics(), 20, seed=1)) != set(choose_anchors(name, statistics(), 20, seed=2))


@pytest.mark.parametrize("name", INITIALIZERS)
def test_more_anchors_than_objects_are_refused(name):
    with pytest.raises(ValueError, match=rf"{V} anchors cannot be chosen from 11[68] "):
        choose_anchors(name, statistics(), V)


def test_names_and_needs_are_said():
    with pytest.raises(ValueError, match="unknown choice of anchors 'best'; there are frequency, tf-idf"):
        choose_anchors("best", statistics(), 3)
    with pytest.raises(ValueError, match="needs features, and there are none"):
        choose_anchors("kmeans", ObjectStatistics(counts=np.ones(9)), 3)
    with pytest.raises(ValueError, match="unknown score 'best'; choose frequency or tf-idf"):
        scores(Vocabulary([], np.ones(3), np.ones(3), 1), "best")


@pytest.mark.parametrize("name", INITIALIZERS)
def test_what_is_required_is_what_is_used(name):
    """With just what it requires (and a number of objects) it works, without any of it it says what is missing."""
    full, required = statistics(), INITIALIZERS[name].requires
    given = {field: getattr(full, field) for field in required | {"counts"}}
    only = ObjectStatistics(**given, documents=60 if "document_counts" in required else None)
    assert len(choose_anchors(name, only, 5)) == 5
    for field in required:
        with pytest.raises(ValueError, match=f"needs {field}, and there are none; give {field}"):
            choose_anchors(name, replace(only, **{field: None}), 5)


def test_frequency_is_the_most_frequent_and_of_equal_ones_the_first():
    counts = np.array([99, 99, 3, 7, 7, 1])
    assert choose_anchors("frequency", ObjectStatistics(counts=counts), 3).tolist() == [3, 4, 2]
    assert choose_anchors("frequency", ObjectStatistics(counts=counts, reserved=0), 3).tolist() == [0, 1, 3]


def test_tf_idf_passes_over_words_that_are_everywhere():
    words = ["<pad>", "<unk>", "the", "goal", "said"]
    vocabulary = Vocabulary(words, np.array([0, 9, 100, 40, 50]), np.array([0, 9, 10, 5, 9]), 10)
    expected = [-1, -1, 0, 40 * np.log(2), 50 * np.log(10 / 9)]
    np.testing.assert_allclose(scores(vocabulary, "tf-idf"), expected)
    np.testing.assert_allclose(scores(vocabulary, "frequency"), [-1, -1, 100, 40, 50])
    about = ObjectStatistics(vocabulary.counts, vocabulary.document_counts, vocabulary.documents)
    assert choose_anchors("tf-idf", about, 2).tolist() == [3, 4]


@pytest.mark.parametrize("seed", range(5))
def test_kmeans_takes_one_of_each_island(seed):
    features = islands(np.random.default_rng(seed))
    assert sorted((kmeans(features, 4, seed) - 2) // 30) == [0, 1, 2, 3]


def test_kmeans_takes_the_object_nearest_to_the_centre():
    features = np.array([[9.0, 9], [9, 9], [1, 0], [2, 0], [3, 0], [100, 1], [101, 1], [102, 1]])
    assert kmeans(features, 2, 0).tolist() == [3, 6]


def test_centres_that_share_their_nearest_object_get_different_ones():
    features = np.repeat([[1.0, 0.0], [0.0, 5.0]], 5, axis=0)  # fewer places than anchors
    with pytest.warns(ConvergenceWarning, match="distinct clusters"):
        ids = kmeans(features, 4, 0)
    assert len(set(ids)) == 4


@pytest.mark.parametrize("seed", range(5))
def test_what_comes_after_the_frequent_is_far_from_them(seed):
    features = islands(np.random.default_rng(seed))
    counts = np.ones(len(features))
    counts[[2, 40]] = 50, 60  # of the first two islands
    ids = frequency_kmeans(counts, features, 4, seed)
    assert ids[:2].tolist() == [40, 2]
    assert sorted((ids[2:] - 2) // 30) == [2, 3]


def test_kmeans_plus_plus_draws_by_squared_distance():
    points = np.array([[0.0], [1.0], [3.0]])
    rng = np.random.default_rng(0)
    second = [kmeans_plus_plus(points, 2, np.array([0]), rng)[1] for _ in range(2000)]
    np.testing.assert_allclose(np.bincount(second, minlength=3) / 2000, [0, 0.1, 0.9], atol=0.03)


def test_copies_of_a_point_are_still_different_objects():
    points = np.ones((6, 2))
    assert sorted(kmeans_plus_plus(points, 6, np.array([4]), np.random.default_rng(0))) == list(range(6))


def test_the_coreset_is_drawn_half_evenly_half_by_distance_from_the_mean():
    points = np.array([[0.0, 0], [0, 0], [0, 0], [4, 0]])
    np.testing.assert_allclose(coreset_spread(points), 0.125 + 0.5 * np.array([1, 1, 1, 9]) / 12)
    np.testing.assert_allclose(coreset_spread(np.ones((5, 3))), 0.2)
    features = np.concatenate([np.ones((2, 2)), points + 1])
    first = [coreset(features, 1, seed)[0] for seed in range(2000)]
    np.testing.assert_allclose(np.bincount(first, minlength=6)[2:] / 2000, coreset_spread(points), atol=0.04)


def test_those_who_did_not_survive_are_no_anchors():
    values = np.array([5.0, 5, 0, 2, 0, 3])
    assert survivors(values, 2).tolist() == [5, 3]
    with pytest.raises(ValueError, match="3 anchors cannot be chosen from 2 survivors"):
        survivors(values, 3)
