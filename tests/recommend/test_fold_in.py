"""A user whose row is empty gets a vector from what the user has rated, by the row problem of coordinate descent."""

import json
import warnings
from itertools import pairwise

import numpy as np
import polars as pl
import pytest
from scipy.optimize import nnls
from tests.command import call
from typer.testing import CliRunner

import antembed as ant
from antembed.cli.app import app
from antembed.recommend.descent import Descent
from antembed.recommend.factor import Penalties
from antembed.recommend.fold_in import FoldIn, Ridges
from antembed.recommend.predictor import RatingTables
from antembed.tables.model_folder import RunError
from antembed.tables.save import read_table, serialize

EMPTY = ("--solver", "coordinate_descent", "--anchors", 6, "--embedding-dim", 4, "--ridge", 1, "--epochs", 8)


def tables(seed=0, d=3, K=5):
    """Users' anchors, and items with vectors and biases."""
    rng = np.random.default_rng(seed)
    A, T = rng.standard_normal((K, d)), np.abs(rng.standard_normal((4, K)))
    E, bias = rng.standard_normal((12, d)), rng.standard_normal(12)
    users = read_table(serialize(T.astype(np.float32), A.astype(np.float32)))
    items = read_table(serialize(E.astype(np.float32), None, bias=bias.astype(np.float32), offset=3.5))
    return users, items


def rated(seed=1, n=(9, 1, 6)):
    rng = np.random.default_rng(seed)
    items = np.concatenate([rng.choice(12, size, replace=False) for size in n])
    return np.concatenate([[0], np.cumsum(n)]), items, rng.normal(3.5, 1, len(items)), rng.uniform(0.5, 2, len(items))


@pytest.mark.parametrize("weighted", [False, True])
def test_it_is_the_minimum_that_scipy_finds(weighted):
    users, items = tables()
    starts, which, ratings, weights = rated()
    ridges = Ridges(0.7, 0.1, 0.3)
    vectors, biases = FoldIn(users, items, ridges)(starts, which, ratings, weights if weighted else None)
    for u, (a, b) in enumerate(pairwise(starts)):
        scale = np.sqrt(weights[a:b] if weighted else np.ones(b - a))
        E, y = items[which[a:b]].astype(float), ratings[a:b] - items.bias_of(which[a:b])
        features, ridge = E @ users.anchors.T, np.sqrt(ridges.vector + ridges.per_rating * (b - a))
        # The bias is free: a column each for its positive and its negative part.
        rows = scale[:, None] * np.column_stack([features, np.ones(b - a), -np.ones(b - a)])
        d, K = users.embedding_dim, len(users.anchors)
        of_vector = ridge * np.column_stack([users.anchors.T, np.zeros((d, 2))])
        of_bias = np.sqrt(ridges.bias) * np.array([[*np.zeros(K), 1.0, -1.0]])
        found, _ = nnls(np.vstack([rows, of_vector, of_bias]), np.concatenate([scale * y, np.zeros(d + 1)]))
        np.testing.assert_allclose(vectors[u], found[:K] @ users.anchors, atol=1e-4)
        assert biases[u] == pytest.approx(found[K] - found[K + 1], abs=1e-4)


def test_it_is_the_row_that_coordinate_descent_finds_with_unobserved_pairs():
    """Events: all pairs count a little."""
    users, items = tables()
    starts, which, ratings, weights = rated(n=(7, 4))
    ids = np.repeat([0, 1], np.diff(starts))
    penalties = Penalties(0.0, 0.7, 0.1, 0.3, unobserved_weight=0.05)
    descent = Descent((ids, which, ratings, weights), (2, 12), (5, 1), 3, penalties, sweeps=1)
    everything = np.arange(12)
    descent.mean = float(items.offset)
    descent.items.E, descent.items.bias = items[:].astype(float), items.bias_of(everything) - items.offset
    descent.users.A, descent.users.T = users.anchors.astype(float), np.zeros((2, 5))
    for _ in range(300):
        descent.descend_rows(descent.users, 0.0)
    vectors, biases = FoldIn(users, items, Ridges(0.7, 0.1, 0.3, 0.05))(starts, which, ratings, weights)
    np.testing.assert_allclose(vectors, descent.users.E, atol=1e-4)
    np.testing.assert_allclose(biases, descent.users.bias, atol=1e-4)


def test_full_tables_get_the_ridge_solution_and_models_without_biases_none():
    _, items = tables()
    users = read_table(serialize(np.zeros((2, 3), np.float32), None))
    starts, which, ratings, _ = rated(n=(8,))
    vectors, biases = FoldIn(users, items, Ridges(0.7, 0.0, None))(starts, which, ratings)
    E, y = items[which].astype(float), ratings - items.bias_of(which)
    np.testing.assert_allclose(vectors[0], np.linalg.solve(E.T @ E + 0.7 * np.eye(3), E.T @ y), atol=1e-4)
    assert biases.tolist() == [0]


def test_ridges_are_those_of_the_run():
    ratings = np.array([1.0, 5.0])
    penalties = {"ridge": 1, "ridge_per_rating": 2, "bias_ridge": 3}
    config = {"task": "recommend", "solver": {"penalties": penalties}, "tables": {"biases": False}}
    assert Ridges.of(config, ratings, (1, 2)) == Ridges(1, 2, None)
    events = config | {"task": "recommend-events", "tables": {"biases": True}}
    assert Ridges.of(events, ratings, (100, 100)) == Ridges(1, 2, 3, 0.004)
    stochastic = config | {"solver": {"l2_penalty": None, "l2_per_rating": 0.5, "bias_l2_penalty": None}}
    assert Ridges.of(stochastic, ratings, (1, 2)) == Ridges(12.6, 0.5, None)
    with pytest.raises(RunError, match=r"config\.json has no ridges"):
        Ridges.of({"task": "recommend"}, ratings, (1, 2))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Users 0–19 have few ratings, so that the penalty leaves some of them empty; the others have many. Two tastes."""
    home = tmp_path_factory.mktemp("empty")
    rng = np.random.default_rng(0)
    users = np.concatenate([np.repeat(np.arange(20), 10), np.repeat(np.arange(20, 60), 25)])
    items = np.concatenate([rng.choice(40, 10 if user < 20 else 25, replace=False) for user in range(60)])
    ratings = 3 + 1.2 * np.where(users % 2 == items % 2, 1, -1) + 0.2 * rng.standard_normal(len(users))
    pl.DataFrame({"user": users, "item": items, "rating": ratings.round(1)}).write_csv(home / "r.csv")
    shown = call("train", "recommend", home / "r.csv", "--out", home / "run", *EMPTY, "--l0-penalty", 5)
    call("export", home / "run", home / "small")
    return home, shown


def test_a_user_with_ratings_is_not_answered_as_a_stranger(run):
    home, _ = run
    tables = RatingTables.load(home / "run")
    empty = np.flatnonzero(~tables.users[:].any(1))
    assert 0 < len(empty) < 60
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = tables.recommend(empty.tolist(), k=3)
    right = found.filter(pl.col("user") % 2 == pl.col("item") % 2)
    assert len(right) > 0.8 * len(found)  # of the user's own taste
    np.testing.assert_allclose(found["score"], tables.predict(found["user"], found["item"]), atol=1e-5)
    assert ant.Recommender.load(home / "run").recommend(empty.tolist(), k=3).equals(found)
    user = str(empty[0])
    asked = CliRunner().invoke(app, ["recommend", str(home / "run"), user, "--items", "3", "--json"])
    assert asked.stderr == ""
    assert [row["item"] for row in json.loads(asked.stdout)] == found.filter(pl.col("user") == empty[0])["item"].to_list()


def test_held_out_ratings_are_not_used(run, tmp_path):
    """`predict` on the test part would know the answers."""
    home, _ = run
    tables = RatingTables.load(home / "run")
    held = np.isnan(tables.seen.ratings)
    assert held.sum() == round(0.2 * len(held))
    empty = np.flatnonzero(~tables.users[:].any(1))
    starts, items, ratings, _ = tables.seen.training(empty)
    assert starts[-1] == len(items) == len(ratings) < sum(np.diff(tables.seen.starts)[empty])
    assert np.isfinite(ratings).all()


def test_an_export_without_ratings_says_that_it_cannot(run):
    home, _ = run
    empty = int(np.flatnonzero(~RatingTables.load(home / "run").users[:].any(1))[0])
    asked = CliRunner().invoke(app, ["recommend", str(home / "small"), str(empty), "nobody", "--seen", "--items", "4"])
    assert asked.stderr.splitlines() == [
        "user 'nobody' is unknown here: the list is by popularity",
        f"user '{empty}' is without a vector, and this folder has no ratings to compute one from (the run's own folder has): "
        "the list is by popularity",
    ]
    with pytest.warns(UserWarning, match=f"^user {empty} is without a vector, and this folder has no ratings"):
        found = ant.Recommender.load(home / "small").recommend([empty], k=4, filter_seen=False)
    counts = pl.read_csv(home / "r.csv").group_by("item").len().sort(["len", "item"], descending=[True, False])
    assert found["item"].to_list() == counts["item"].head(4).to_list()
    with pytest.warns(UserWarning, match="^items that users have rated are not filtered: this folder does not hold them"):
        ant.Recommender.load(home / "small").recommend([59], k=4)


def test_results_count_empty_rows(run):
    home, shown = run
    result = json.loads((home / "run" / "result.json").read_text())
    tables = RatingTables.load(home / "run")
    empty = {"users": int((~tables.users[:].any(1)).sum()), "items": int((~tables.items[:].any(1)).sum())}
    assert result["empty_rows"] == empty
    assert f"rows without a vector: users {empty['users']} of 60, items {empty['items']} of 40" in shown


def test_a_saved_recommender_keeps_the_ratings_unless_it_is_to_be_small(run, tmp_path):
    home, _ = run
    model = ant.Recommender.load(home / "run")
    empty = np.flatnonzero(~model.users_[:].any(1)).tolist()
    model.save(tmp_path / "all")
    assert ant.Recommender.load(tmp_path / "all").recommend(empty).equals(model.recommend(empty))
    model.save(tmp_path / "all", with_seen=False)
    assert ant.Recommender.load(tmp_path / "all").tables.seen is None
    exported = {file.name: file.stat().st_size for file in (home / "small").iterdir() if file.name != "config.json"}
    assert exported == {f.name: f.stat().st_size for f in (tmp_path / "all").iterdir() if f.name != "config.json"}
