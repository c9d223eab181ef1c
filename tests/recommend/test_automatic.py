"""Without options: what is searched, cached and chosen; on ratings of any scale it beats biases alone."""

import json

import numpy as np
import pytest
from tests.command import call, write_ratings
from tests.synthetic_text import write_topics

from antembed.recommend.config import RatingsConfig
from antembed.recommend.search import DenseSettings, likely_anchors
from antembed.train.configure import configure
from antembed.train.options import to_options
from antembed.train.registry import TASKS


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_ratings(tmp_path_factory.mktemp("data") / "ratings.csv")


def result_of(folder):
    return json.loads((folder / "result.json").read_text())


def test_without_options_it_beats_biases_and_is_the_same_when_the_search_is_cached(data, tmp_path):
    for name in ("first", "second"):
        call("train", "recommend", data, "--out", tmp_path / name)
    result = result_of(tmp_path / "first")
    assert result["test"]["mse"] < 0.5 * result["baselines"]["biases alone"] < result["baselines"]["the mean"]
    assert result["remarks"] == []
    assert result["tolerance"]["error"] <= result["tolerance"]["limit"]
    config = json.loads((tmp_path / "first" / "config.json").read_text())["config"]
    assert (config["solver"]["name"], config["solver"]["tolerance"]) == ("coordinate_descent", "1%")
    for file in ("users.ant", "items.ant"):
        assert (tmp_path / "first" / file).read_bytes() == (tmp_path / "second" / file).read_bytes()


def test_the_search_is_told_and_cached(data):
    said = [], []
    for lines in said:
        configure(TASKS["recommend"], {"data": str(data), "seed": 11}, lines.append)
    assert said[0][0].startswith("search, trial 1: embedding dim 8, ridge 7")
    assert "searched" in said[0][-1]
    assert len(said[1]) == 1
    assert "as found before" in said[1][0]


@pytest.mark.parametrize("scale", [pytest.param(1e-3, marks=pytest.mark.slow), 1e5])
def test_the_unit_of_the_ratings_does_not_matter(data, tmp_path, scale):
    rows = [line.split(",") for line in data.read_text().splitlines()[1:6001]]
    lines = "".join(f"{u},{i},{scale * (float(r) + 2):.9g}\n" for u, i, r in rows)
    (tmp_path / "r.csv").write_text("user,item,rating\n" + lines)
    call("train", "recommend", tmp_path / "r.csv", "--out", tmp_path / "run")
    result = result_of(tmp_path / "run")
    assert result["test"]["mse"] < 0.8 * result["baselines"]["biases alone"]


def test_few_ratings_and_long_tails_are_no_worse_than_biases(tmp_path):
    rng = np.random.default_rng(0)
    users = np.where(rng.random(4000) < 0.5, rng.integers(100, 3000, 4000), rng.integers(0, 100, 4000))  # most have one rating
    items = rng.integers(0, 300, 4000)
    ratings = np.clip(np.rint(5 + 2 * rng.standard_normal(300)[items] + rng.standard_normal(4000)), 0, 10)
    rows = "".join(f"{u},{i},{r:g}\n" for u, i, r in zip(users, items, ratings, strict=True))
    (tmp_path / "r.csv").write_text("user,item,rating\n" + rows)
    call("train", "recommend", tmp_path / "r.csv", "--out", tmp_path / "run")
    result = result_of(tmp_path / "run")
    assert result["test"]["mse"] < 1.01 * result["baselines"]["biases alone"] < 0.6 * result["baselines"]["the mean"]


@pytest.mark.parametrize(
    ("given", "solver"),
    [({"l1_penalty": 1e-3}, "stochastic"), ({"ridge": 2.0}, "coordinate_descent"), ({"epochs": 2}, "stochastic"),
     ({"embedding": "hashed"}, "stochastic"), ({"solver": "auto", "unobserved_weight": 0.1}, "coordinate_descent"),
     ({"split": "90/10"}, "stochastic")],
)  # fmt: skip
def test_options_of_a_solver_choose_it(data, given, solver):
    assert RatingsConfig.to_search(given) is None
    config, _ = configure(TASKS["recommend"], {"data": str(data)} | given)
    assert config.solver.name == solver


def test_more_room_for_an_object_has_more_dimensions_and_finer_numbers(data):
    about, splits = configure(TASKS["recommend"], {"data": str(data), "solver": "stochastic", "budget": "1k"})
    objects = sum(splits.num_embeddings)
    chosen = []
    for budget in (f"{4 * objects}", f"{10 * objects}", f"{20 * objects}", f"{20 * objects}B", "5x"):
        config, _ = configure(TASKS["recommend"], {"data": str(data), "solver": "stochastic", "budget": budget})
        chosen.append((config.tables.embedding_dim, config.solver.optimizer.lr))
    assert chosen == [(8, 0.03), (12, 0.015), (16, 0.01), (16, 0.01), (8, 0.03)]
    given = {"data": str(data), "solver": "stochastic", "budget": f"{20 * objects}", "embedding_dim": 8}
    assert configure(TASKS["recommend"], given)[0].solver.optimizer.lr == 0.03
    assert about.tables.embedding_dim == 8


def test_a_solver_without_penalties_is_searched_too(data):
    config, _ = configure(TASKS["recommend"], {"data": str(data), "solver": "coordinate_descent"})
    assert (config.tolerance, config.solver.penalties.ridge) != ("", 7.0)
    assert config.tolerance == "1%"


def test_what_is_given_is_not_searched(data):
    config, _ = configure(TASKS["recommend"], {"data": str(data), "embedding_dim": 3, "anchors": (7, 6), "budget": "8KB"})
    options = to_options(config)
    assert (options["embedding_dim"], options["anchors"], options["budget"]) == (3, (7, 6), "8KB")
    assert "tolerance" not in options
    full, _ = configure(TASKS["recommend"], {"data": str(data), "embedding": "full"})
    assert full.solver.name == "coordinate_descent"  # the dense opponent has its ridges, too
    assert full.tolerance == ""
    plain, _ = configure(TASKS["recommend"], {"data": str(data), "biases": False})
    assert plain.solver.penalties.bias_ridge == 6.0  # not searched: there are none


def test_a_small_budget_has_few_anchors_and_is_no_worse_than_biases(data, tmp_path):
    call("train", "recommend", data, "--budget", "3KB", "--out", tmp_path / "run")
    result = result_of(tmp_path / "run")
    assert result["bytes"] <= 3060
    assert result["test"]["mse"] < result["baselines"]["biases alone"]


def test_a_dozen_ratings_are_enough(tmp_path):
    (tmp_path / "r.csv").write_text("user,item,rating\n" + "".join(f"u{n % 4},i{n % 3},{n % 5}\n" for n in range(12)))
    call("train", "recommend", tmp_path / "r.csv", "--out", tmp_path / "run")
    assert result_of(tmp_path / "run")["test"]["mse"] < 10


def test_moves_and_anchors():
    assert DenseSettings().moved({"embedding_dim": 0.5}).embedding_dim == 4
    assert DenseSettings(1).moved({"embedding_dim": 0.5}) == DenseSettings(1)
    assert DenseSettings().moved({"ridge": 2}).ridge == 14
    assert [likely_anchors(rows, 8) for rows in (3, 100, 480, 10**6)] == [3, 16, 30, 48]


def test_text_without_options_is_ngrams_in_a_small_file(tmp_path):
    write_topics(tmp_path / "t.csv", 600, 200, classes=3, length=12, purity=0.5)
    call("train", "classify", tmp_path / "t.csv", "--out", tmp_path / "run")
    result = result_of(tmp_path / "run")
    assert result["task"] == "classify-ngrams"
    assert result["test"]["accuracy"] > 0.8 > 1.5 * result["baselines"]["the largest class"]
    assert result["bytes"] < 10_000


def test_text_of_a_size_is_searched_too(tmp_path):
    write_topics(tmp_path / "t.csv", 400, 200, classes=3, length=12, purity=0.5)
    call("train", "classify", tmp_path / "t.csv", "--budget", "2KB", "--out", tmp_path / "run")
    assert result_of(tmp_path / "run")["bytes"] <= 2000
    with pytest.raises(ValueError, match="a tolerance is for the automatic choice of n-grams"):
        configure(TASKS["classify"], {"data": str(tmp_path / "t.csv"), "model": "mean", "tolerance": "1%"})


def test_an_unbalanced_text_says_what_the_largest_class_has(tmp_path):
    rng = np.random.default_rng(0)
    rows = "".join(f"{'rare' if n % 25 == 0 else 'usual'},w{rng.integers(50)} w{rng.integers(50)}\n" for n in range(500))
    (tmp_path / "t.csv").write_text("label,text\n" + rows)
    call("train", "classify", tmp_path / "t.csv", "--out", tmp_path / "run")
    (remark,) = result_of(tmp_path / "run")["remarks"]
    assert remark.startswith("the model is no better than the largest class: test accuracy 0.9")
