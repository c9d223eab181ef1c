"""Ratings from files and standard input, batch by batch, in the file's order."""

import gzip
import io
import sys

import numpy as np
import polars as pl
import pytest

from antembed.data.text_file import DataError
from antembed.recommend.read_stream import RatingStream
from antembed.recommend.synthetic import planted, ratings


@pytest.fixture(scope="module")
def table():
    users = planted(80, 8, anchors=4, exponent=0.3, seed=1)
    items = planted(50, exponent=0.3, seed=2, like=users)
    u, i, v = ratings(users, items, 3000, noise=0.1, seed=3).columns
    return pl.DataFrame({"user": 1000 - u, "item": i * 10, "rating": v})


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
