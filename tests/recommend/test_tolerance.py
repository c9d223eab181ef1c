"""The smallest model within a tolerance: the path of the penalty, the limit, the files, and a run that was interrupted."""

import json

import numpy as np
import pytest
from tests.command import call, write_ratings

from antembed.budget import BudgetError, parse_tolerance
from antembed.recommend.tolerance import PenaltyPath
from antembed.train.configure import configure
from antembed.train.registry import TASKS
from antembed.train.run import train
from antembed.train.run_folder import RunFolder

CD = {"solver": "coordinate_descent", "tolerance": "3%", "anchors": 8, "embedding_dim": 8, "ridge": 1.0, "threads": 1}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return str(write_ratings(tmp_path_factory.mktemp("data") / "ratings.csv"))


@pytest.mark.parametrize("boundary", [1e-3, 0.049, 0.06, 1.0, 77.0])
def test_the_path_ends_just_below_the_first_penalty_that_is_too_high(boundary):
    path, steps = PenaltyPath(0.05), 0
    while not path.done:
        path.observe(path.penalty <= boundary)
        steps += 1
    assert path.good <= boundary < path.bad < 1.1 * path.good
    assert steps < 40


def test_the_path_ends_where_nothing_or_everything_is_good_enough():
    for good in (False, True):
        path = PenaltyPath(0.05)
        while not path.done:
            path.observe(good)
        assert bool(path.good) == good


@pytest.mark.parametrize(("text", "share"), [("1%", 0.01), (" 0.5 % ", 0.005), ("0%", 0.0)])
def test_tolerances_in_words(text, share):
    assert parse_tolerance(text) == share


@pytest.mark.parametrize("text", ["1", "0.01", "one", "-1%", "%"])
def test_what_is_no_tolerance(text):
    with pytest.raises(BudgetError, match=r"is no tolerance; say 1% or 0\.5%"):
        parse_tolerance(text)


def test_a_higher_tolerance_is_a_smaller_file_and_both_keep_their_limit(data, tmp_path):
    sizes = []
    for tolerance in ("1%", "20%"):
        config, splits = configure(TASKS["recommend"], CD | {"data": data, "tolerance": tolerance})
        result = train(config, tmp_path / tolerance, splits=splits)
        found = result["tolerance"]
        assert found["error"] <= found["limit"] <= found["dense_error"] * (1 + parse_tolerance(tolerance)) + 1e-9
        sizes.append(result["bytes"])
        # What is said of the error is true of the files: they are read back.
        model = TASKS["recommend"].build(config, splits)
        stored = TASKS["recommend"].evaluate(model.from_files(tmp_path / tolerance), splits, "validation")
        assert stored["mse"] == pytest.approx(found["error"], rel=1e-4)
    assert sizes[1] < sizes[0]


@pytest.mark.parametrize(
    "extra", [{}, pytest.param({"basis": "axes", "anchors": 16}, marks=pytest.mark.slow)], ids=["learned", "axes"]
)
def test_interrupted_it_ends_in_the_same_bytes(data, tmp_path, extra):
    config, splits = configure(TASKS["recommend"], CD | {"data": data} | extra)
    train(config, tmp_path / "whole", splits=splits)

    class Stop(Exception):
        pass

    def stop_at(epoch):
        def callback(now):
            if now.epoch == epoch:
                raise Stop

        return callback

    sweeps = len(RunFolder(tmp_path / "whole").rows())
    for epoch in (3, sweeps // 2, sweeps - 1):
        with pytest.raises(Stop):
            train(config, tmp_path / "parts", splits=splits, resume=True, callback=stop_at(epoch))
    train(config, tmp_path / "parts", splits=splits, resume=True)
    for name in ("users.ant", "items.ant"):
        assert (tmp_path / "parts" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_axes_are_the_same_vectors_before_anything_is_dropped(data):
    from antembed.recommend.descent_solver import CoordinateDescent

    config, splits = configure(TASKS["recommend"], CD | {"data": data, "basis": "axes", "anchors": 16})
    solver = CoordinateDescent(TASKS["recommend"], config, TASKS["recommend"].build(config, splits), splits)
    for _ in range(3):
        solver.descent.sweep_dense()
    before = solver.descent.predict(np.arange(50), np.arange(50))
    solver.descent.make_axes()
    assert np.allclose(solver.descent.predict(np.arange(50), np.arange(50)), before)
    assert (solver.descent.users.T >= 0).all()
    objective = solver.descent.objective()
    solver.descent.sweep_axes(0.0)
    assert solver.descent.objective() <= objective  # each half is an exact minimum
    full = np.count_nonzero(solver.descent.users.T)
    solver.descent.sweep_axes(0.5)
    assert np.count_nonzero(solver.descent.users.T) < full


def test_a_budget_and_a_tolerance_are_one_too_many(data):
    with pytest.raises(ValueError, match="budget 40x and tolerance 1% both decide the size; give one"):
        configure(TASKS["recommend"], CD | {"data": data, "budget": "40x", "tolerance": "1%"})


def test_a_budget_that_cannot_be_met_is_refused_before_training(data, tmp_path, monkeypatch):
    monkeypatch.setattr("antembed.train.stochastic.Stochastic.fit", lambda *_: pytest.fail("it was trained"))
    with pytest.raises(ValueError, match=r"a budget of 300 bytes cannot be met: empty tables have [\d,]+ bytes; allow more"):
        call("train", "recommend", data, "--budget", "300B", "--epochs", 3, "--out", tmp_path / "r")


def test_constant_ratings_are_a_mean(tmp_path):
    rows = "".join(f"u{n % 30},i{n % 17},4\n" for n in range(600))
    (tmp_path / "r.csv").write_text("user,item,rating\n" + rows)
    call("train", "recommend", tmp_path / "r.csv", "--out", tmp_path / "run")
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["test"]["mse"] == pytest.approx(0, abs=1e-8)
    assert sum(result["nnz"].values()) == 0
    assert result["remarks"] == ["all weights of T are 0: the tables are empty, and the model is its mean and biases alone"]
