"""Events without ratings: found by themselves, cut by time, evaluated by lists."""

import json

import numpy as np
import polars as pl
import pytest
from scipy import sparse
from tests.command import call, refusal
from tests.recommend.test_ranking import ndcg_at, recall_at

import antembed as ant
from antembed.data.text_file import DataError
from antembed.recommend.in_memory import ratings_of
from antembed.recommend.ranking import Held, list_metrics
from antembed.recommend.seen import Seen
from antembed.recommend.task import Events, split_events
from antembed.tables.neighbours import best_items

GROUPS, USERS, ITEMS = 4, 240, 80


def events(seed=0, n=12):
    """Users choose items of their own group, in a random order: (users, items)."""
    rng = np.random.default_rng(seed)
    users = np.repeat(np.arange(USERS), n)
    own = rng.random(len(users)) < 0.9
    items = np.where(
        own, GROUPS * rng.integers(0, ITEMS // GROUPS, len(users)) + users % GROUPS, rng.integers(0, ITEMS, len(users))
    )
    return users, items


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("events") / "events.csv"
    users, items = events()
    path.write_text("user,item\n" + "".join(f"u{u},i{i}\n" for u, i in zip(users, items, strict=True)))
    return path


def test_a_file_without_ratings_is_trained_on_what_is_chosen(file, tmp_path):
    call("train", "recommend", file, "--out", tmp_path / "run")
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert (result["task"], result["metric"]) == ("recommend-events", "ndcg@10")
    assert result["test"]["ndcg@10"] > 2 * result["baselines"]["the most popular items"]
    assert 0 < result["test"]["recall@10"] <= 1
    assert result["remarks"] == []
    rows = json.loads(call("recommend", tmp_path / "run", "u1", "--items", 5, "--json"))
    assert sum(int(row["item"][1:]) % GROUPS == 1 for row in rows) >= 4
    call("export", tmp_path / "run", tmp_path / "small", "--with-seen")
    assert json.loads(call("recommend", tmp_path / "small", "u1", "--items", 5, "--json")) == rows


def test_a_solver_that_cannot_learn_events_is_refused(file, tmp_path):
    said = refusal("train", "recommend", file, "--solver", "stochastic", "--out", tmp_path / "r")
    assert "recommend-events is trained by coordinate_descent, not stochastic; leave out --solver" in said


def test_splits_of_events_are_not_for_ratings(file, tmp_path):
    (tmp_path / "r.csv").write_text("user,item,rating\n" + "".join(f"{n % 9},{n % 7},{n % 5}\n" for n in range(90)))
    assert "split last is for events" in refusal("train", "recommend", tmp_path / "r.csv", "--split", "last")
    out = tmp_path / "time"
    call("train", "recommend", file, "--split", "time", "--ridge", 0.3, "--epochs", 2, "--l0-penalty", 0.001, "--out", out)
    assert json.loads((out / "result.json").read_text())["task"] == "recommend-events"


def test_the_last_events_are_held_out():
    users = pl.Series([0, 0, 0, 0, 1, 1, 2, 2, 2])
    items = pl.Series([5, 6, 7, 8, 5, 6, 5, 6, 7])
    times = pl.Series([3.0, 1.0, 4.0, 2.0, 1.0, 2.0, 1.0, 2.0, 3.0])
    found = ratings_of(users, items, None, times)
    rows = split_events(found, "last")
    pairs = {part: {(int(found.users[r]), int(found.item_labels[int(found.items[r])])) for r in rows[part]} for part in rows}
    assert pairs["test"] == {(0, 7), (2, 7)}  # user 1 has too few to be tested on
    assert pairs["validation"] == {(0, 5), (2, 6)}
    assert pairs["train"] == {(0, 6), (0, 8), (1, 5), (1, 6), (2, 5)}
    by_time = split_events(found, "time")
    assert max(found.times[by_time["train"]]) <= min(found.times[by_time["test"]])
    with pytest.raises(DataError, match="2 events of 2 users are too few to hold some out: users need 3 or more"):
        split_events(ratings_of(pl.Series([1, 2]), pl.Series([1, 2])), "last")


def test_lists_are_measured_as_by_the_plain_functions():
    rng = np.random.default_rng(1)
    users, items, bias = rng.standard_normal((30, 4)), rng.standard_normal((50, 4)), rng.standard_normal(50)
    known, wanted = ((rng.integers(0, 30, n), rng.integers(0, 50, n)) for n in (90, 60))
    wanted = np.unique(np.stack(wanted), axis=1)
    asked = np.unique(wanted[0])
    held = Held(asked, Seen.of(*wanted, 30, 50), Seen.of(*known, 30, 50))
    found = list_metrics(lambda rows: users[rows], items, bias, held)
    lists, _ = best_items(users[asked], items, bias, 10, held.known.by(asked))
    for name, plain in (("recall@10", recall_at), ("ndcg@10", ndcg_at)):
        assert found[name] == pytest.approx(plain(lists, iter([wanted[1][wanted[0] == user] for user in asked])))


def test_the_recommender_learns_events_columns_and_matrices():
    users, items = events()
    counts = sparse.csr_array((np.ones(len(users)), (users, items)), (USERS, ITEMS))
    for given in ((users, items), (counts,), (pl.DataFrame({"user": users, "item": items}),)):
        model = ant.Recommender(embedding_dim=8, anchors=8, epochs=4, options={"ridge": 0.3, "l0_penalty": 1e-3})
        model.fit(*given)
        best = model.recommend([1], k=5)["item"].to_list()
        assert sum(item % GROUPS == 1 for item in best) >= 4
    assert Events().name == model.config.task


def test_ratings_as_counts(tmp_path):
    users, items = events()
    rows = "".join(f"u{u},i{i},{1 + n % 3}\n" for n, (u, i) in enumerate(zip(users, items, strict=True)))
    (tmp_path / "plays.csv").write_text("user,item,rating\n" + rows)
    options = ("--ridge", 0.3, "--epochs", 3, "--l0-penalty", 0.001, "--out", tmp_path / "run")
    call("train", "recommend", tmp_path / "plays.csv", "--implicit", *options)
    assert json.loads((tmp_path / "run" / "result.json").read_text())["metric"] == "ndcg@10"
