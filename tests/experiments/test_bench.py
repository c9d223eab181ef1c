"""The benchmarks at a small scale: they run, and their numbers are about what they say."""

import json

import pytest
from typer.testing import CliRunner

from antembed.cli.app import app
from experiments import bench


def call(*words):
    done = CliRunner().invoke(app, [str(word) for word in words])
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.mark.slow
def test_amazon_at_a_hundredth(tmp_path):
    record = tmp_path / "bench.jsonl"
    result = json.loads(call("bench", "amazon", "--ratings", bench.AMAZON_RATINGS // 100, "--record", record, "--json"))
    assert result["setting"].startswith("435,000 users, 152,000 items, d=16, K=15/10")
    assert result["ratings"] == 2_330_000
    assert 0.5 < result["train_mse"] < 1.2  # the first ratings are guessed from a wrong mean; the planted variance is 0.72
    for side in ("users", "items"):
        assert 0 < result["nnz"][side] < result["entries"][side]
    assert json.loads(record.read_text())["command"].startswith("antembed")


def test_growth(monkeypatch):
    monkeypatch.setattr(bench, "GROWTH", ((4000, 8), (8000, 16)))
    speeds = json.loads(call("bench", "growth", "--ratings", 5000, "--repeats", 1, "--json"))["million_ratings_a_second"]
    assert list(speeds) == ["4,000 rows, K=8", "8,000 rows, K=16"]
    assert min(speeds.values()) > 0


def test_busy_processes_go_with_one_benchmark():
    done = CliRunner().invoke(app, ["bench", "growth", "--busy", "1"])
    assert done.exit_code == 2


def test_no_such_benchmark():
    assert CliRunner().invoke(app, ["bench", "luck"]).exit_code == 2
    assert pytest.approx(58.7e6) == bench.AMAZON_USERS + bench.AMAZON_ITEMS
