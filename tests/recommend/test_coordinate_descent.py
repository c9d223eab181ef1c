"""Coordinate descent as a solver of runs: its files, its options, and that a stopped run ends in the same bytes."""

import json
import shlex

import numpy as np
import pytest
from typer.testing import CliRunner

import antembed as ant
from antembed.cli.app import app
from antembed.recommend.descent import Descent
from antembed.recommend.synthetic import planted, ratings

OPTIONS = "--solver coordinate_descent --embedding-dim 8 --anchors 6 --l0-penalty 1 --ridge 2 --epochs 8 --json"


def data():
    users = planted(120, 8, anchors=4, exponent=0.3, seed=1)
    return ratings(users, planted(70, exponent=0.3, seed=2, like=users), 6000, noise=0.1, seed=3).columns


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("descent") / "r.csv"
    rows = "".join(f"{u},{i},{v:.2f}\n" for u, i, v in zip(*data(), strict=True))
    path.write_text("user,item,rating\n" + rows)
    return path


def words(file, out, *more):
    options = OPTIONS.replace("--l0-penalty 1", "") if "--budget" in more else OPTIONS  # one of them decides the size
    return ["train", "recommend", str(file), "--out", str(out), *shlex.split(options), *more]


def call(file, out, *more, code=0):
    done = CliRunner().invoke(app, words(file, out, *more))
    assert done.exit_code == code, done.output
    return json.loads(done.stdout) if code == 0 else " ".join(done.output.replace("│", " ").split())


@pytest.mark.parametrize("embedding", ["anchor", "full"])
@pytest.mark.parametrize("biases", ["--biases", "--no-biases"])
def test_the_file_predicts_what_the_model_does(file, tmp_path, embedding, biases):
    result = call(file, tmp_path / "run", "--embedding", embedding, biases)
    assert result["engine"] == "coordinate_descent"
    assert result["test"]["mse"] < np.var(data()[2]) / 2  # a penalty of 1 is much for so few ratings
    users, items = (ant.load_table(tmp_path / "run" / f"{name}.ant") for name in ("users", "items"))
    evaluated = CliRunner().invoke(app, ["evaluate", str(tmp_path / "run"), "--json"])
    assert json.loads(evaluated.stdout)["test"] == result["test"]
    assert users.parameters + items.parameters <= result["parameters"]


@pytest.mark.parametrize("more", [(), ("--budget", "700", "--epochs", "12"), ("--anchors", "auto")], ids=" ".join)
def test_a_stopped_run_ends_in_the_same_bytes(file, tmp_path, monkeypatch, more):
    call(file, tmp_path / "whole", *more)
    sweep, done = Descent.sweep_at, []

    def stops(self, l0):
        if len(done) == 4:
            raise MemoryError
        done.append(l0)
        sweep(self, l0)

    monkeypatch.setattr(Descent, "sweep_at", stops)
    with pytest.raises(MemoryError):
        CliRunner().invoke(app, words(file, tmp_path / "r", *more), catch_exceptions=False)
    monkeypatch.setattr(Descent, "sweep_at", sweep)
    call(file, tmp_path / "r", "--resume", *more)
    for name in ("users.ant", "items.ant", "checkpoint/last.safetensors", "checkpoint/final.safetensors"):
        assert (tmp_path / "r" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name


def test_the_log_says_the_penalty_in_force(file, tmp_path):
    call(file, tmp_path / "run")
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [row["epoch"] for row in rows] == list(range(1, 9))
    assert rows[0]["l0_penalty"] < rows[-1]["l0_penalty"] == 1.0


def test_what_it_cannot_solve(file, tmp_path):
    assert "use --solver stochastic" in call(file, tmp_path / "r", "--embedding", "mixture", code=2)
    assert not (tmp_path / "r").exists()
