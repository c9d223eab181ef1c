"""Streams from files: batches as they come, stopped and gone on with, and judged before they are learned."""

import gzip
import io
import json
import sys

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

import antembed as ant
from antembed.cli.app import app
from antembed.data import DataError
from antembed.data.rating_stream import RatingStream
from antembed.data.synthetic import planted, ratings
from antembed.training.stream import Stream

WORDS = ["--online", "--dimensions", "8", "--anchors", "auto", "--price", "0.3", "--ridge", "1", "--json"]
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


def gathered(arrivals):
    batches = list(arrivals)
    columns = [np.concatenate(column) for column in zip(*batches, strict=True)]
    labels = arrivals.users.labels, arrivals.items.labels
    return [len(batch[0]) for batch in batches], pl.DataFrame(
        {"user": labels[0].gather(columns[0]), "item": labels[1].gather(columns[1]), "rating": columns[2]}
    )


@pytest.mark.parametrize("kind", ["csv", "dat", "gzip", "parquet", "stdin"])
def test_batches_are_the_file_in_its_order(table, tmp_path, kind, monkeypatch):
    text = table.write_csv().encode()
    source = tmp_path / f"r.{kind}"
    if kind == "parquet":
        table.write_parquet(source)
    elif kind == "stdin":
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(text))))
        source = "-"
    else:
        source.write_bytes(
            {"csv": text, "gzip": gzip.compress(text), "dat": text.split(b"\n", 1)[1].replace(b",", b"::")}[kind]
        )
    sizes, found = gathered(RatingStream(source, batch_size=700))
    assert sizes == [700, 700, 700, 700, 200]
    assert found["user"].cast(pl.Int64).equals(table["user"].cast(pl.Int64))
    assert found["item"].cast(pl.Int64).equals(table["item"].cast(pl.Int64))
    np.testing.assert_allclose(found["rating"], table["rating"], rtol=1e-6)


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_what_was_learned_is_skipped(table, tmp_path, suffix):
    source = tmp_path / f"r.{suffix}"
    (table.write_csv if suffix == "csv" else table.write_parquet)(source)
    whole = list(RatingStream(source, batch_size=700))
    first = RatingStream(source, batch_size=700)
    some = iter(first)
    next(some), next(some)
    later = RatingStream(source, batch_size=700)
    later.resume(1400, first.users.labels, first.items.labels)
    for a, b in zip(whole[2:], later, strict=True):
        assert all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize(
    ("line", "wrong"),
    [("7,8", "line 5: 2 fields instead of 3"), ("7,8,good", "line 5: the rating is no number"), ("7,,3", "line 5: no item")],
)  # fmt: skip
def test_bad_lines_are_named(tmp_path, line, wrong):
    (tmp_path / "r.csv").write_text(f"user,item,rating\n1,2,3\n1,3,3\n2,2,3\n{line}\n3,2,3\n")
    with pytest.raises(DataError, match=wrong):
        list(RatingStream(tmp_path / "r.csv", batch_size=2))


def test_bad_sources(tmp_path):
    with pytest.raises(DataError, match="is no file; give a ratings file, or -"):
        list(RatingStream(tmp_path / "none", batch_size=2))
    with pytest.raises(ValueError, match="batch_size must be ≥ 1, got 0"):
        RatingStream(tmp_path / "none", batch_size=0)


def test_the_command_learns_and_its_tables_are_used(table, tmp_path):
    train, held = table.head(2500), table.tail(500)
    train.write_csv(tmp_path / "r.csv")
    held.write_csv(tmp_path / "t.csv")
    told = call(tmp_path / "r.csv", "--test", tmp_path / "t.csv", "--out", tmp_path / "run", *WORDS)
    assert told["ratings"] == 2500
    assert told["batches"] == 4
    assert told["test"]["mse"] < told["validation"]["mse"] < np.var(table["rating"].to_numpy())
    assert told["test"]["mse"] < 0.5 * np.var(held["rating"].to_numpy())
    model = ant.Recommender.load(tmp_path / "run")
    assert model.user_labels_.to_list() == sorted(set(train["user"]))
    mse = np.square(model.predict(held["user"], held["item"]) - held["rating"].to_numpy()).mean()
    assert mse == pytest.approx(told["test"]["mse"], rel=1e-5)
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [row["ratings"] for row in rows] == [700, 1400, 2100, 2500]
    assert all(row["anchors"]["users"] >= 1 for row in rows)
    done = CliRunner().invoke(app, ["evaluate", str(tmp_path / "run")])
    assert "there is no split" in str(done.exception)


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


def test_a_high_price_leaves_one_anchor_and_the_run_is_used(table, tmp_path):
    table.write_csv(tmp_path / "r.csv")
    told = call(tmp_path / "r.csv", "--out", tmp_path / "run", *WORDS, "--price", "1000")
    assert told["nnz"] == {"users": 0, "items": 0}
    done = CliRunner().invoke(app, ["export", str(tmp_path / "run"), str(tmp_path / "small"), "--values", "int8"])
    assert done.exit_code == 0, done.output
    assert ant.load_table(tmp_path / "small" / "users.ant").shape == (80, 8)


def test_a_fixed_number_of_anchors_stays(table, tmp_path):
    table.write_csv(tmp_path / "r.csv")
    told = call(tmp_path / "r.csv", "--out", tmp_path / "run", *WORDS, "--anchors", "3,5", "--price", "0.01")
    assert told["anchors"] == {"users": 3, "items": 5}


@pytest.mark.parametrize(
    ("words", "wrong"),
    [(["--budget", "10x"], "budget='10x' cannot be had on a stream"), (["--unseen", "0.1"], "unseen=0.1 cannot"),
     (["--on-error", "skip"], "on_error='skip' cannot"), (["--test", "none.csv"], r"none\.csv is no file")],
)  # fmt: skip
def test_what_a_stream_cannot_do(table, tmp_path, words, wrong):
    table.write_csv(tmp_path / "r.csv")
    done = CliRunner().invoke(app, ["train", "recommend", str(tmp_path / "r.csv"), *WORDS, *words])
    assert done.exit_code == 1
    with pytest.raises(ValueError, match=wrong):
        raise done.exception


def test_a_stopped_stream_goes_on_and_repeats_nothing(table, tmp_path, monkeypatch):
    table.write_csv(tmp_path / "r.csv")
    call(tmp_path / "r.csv", "--out", tmp_path / "whole", *WORDS)
    learn, learned = Stream.learn, []

    def stops(self, columns):
        if self.batches == 2:
            raise MemoryError
        learned.append(self.batches)
        return learn(self, columns)

    monkeypatch.setattr(Stream, "learn", stops)
    words = [tmp_path / "r.csv", "--out", tmp_path / "r", *WORDS]
    with pytest.raises(MemoryError):
        CliRunner().invoke(app, ["train", "recommend", *map(str, words)], catch_exceptions=False)
    monkeypatch.setattr(Stream, "learn", lambda self, columns: learned.append(self.batches) or learn(self, columns))
    call(*words, "--resume")
    assert learned == [0, 1, 2, 3, 4]
    for name in ("users.ant", "items.ant", "users.labels.parquet"):
        assert (tmp_path / "r" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
