"""A result that looks like a success and is none says so, beside what knows nothing of the examples."""

import json

import numpy as np
import pytest
from tests.command import QUICK, call, write_ratings
from tests.synthetic_text import write_topics
from typer.testing import CliRunner

from antembed.cli.app import app
from antembed.train.task import Metric


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_ratings(tmp_path_factory.mktemp("data") / "ratings.csv")


def trained(out, *words):
    done = CliRunner().invoke(app, ["train", *map(str, words), "--out", str(out)])
    assert done.exit_code == 0, done.output
    return done, json.loads((out / "result.json").read_text())


def test_a_model_no_better_than_the_mean_says_so(tmp_path):
    rng = np.random.default_rng(0)
    rows = "".join(f"{rng.integers(40)},{rng.integers(30)},{rng.integers(1, 6)}\n" for _ in range(6000))
    (tmp_path / "r.csv").write_text("user,item,rating\n" + rows)
    done, result = trained(tmp_path / "run", "recommend", tmp_path / "r.csv", *QUICK)
    assert any(line.startswith("the model is no better than the mean: test mse") for line in result["remarks"])
    assert "warning: the model is no better than the mean" in " ".join(done.stderr.split())
    assert f"beside it: the mean {result['baselines']['the mean']:.4f}, biases alone" in " ".join(done.stdout.split())


def test_the_baselines_are_what_they_say(data, tmp_path):
    _, result = trained(tmp_path / "run", "recommend", data, *QUICK)
    rows = np.array([float(line.split(",")[2]) for line in data.read_text().splitlines()[1:]])
    assert result["baselines"]["the mean"] == pytest.approx(rows.var(), rel=0.1)
    assert result["remarks"] == []


def test_empty_tables_and_tables_without_a_zero_say_so(data, tmp_path):
    _, result = trained(tmp_path / "empty", "recommend", data, *QUICK, "--l1-penalty", 100)
    assert any(line.startswith("all weights of T are 0: the tables are empty") for line in result["remarks"])
    _, result = trained(tmp_path / "full", "recommend", data, *QUICK, "--l1-penalty", 0, "--prune", 0, "--optimizer", "adam")
    if min(result["nnz"][side] / (n * k) for side, n, k in (("users", 200, 6), ("items", 80, 5))) == 1:
        assert any(line.startswith("no weight of T is zero") for line in result["remarks"])


def test_a_text_model_is_shown_beside_the_largest_class(tmp_path):
    write_topics(tmp_path / "t.csv", 300, 100, classes=2, length=10, purity=0.6)
    done, result = trained(tmp_path / "run", "classify", tmp_path / "t.csv", "--model", "mean", "--epochs", 2)
    assert "beside it: the largest class 0." in " ".join(done.stdout.split())
    assert 0.4 < result["baselines"]["the largest class"] < 0.8


def test_a_class_that_is_a_running_number_is_refused(tmp_path):
    rows = "".join(f"{n},headline {n % 7},words of text {n % 5}\n" for n in range(60))
    (tmp_path / "news.csv").write_text("nr,rubrik,inhalt\n" + rows)
    with pytest.raises(ValueError, match="which column is the class"):
        call("train", "classify", tmp_path / "news.csv", "--out", tmp_path / "run")


def test_when_a_metric_beats_a_baseline():
    error, accuracy = Metric("mse", "MSE"), Metric("error", "error rate", "accuracy")
    assert error.beats(0.9, 1.0)
    assert not error.beats(0.9999, 1.0)
    assert error.beats(0.0, 0.0)  # perfect
    assert accuracy.beats(0.95, 0.9)
    assert not accuracy.beats(0.9, 0.9)
    assert accuracy.beats(1.0, 1.0)
    assert accuracy.cost({"accuracy": 0.5}) == 2
    assert error.cost({"mse": 0.5}) == 0.5
