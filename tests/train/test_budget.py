"""Budgets, met by both solvers and in bytes that are the same when a run is interrupted."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

import antembed as ant
from antembed.budget import Budget, BudgetController, BudgetError, adjusted, target
from antembed.cli.app import app
from antembed.recommend.synthetic import planted, ratings
from antembed.train.run_folder import RunFolder


@given(st.floats(0.3, 1.5), st.floats(0.01, 100), st.floats(2, 1e4))
def test_the_penalty_that_meets_a_size_is_found(elasticity, penalty, factor):
    """Where sizes fall as a power of the penalty, it settles."""
    wanted = 1e6 / factor
    for _ in range(200):
        penalty = adjusted(penalty, 1e6 * penalty**-elasticity, wanted)
    assert 1e6 * penalty**-elasticity == pytest.approx(wanted, rel=0.01)


@given(st.integers(1, 4), st.floats(0.02, 0.98), st.floats(0.5, 1.5))
def test_large_tables_are_trimmed_in_few_measurements(bytes_each, share, bend):
    """As close to the budget as a search to the last weight, but for a thousandth."""
    many, kept, asked = 3_000_000, [0], [0]

    def size() -> float:
        asked[0] += 1
        return 5000 + bytes_each * many * (kept[0] / many) ** bend

    amount = round(5000 + share * bytes_each * many)
    controller = BudgetController(Budget(amount, "bytes"), size, 1.0, 1, 1.0)
    controller.trim(many, lambda n: kept.__setitem__(0, n))
    assert 0.998 * amount <= size() <= amount
    assert asked[0] < 30


def test_the_way_to_a_budget_falls_in_equal_factors():
    assert [target(1600, 100, share) for share in (0, 0.25, 0.5, 1, 2)] == pytest.approx([1600, 800, 400, 100, 100])
    assert target(50, 100, 0.1) == 50


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    users = planted(150, 8, anchors=4, exponent=0.3, seed=1)
    items = planted(90, exponent=0.3, seed=2, like=users)
    columns = ratings(users, items, 6000, noise=0.1, seed=3).columns
    path = tmp_path_factory.mktemp("budget") / "r.csv"
    path.write_text("user,item,rating\n" + "".join(f"{u},{i},{v:.3f}\n" for u, i, v in zip(*columns, strict=True)))
    return path


def call(*words, code=0):
    done = CliRunner().invoke(app, ["train", "recommend", *(str(word) for word in words)])
    assert done.exit_code == code, done.output
    return json.loads(done.stdout) if code == 0 else done


CD = ["--solver", "coordinate_descent", "--embedding-dim", "8", "--ridge", "1", "--epochs", "20", "--json"]
STEPS = ["--solver", "stochastic", "--anchors", "8", "--embedding-dim", "8", "--epochs", "20", "--lr", "0.03"]
STEPS += ["--l1-penalty", "1e-3", "--json"]


@pytest.mark.parametrize("solver", [CD, STEPS], ids=["coordinate_descent", "stochastic"])
@pytest.mark.parametrize(
    ("budget", "unit", "amount"), [("700", "parameters", 700), ("2.2KB", "bytes", 2200), ("4x", "bytes", 2160)]
)
def test_budgets_are_met(file, tmp_path, solver, budget, unit, amount):
    anchors = ["--anchors", "8"] if solver is CD else []
    result = call(file, "--out", tmp_path / "run", *solver, *anchors, "--budget", budget)
    assert 0.8 * amount < result[unit] <= 1.02 * amount
    files = [tmp_path / "run" / f"{name}.ant" for name in ("users", "items")]
    assert result["bytes"] == sum(path.stat().st_size for path in files)
    assert ant.load_table(files[0]).values == ("fp32" if unit == "parameters" else "int8")
    if unit == "bytes":
        assert ant.load_table(files[0]).encoding == "packed"


@pytest.mark.parametrize("solver", [CD, STEPS], ids=["coordinate_descent", "stochastic"])
def test_what_cannot_be_met_is_an_error(file, tmp_path, solver):
    done = call(file, "--out", tmp_path / "run", *solver, "--budget", "300b", code=1)
    assert isinstance(done.exception, BudgetError)
    assert "a budget of 300 bytes cannot be met" in str(done.exception)


@pytest.mark.parametrize("stop", [6, 17])
def test_a_stopped_run_with_a_budget_ends_in_the_same_bytes(file, tmp_path, monkeypatch, stop):
    words = [file, *STEPS, "--budget", "600"]
    call(*words, "--out", tmp_path / "whole")
    log = RunFolder.log

    def stops(self, row):
        if row["epoch"] == stop:
            raise MemoryError
        log(self, row)

    monkeypatch.setattr(RunFolder, "log", stops)
    with pytest.raises(MemoryError):
        CliRunner().invoke(app, ["train", "recommend", *map(str, words), "--out", str(tmp_path / "r")], catch_exceptions=False)
    monkeypatch.setattr(RunFolder, "log", log)
    call(*words, "--out", tmp_path / "r", "--resume")
    for name in ("users.ant", "items.ant", "checkpoint/last.safetensors", "checkpoint/final.safetensors"):
        assert (tmp_path / "r" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_polishing_without_a_budget(file, tmp_path):
    result = call(file, "--out", tmp_path / "run", *STEPS, "--polish", "0.25")
    assert result["engine"] == "fused"  # by its free entries, which the torch engine has alike (tests/recommend/test_fused.py)
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    last = [sum(row["nnz"].values()) for row in rows[-5:]]
    assert last == sorted(last, reverse=True)
    assert last[0] < sum(rows[-6]["nnz"].values())  # pruned before
    assert sum(result["nnz"].values()) in last


def test_few_epochs_are_enough_to_be_trimmed(file, tmp_path):
    assert call(file, "--out", tmp_path / "run", *STEPS, "--budget", "600", "--epochs", "2")["parameters"] <= 612


def test_a_budget_of_bytes_is_resumed_with_the_same_numbers(file, tmp_path):
    call(file, "--out", tmp_path / "run", *CD, "--anchors", "8", "--budget", "2.2KB")
    done = call(
        file, "--out", tmp_path / "run", *CD, "--anchors", "8", "--budget", "2.2KB", "--resume", "--values", "fp32", code=1
    )
    assert "started with values='int8', not 'fp32'" in str(done.exception)
    call(file, "--out", tmp_path / "run", *CD, "--anchors", "8", "--budget", "2.2KB", "--resume", "--values", "int8")


def test_errors_are_those_of_the_files(file, tmp_path):
    result = call(file, "--out", tmp_path / "run", *CD, "--anchors", "8", "--values", "int8")
    assert result["test"]["mse"] == pytest.approx(result["quantized"]["int8"]["test_mse"], rel=1e-6)


def test_a_dry_run_says_what_a_budget_means(file):
    result = call(file, "--budget", "4x", "--dry-run", "--json")
    assert result["rows"] == {"users": 150, "items": 90}
    assert result["full_tables_bytes"] == 4 * 240 * 17
    assert result["budget"] == "4,080 bytes"
    assert "give one with --budget" in " ".join(call(file, "--dry-run", code=2).output.replace("│", " ").split())


def test_coordinate_descent_finds_its_anchors(file, tmp_path):
    """Four tastes of a plane of eight dimensions were planted: of 48 anchors a side few are worth their penalty."""
    result = call(file, "--out", tmp_path / "auto", *CD, "--anchors", "auto", "--l0-penalty", "1", "--epochs", "8")
    rich = call(file, "--out", tmp_path / "many", *CD, "--anchors", "48", "--l0-penalty", "1", "--epochs", "8")
    assert all(1 <= K <= 24 for K in result["anchors"].values())
    assert result["parameters"] < rich["parameters"]
    assert (
        result["test"]["mse"] < 1.3 * rich["test"]["mse"] < 0.5 * np.var(np.loadtxt(file, delimiter=",", skiprows=1, usecols=2))
    )
