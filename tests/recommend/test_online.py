"""Streams as runs: batches as they come, evaluated before they are learned, interrupted and continued."""

import json

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

import antembed as ant
from antembed.cli.app import app
from antembed.recommend.online import OnlineDescent
from antembed.recommend.synthetic import planted, ratings

WORDS = ["--solver", "online", "--embedding-dim", "8", "--anchors", "auto", "--l0-penalty", "0.3", "--ridge", "1", "--json"]
WORDS += ["--batch-size", "700", "--epochs", "8"]


@pytest.fixture(scope="module")
def table():
    users = planted(80, 8, anchors=4, exponent=0.3, seed=1)
    items = planted(50, exponent=0.3, seed=2, like=users)
    u, i, v = ratings(users, items, 3000, noise=0.1, seed=3).columns
    return pl.DataFrame({"user": 1000 - u, "item": i * 10, "rating": v})


def call(*words, code=0, given=None):
    done = CliRunner().invoke(app, ["train", "recommend", *(str(word) for word in words)], input=given)
    assert done.exit_code == code, done.output
    return json.loads(done.stdout) if code == 0 else done.output


def test_the_command_learns_and_its_tables_are_used(table, tmp_path):
    train, held = table.head(2500), table.tail(500)
    train.write_csv(tmp_path / "r.csv")
    held.write_csv(tmp_path / "t.csv")
    result = call(tmp_path / "r.csv", "--test", tmp_path / "t.csv", "--out", tmp_path / "run", *WORDS)
    assert result["ratings"] == 2500
    assert result["batches"] == 4
    assert result["test"]["mse"] < result["validation"]["mse"] < np.var(table["rating"].to_numpy())
    assert result["test"]["mse"] < 0.5 * np.var(held["rating"].to_numpy())
    model = ant.Recommender.load(tmp_path / "run")
    assert model.user_labels_.to_list() == sorted(set(train["user"]))
    mse = np.square(model.predict(held["user"], held["item"]) - held["rating"].to_numpy()).mean()
    assert mse == pytest.approx(result["test"]["mse"], rel=1e-5)
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [row["ratings"] for row in rows] == [700, 1400, 2100, 2500]
    assert all(row["anchors"]["users"] >= 1 for row in rows)
    done = CliRunner().invoke(app, ["evaluate", str(tmp_path / "run")])
    assert "it has no split" in str(done.exception)


def test_standard_input_is_a_stream_too(table, tmp_path):
    table.write_csv(tmp_path / "r.csv")
    wanted = call(tmp_path / "r.csv", "--out", tmp_path / "a", *WORDS)
    found = call("-", "--out", tmp_path / "b", *WORDS, given=table.write_csv().encode())
    assert found["validation"] == wanted["validation"]
    assert (tmp_path / "a" / "users.ant").read_bytes() == (tmp_path / "b" / "users.ant").read_bytes()


def test_a_file_that_has_grown_is_gone_on_with(table, tmp_path):
    """The last batch was not full: what came behind it is learned all the same."""
    table.head(1000).write_csv(tmp_path / "r.csv")
    call(tmp_path / "r.csv", "--out", tmp_path / "run", *WORDS)
    table.write_csv(tmp_path / "r.csv")
    assert call(tmp_path / "r.csv", "--out", tmp_path / "run", *WORDS, "--resume")["ratings"] == len(table)


def test_a_high_penalty_leaves_one_anchor_and_the_run_is_used(table, tmp_path):
    table.write_csv(tmp_path / "r.csv")
    result = call(tmp_path / "r.csv", "--out", tmp_path / "run", *WORDS, "--l0-penalty", "1000")
    assert result["nnz"] == {"users": 0, "items": 0}
    done = CliRunner().invoke(app, ["export", str(tmp_path / "run"), str(tmp_path / "small"), "--values", "int8"])
    assert done.exit_code == 0, done.output
    assert ant.load_table(tmp_path / "small" / "users.ant").shape == (80, 8)


def test_a_fixed_number_of_anchors_stays(table, tmp_path):
    table.write_csv(tmp_path / "r.csv")
    result = call(tmp_path / "r.csv", "--out", tmp_path / "run", *WORDS, "--anchors", "3,5", "--l0-penalty", "0.01")
    assert result["anchors"] == {"users": 3, "items": 5}


@pytest.mark.parametrize(
    ("words", "wrong"),
    [(["--budget", "10x"], "--budget is an option of --solver stochastic and --solver coordinate_descent"),
     (["--unobserved-weight", "0.1"], "--unobserved-weight is an option of --solver coordinate_descent"),
     (["--polish", "0.1"], "--polish is an option of --solver stochastic"),
     (["--max-nonzeros", "9"], "--max-nonzeros is an option of --solver stochastic"),
     (["--on-error", "skip"], "on_error is for --solver stochastic or coordinate_descent, not online"),
     (["--split", "90/10"], "split is for --solver stochastic or coordinate_descent, not online"),
     (["--embedding", "full", "--anchors", "3"], "--solver online trains anchor tables, not full; use --solver stochastic")],
)  # fmt: skip
def test_what_a_stream_cannot_do(table, tmp_path, words, wrong):
    table.write_csv(tmp_path / "r.csv")
    said = call(tmp_path / "r.csv", "--out", tmp_path / "run", *WORDS, *words, code=2)
    assert wrong in " ".join(said.replace("│", " ").split())
    assert not (tmp_path / "run").exists()


def test_files_that_are_not_there_leave_no_run(table, tmp_path):
    table.write_csv(tmp_path / "r.csv")
    for file, more in ((tmp_path / "r.csv", ("--test", "none.csv")), (tmp_path / "none.csv", ())):
        words = ["train", "recommend", str(file), "--out", str(tmp_path / "run"), *WORDS, *more]
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 1
        assert "none.csv is no file" in str(done.exception)
        assert not (tmp_path / "run").exists()


def test_a_stopped_stream_goes_on_and_repeats_nothing(table, tmp_path, monkeypatch):
    table.write_csv(tmp_path / "r.csv")
    call(tmp_path / "r.csv", "--out", tmp_path / "whole", *WORDS)
    learn, learned = OnlineDescent.learn, []

    def stops(self, columns):
        if self.batches == 2:
            raise MemoryError
        learned.append(self.batches)
        return learn(self, columns)

    monkeypatch.setattr(OnlineDescent, "learn", stops)
    words = [tmp_path / "r.csv", "--out", tmp_path / "r", *WORDS]
    with pytest.raises(MemoryError):
        CliRunner().invoke(app, ["train", "recommend", *map(str, words)], catch_exceptions=False)
    monkeypatch.setattr(OnlineDescent, "learn", lambda self, columns: learned.append(self.batches) or learn(self, columns))
    call(*words, "--resume")
    assert learned == [0, 1, 2, 3, 4]
    labels = ("users.labels.safetensors", "items.labels.safetensors")
    for name in ("users.ant", "items.ant", *labels, "popularity.safetensors", "checkpoint/last.safetensors"):
        assert (tmp_path / "r" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
