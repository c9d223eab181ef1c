"""Budgets in words, met by both solvers; polishing freezes the support in every path."""

import json

import numpy as np
import pytest
import torch
from antembed.pipelines.settings import Settings
from antembed.training.budget import Budget, BudgetError, parse_budget, steered, target
from antembed.training.polish import PROHIBITIVE, free_entries, freeze, thaw
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

import antembed as ant
from antembed.cli.app import app
from antembed.data.synthetic import planted, ratings


@pytest.mark.parametrize(
    ("text", "amount", "unit"),
    [("40x", 25.0, "bytes"), ("2.5X", 400.0, "bytes"), ("400k", 4e5, "parameters"), ("1.5M", 1.5e6, "parameters"),
     ("800", 800.0, "parameters"), ("2MB", 2e6, "bytes"), ("40 KB", 4e4, "bytes"), ("500b", 500.0, "bytes")],
)  # fmt: skip
def test_budgets_in_words(text, amount, unit):
    assert parse_budget(text, 1000.0) == Budget(amount, unit)


@pytest.mark.parametrize("text", ["", "x", "0x", "-3k", "2MiB", "40%", "many"])
def test_what_is_no_budget(text):
    with pytest.raises(BudgetError, match=r"is no budget; say 40x .*, 400k .* or 2MB"):
        parse_budget(text, 1000.0)


def test_a_budget_is_missed_from_two_percent_on():
    Budget(100, "bytes").check(102)
    with pytest.raises(BudgetError, match="the result has 103 bytes, the budget is 100 bytes"):
        Budget(100, "bytes").check(103)


@given(st.floats(0.3, 1.5), st.floats(0.01, 100), st.floats(2, 1e4))
def test_steering_finds_the_price(elasticity, price, factor):
    """Where sizes fall as a power of the price, the price settles."""
    wanted = 1e6 / factor
    for _ in range(200):
        price = steered(price, 1e6 * price**-elasticity, wanted)
    assert 1e6 * price**-elasticity == pytest.approx(wanted, rel=0.01)


def test_the_way_to_a_budget_falls_in_equal_factors():
    assert [target(1600, 100, share) for share in (0, 0.25, 0.5, 1, 2)] == pytest.approx([1600, 800, 400, 100, 100])
    assert target(50, 100, 0.1) == 50


def layer_and_optimizer(sparse):
    torch.manual_seed(0)
    layer = ant.AnchorEmbedding(30, 6, num_anchors=5, sparse=sparse, dtype=torch.float64)
    with torch.no_grad():
        layer.rows.weight[torch.rand(30, 5) < 0.5] = 0
    optimizer = ant.ProximalYogi(layer.param_groups(l1_penalty=1e-3), lr=0.05)
    return layer, optimizer


@pytest.mark.parametrize("sparse", [False, True])
def test_polishing_keeps_the_zeros_and_moves_the_rest(sparse):
    layer, optimizer = layer_and_optimizer(sparse)
    before = layer.transform.detach().clone()
    spared = free_entries(optimizer)
    freeze(optimizer, spared)
    for group in optimizer.param_groups:
        if group["prox"] is not None:
            group["prox"].strength = PROHIBITIVE
    for step in range(30):
        ids = torch.randint(0, 30, (8,), generator=torch.Generator().manual_seed(step))
        (layer(ids) - 1).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    after = layer.transform.detach()
    assert after[before == 0].eq(0).all()
    assert after.sum() > 1.2 * before.sum()  # up, towards 1: nothing shrinks them
    thaw(optimizer, spared)
    assert optimizer.param_groups[0]["prox"].free is None


def test_lazy_and_dense_polishing_agree():
    found = []
    for sparse in (False, True):
        layer, optimizer = layer_and_optimizer(sparse)
        freeze(optimizer, {})
        optimizer.param_groups[0]["prox"].strength = PROHIBITIVE
        for step in range(20):
            ids = torch.randint(0, 30, (4,), generator=torch.Generator().manual_seed(step))
            (layer(ids) - 1).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        found.append(layer.transform.detach().clone())
    torch.testing.assert_close(*found, atol=1e-12, rtol=0)


def test_entries_that_were_free_stay_free():
    layer, optimizer = layer_and_optimizer(False)
    row, column = (int(n) for n in (layer.rows.weight == 0).nonzero()[0])
    optimizer.param_groups[0]["prox"].free = ant.FreeEntries(torch.tensor([row]), torch.tensor([column]), (30, 5))
    spared = free_entries(optimizer)
    freeze(optimizer, spared)
    assert optimizer.param_groups[0]["prox"].free.mask()[row, column]


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


CD = ["--solver", "cd", "--dimensions", "8", "--ridge", "1", "--epochs", "20", "--json"]
PROX = ["--solver", "prox", "--anchors", "8", "--dimensions", "8", "--epochs", "20", "--lr", "0.03", "--l1", "1e-3", "--json"]


@pytest.mark.parametrize("solver", [CD, PROX], ids=["cd", "prox"])
@pytest.mark.parametrize(
    ("budget", "unit", "amount"), [("700", "parameters", 700), ("2.2KB", "bytes", 2200), ("4x", "bytes", 2160)]
)
def test_budgets_are_met(file, tmp_path, solver, budget, unit, amount):
    anchors = ["--anchors", "8"] if solver is CD else []
    told = call(file, "--out", tmp_path / "run", *solver, *anchors, "--budget", budget)
    assert 0.8 * amount < told[unit] <= 1.02 * amount
    files = [tmp_path / "run" / f"{name}.ant" for name in ("users", "items")]
    assert told["bytes"] == sum(path.stat().st_size for path in files)
    assert ant.load_table(files[0]).values == ("fp32" if unit == "parameters" else "int8")


@pytest.mark.parametrize("solver", [CD, PROX], ids=["cd", "prox"])
def test_what_cannot_be_met_is_an_error(file, tmp_path, solver):
    done = call(file, "--out", tmp_path / "run", *solver, "--budget", "300b", code=1)
    assert isinstance(done.exception, BudgetError)
    assert "a budget of 300 bytes cannot be met" in str(done.exception)


@pytest.mark.parametrize("stop", [6, 17])
def test_a_stopped_run_with_a_budget_ends_in_the_same_bytes(file, tmp_path, monkeypatch, stop):
    from antembed.training import RunFolder

    words = [file, *PROX, "--budget", "600"]
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
    for name in ("users.ant", "items.ant"):
        assert (tmp_path / "r" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_polishing_without_a_budget(file, tmp_path):
    told = call(file, "--out", tmp_path / "run", *PROX, "--polish", "0.25")
    assert told["engine"] == "fused"  # by its free entries, which the torch engine has alike (tests/test_fused.py)
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    last = [sum(row["nnz"].values()) for row in rows[-5:]]
    assert last == sorted(last, reverse=True)
    assert last[0] < sum(rows[-6]["nnz"].values())  # pruned before
    assert sum(told["nnz"].values()) in last


@pytest.mark.parametrize(
    ("more", "wrong"),
    [({"l1": 0.0}, "sought from l1 on, which must be > 0, got 0.0"), ({"keep": 9}, "keep=9 both say"),
     ({"embedding": "full"}, "a budget is for --embedding anchor, not full"), ({"anchors": "auto"}, "with --solver cd only")],
)  # fmt: skip
def test_budgets_that_make_no_sense(more, wrong):
    with pytest.raises(ValueError, match=wrong):
        Settings("r.csv", **{"budget": "10x"} | more)


def test_bytes_are_counted_in_int8_from_every_entrance():
    assert Settings("r.csv", budget="2MB").values == "int8"
    assert Settings("r.csv", budget="2M").values == "fp32"
    assert Settings("r.csv", budget="2MB", values="fp16").values == "fp16"


def test_few_epochs_are_enough_to_be_trimmed(file, tmp_path):
    assert call(file, "--out", tmp_path / "run", *PROX, "--budget", "600", "--epochs", "2")["parameters"] <= 612


def test_a_budget_of_bytes_is_resumed_with_the_same_numbers(file, tmp_path):
    call(file, "--out", tmp_path / "run", *CD, "--anchors", "8", "--budget", "2.2KB")
    done = call(
        file, "--out", tmp_path / "run", *CD, "--anchors", "8", "--budget", "2.2KB", "--resume", "--values", "fp32", code=1
    )
    assert "started with values='int8', not 'fp32'" in str(done.exception)


def test_errors_are_those_of_the_files(file, tmp_path):
    told = call(file, "--out", tmp_path / "run", *CD, "--anchors", "8", "--values", "int8")
    assert told["test"]["mse"] == pytest.approx(told["smaller_files"]["int8"]["test_mse"], rel=1e-6)


def test_a_dry_run_says_what_a_budget_means(file):
    told = call(file, "--budget", "4x", "--dry-run", "--json")
    assert told["rows"] == {"users": 150, "items": 90}
    assert told["full_tables_bytes"] == 4 * 240 * 17
    assert told["budget"] == "4,080 bytes"
    assert "give one with --budget" in str(call(file, "--dry-run", code=1).exception)


def test_coordinate_descent_finds_its_anchors(file, tmp_path):
    """Four tastes of a plane of eight dimensions were planted: of 48 anchors a side few are worth their price."""
    told = call(file, "--out", tmp_path / "auto", *CD, "--anchors", "auto", "--price", "1", "--epochs", "8")
    rich = call(file, "--out", tmp_path / "many", *CD, "--anchors", "48", "--price", "1", "--epochs", "8")
    assert all(1 <= K <= 24 for K in told["anchors"].values())
    assert told["parameters"] < rich["parameters"]
    assert (
        told["test"]["mse"] < 1.3 * rich["test"]["mse"] < 0.5 * np.var(np.loadtxt(file, delimiter=",", skiprows=1, usecols=2))
    )
