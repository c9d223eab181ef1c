"""What anchors stand for: on planted tastes with genres that follow them."""

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from antembed.cli.app import app
from antembed.data.text_file import DataError
from antembed.recommend.explain import explain_items as explain_anchors
from antembed.recommend.explain import read_items


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Users of three tastes like the items of their own; item 60 is rated once."""
    folder = tmp_path_factory.mktemp("explained")
    rng = np.random.default_rng(0)
    users, items = rng.integers(0, 90, 6000), rng.integers(0, 60, 6000)
    ratings = 2 + 2 * (users % 3 == items % 3) + 0.1 * rng.standard_normal(6000)
    rows = [f"{u},{i},{r:.3f}" for u, i, r in zip(users, items, ratings, strict=True)]
    (folder / "r.csv").write_text("user,item,rating\n" + "\n".join([*rows, "0,60,3"]) + "\n")
    genres = ("Drama", "Comedy|Drama", "War")
    lines = [f"{i}::Title, of {i}: É::{genres[i % 3]}" for i in range(61)]
    (folder / "movies.dat").write_bytes("\n".join(lines).encode("latin-1"))
    settings = "--solver coordinate_descent --anchors 6 --embedding-dim 4 --l0-penalty 2 --ridge 1 --epochs 12"
    done = CliRunner().invoke(app, f"train recommend {folder}/r.csv --out {folder}/run {settings}".split())
    assert done.exit_code == 0, done.output
    return folder


def explain(run, items):
    return explain_anchors(run, 5, items)[0]


def test_anchors_are_the_tastes(run):
    told = explain(run / "run", run / "movies.dat")
    assert told["purity"] == 1.0
    assert {anchor["genre"] for anchor in told["anchors"]} >= {"Drama", "War"}
    assert all(title.startswith("Title, of ") and title.endswith("É") for title in told["anchors"][0]["best"])
    assert told["zero_rows"]["count"] >= 1
    assert told["zero_rows"]["share_rated_once"] > 0
    assert sum(anchor["items"] for anchor in told["anchors"]) + told["zero_rows"]["count"] == told["zero_rows"]["of"]


def test_the_command_and_what_is_missing(run, tmp_path):
    shown = CliRunner().invoke(app, ["explain", str(run / "run"), "--items", str(run / "movies.dat"), "--top", "2"])
    assert shown.exit_code == 0, shown.output
    assert "purity, all anchors" in shown.stdout
    plain = CliRunner().invoke(app, ["explain", str(run / "run"), "--json"])
    assert json.loads(plain.stdout)["purity"] is None
    with pytest.raises(DataError, match="is no file; give the items"):
        read_items(tmp_path / "none")
    (tmp_path / "odd").write_text("one two three")
    with pytest.raises(DataError, match="no separator found"):
        read_items(tmp_path / "odd")


def test_items_are_found_where_the_data_are(run, tmp_path, monkeypatch):
    (tmp_path / "ml-1m").mkdir()
    (tmp_path / "ml-1m" / "movies.dat").write_bytes((run / "movies.dat").read_bytes())
    monkeypatch.setenv("ANTEMBED_DATA", str(tmp_path))
    assert explain(run / "run", Path("ml-1m/movies.dat")) == explain(run / "run", run / "movies.dat")
