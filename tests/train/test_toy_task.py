"""A new task is one file and one line in TASKS: everything else takes it as it is (toy_links.py is the file)."""

import json
import os
import subprocess
import sys
from unittest import mock

import numpy as np
import pytest
from tests.train.toy_links import Links
from typer.testing import CliRunner

from antembed.cli.app import app
from antembed.tables.save import load_table
from antembed.train.registry import TASKS
from antembed.train.run import load_model
from antembed.train.run_folder import RunFolder

QUICK = ("--epochs", "6", "--batch-size", "64", "--lr", "0.05", "--embedding-dim", "8", "--anchors", "6")


@pytest.fixture(autouse=True)
def _known():
    with mock.patch.dict(TASKS, {"links": Links()}):
        yield


@pytest.fixture(scope="module")
def edges(tmp_path_factory):
    """Two groups of nodes; links are inside a group."""
    rng = np.random.default_rng(0)
    group = rng.integers(0, 2, 120)
    pairs = rng.integers(0, 120, (6000, 2))
    inside = pairs[group[pairs[:, 0]] == group[pairs[:, 1]]]
    file = tmp_path_factory.mktemp("links") / "edges.txt"
    np.savetxt(file, np.vstack([inside, [[119, 119]]]), fmt="%d")
    return file


def call(*words, code=0):
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == code, result.output + repr(result.exception)
    return result.stdout


def test_it_trains_evaluates_exports_and_is_compared(edges, tmp_path):
    runs = {name: tmp_path / name for name in ("anchor", "full")}
    trained = {
        name: json.loads(call("train", "links", edges, *QUICK, "--embedding", name, "--out", run, "--json"))
        for name, run in runs.items()
    }
    assert trained["anchor"]["test"]["accuracy"] > 0.65
    again = json.loads(call("evaluate", runs["anchor"], "--json"))
    assert again["test"] == trained["anchor"]["test"]
    call("export", runs["anchor"], tmp_path / "small", "--values", "int8")
    table = load_table(tmp_path / "small" / "nodes.ant")
    assert table.shape == (120, 8)
    assert table.values == "int8"
    table = call("report", *runs.values())
    assert "embedding=anchor" in table
    assert "embedding=full" in table


def test_budgets_growth_and_other_tables_need_nothing_from_it(edges, tmp_path):
    budget = json.loads(call("train", "links", edges, *QUICK, "--budget", "400", "--out", tmp_path / "b", "--json"))
    assert budget["parameters"] <= 400
    more = ("--anchors", "auto", "--epochs", "12", "--initial-anchors", "2", "--l1-penalty", "1e-4")
    grown = json.loads(call("train", "links", edges, *QUICK, *more, "--out", tmp_path / "g", "--json"))
    assert grown["growth"]["changes"] > 0
    call("train", "links", edges, *QUICK, "--embedding", "vvd", "--out", tmp_path / "v")


def test_it_is_swept(edges, tmp_path):
    options = ("--set", "epochs=2", "--set", "batch_size=64", "--vary", "anchors=2,4", "--seeds", "0,1")
    found = json.loads(call("sweep", edges, "--task", "links", *options, "--out", tmp_path / "s.jsonl", "--json"))
    assert found["settings"] == 2
    assert found["error"] == "validation"
    ranked = json.loads(call("sweep", "--select", tmp_path / "s.jsonl", "--anchor-penalty", "0.01", "--json"))
    assert len(ranked["ranking"]) == 4


KILLED = """
import os, sys
sys.path.insert(0, {root!r})
from antembed.cli.app import app
from antembed.train.run_folder import RunFolder
from antembed.train.registry import TASKS
from tests.train.toy_links import Links
TASKS["links"] = Links()
log = RunFolder.log
def log_and_die(self, record):
    log(self, record)
    if record["epoch"] == 3:
        os._exit(9)
RunFolder.log = log_and_die
app({words!r})
"""


def test_it_is_resumed_to_the_same_bytes(edges, tmp_path):
    words = ["train", "links", str(edges), *QUICK, "--threads", "1"]
    call(*words, "--out", tmp_path / "whole")
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    script = KILLED.format(root=root, words=[*words, "--out", str(tmp_path / "killed")])
    assert subprocess.run([sys.executable, "-c", script], check=False, capture_output=True).returncode == 9
    with pytest.raises(ValueError, match="not finished: 3 of 6 epochs; continue it with --resume"):
        load_model(tmp_path / "killed")
    call(*words, "--out", tmp_path / "killed", "--resume")
    assert (tmp_path / "killed" / "nodes.ant").read_bytes() == (tmp_path / "whole" / "nodes.ant").read_bytes()
    assert [row["epoch"] for row in RunFolder(tmp_path / "killed").rows()] == [1, 2, 3, 4, 5, 6]


def test_its_own_options_are_checked(edges, tmp_path):
    assert "--negatives" in call("train", "links", "--help-all")
    result = CliRunner().invoke(app, ["train", "links", str(edges), "--negatives", "0", "--out", str(tmp_path / "r")])
    assert result.exit_code == 2
    assert "negatives must be ≥ 1, got 0" in result.output
