"""Ratings as a task: every embedding learns, starts well, and is counted as it should be."""

import itertools
import json

import numpy as np
import polars as pl
import pytest
import torch
from tests.command import QUICK, call, write_ratings

import antembed as ant
from antembed.baselines import EMBEDDINGS
from antembed.recommend.config import RatingsConfig, RatingsInput
from antembed.recommend.dataset import RatingsSplits, cut
from antembed.recommend.in_memory import ratings_of
from antembed.recommend.task import Ratings
from antembed.tables.row_labels import LABELLED
from antembed.train.options import ConfigError, from_options
from antembed.train.run import load_model, train
from antembed.train.splits import split

UNSUITABLE = {name: " and ".join(kind.requires) for name, kind in EMBEDDINGS.items() if kind.requires - RatingsConfig.provides}
SUITABLE = [name for name in EMBEDDINGS if name not in UNSUITABLE]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_ratings(tmp_path_factory.mktemp("data") / "ratings.csv")


@pytest.mark.parametrize("embedding", SUITABLE)
def test_every_embedding_learns_and_is_opened_again(data, tmp_path, embedding):
    """Files and checkpoint, opened without the data (so without counts of users and items), say the same."""
    options = {
        "data": str(data),
        "embedding": embedding,
        "anchors": (60, 40) if embedding in ("frequency", "hashed") else (6, 5),
        "embedding_dim": 8,
        "l1_penalty": 1e-6,
        "prune": 0,
        "biases": False,
        "lr": 0.2,
        "batch_size": 128,
        "epochs": 3,
        "engine": "torch",
    }
    if EMBEDDINGS[embedding].variational:  # the noise is learned as a logarithm, which large steps carry away
        options |= {"lr": 0.1, "schedule": "cosine", "epochs": 6}
    if embedding == "tensor-train":  # a product of three
        options |= {"lr": 0.03, "epochs": 6}
    torch.set_num_threads(1)  # batches this small are faster so, on a busy machine many times
    result = train(from_options(RatingsConfig, options), tmp_path / "r")
    rows = [json.loads(line) for line in (tmp_path / "r" / "metrics.jsonl").read_text().splitlines()]
    assert min(row["train_loss"] for row in rows[1:]) < 0.93 * rows[0]["train_loss"]
    tables = {name: ant.load_table(tmp_path / "r" / f"{name}.ant") for name in ("users", "items")}
    for name, layer in load_model(tmp_path / "r").embeddings.items():
        np.testing.assert_allclose(tables[name][:], layer.to_dense().detach().numpy(), atol=1e-5)
    if embedding not in ("softmax-mixture", "tensor-train"):  # whose files have one more column, or are dense
        assert result["parameters"] == sum(table.parameters for table in tables.values())


def test_tables_that_need_documents_are_not_for_ratings():
    assert UNSUITABLE == {"sparse-code": "features", "tf-idf": "tf-idf"}
    for name, missing in UNSUITABLE.items():
        with pytest.raises(ConfigError, match=f"embedding {name} needs {missing} of the objects, which recommend has not"):
            from_options(RatingsConfig, {"embedding": name})


@pytest.mark.parametrize("embedding", ["slimming", "slimming-transform", "anchor"])
def test_max_nonzeros_says_how_many_non_zeros_are_left(data, tmp_path, embedding):
    more = ("--embedding", embedding, "--epochs", 1, "--max-nonzeros", 300, "--threads", 1)
    result = json.loads(call("train", "recommend", data, "--out", tmp_path / "r", *QUICK, *more, "--json"))
    assert sum(result["nnz"].values()) == 300


@pytest.mark.parametrize("embedding", SUITABLE)
@pytest.mark.parametrize("objects", [(30, 20), (6040, 3706), (400_000, 50_000)])
def test_every_model_starts_near_the_mean_but_not_at_nothing(embedding, objects):
    labels = {side: pl.Series("label", np.arange(V)) for side, V in zip(LABELLED, objects, strict=True)}
    splits = RatingsSplits(labels=labels, mean=3.0)
    model = Ratings().build(from_options(RatingsConfig, {"embedding": embedding}), splits).eval()
    rng = torch.Generator().manual_seed(0)
    users, items = (torch.randint(0, V, (2000,), generator=rng) for V in objects)
    spread = (model(users, items) - 3.0).square().mean().sqrt()
    assert 1e-5 < spread < 0.5


def test_no_penalty_is_counted_where_there_is_none(data, tmp_path):
    call("train", "recommend", data, "--out", tmp_path / "r", *QUICK, "--embedding", "low-rank-nonnegative", "--epochs", 1)
    row = json.loads((tmp_path / "r" / "metrics.jsonl").read_text())
    assert row["penalty"] == 0


def test_few_objects_start_near_the_mean(tmp_path):
    (tmp_path / "few.csv").write_text("user,item,rating\n" + "".join(f"{n % 7},{n % 11},3\n" for n in range(60)))
    result = json.loads(call("train", "recommend", tmp_path / "few.csv", "--out", tmp_path / "r", "--epochs", 3, "--json"))
    assert result["test"]["mse"] < 0.05


def test_epochs_are_compared_at_the_full_penalty(data, tmp_path):
    """Early in the warm-up a non-zero is cheap; that must not make an early epoch the best one."""
    call("train", "recommend", data, "--out", tmp_path / "r", *QUICK, "--l1-warmup", 1, "--prune", 0)
    rows = [json.loads(line) for line in (tmp_path / "r" / "metrics.jsonl").read_text().splitlines()]
    assert rows[0]["l1_penalty"] == pytest.approx(0.25e-4, rel=0.02)
    for row in rows:
        assert row["objective"] == pytest.approx(row["validation"]["loss"] + row["penalty"])
    model = load_model(tmp_path / "r")
    mass = sum(float(table.transform.detach().sum()) for table in model.embeddings.values())
    best = min(rows, key=lambda row: row["objective"])
    assert best["penalty"] == pytest.approx(1e-4 * mass, rel=1e-5)


def test_the_name_of_a_data_set_is_enough(tmp_path, monkeypatch):
    (tmp_path / "ml-1m").mkdir()
    write_ratings(tmp_path / "ml-1m" / "ratings.csv")
    monkeypatch.setenv("ANTEMBED_DATA", str(tmp_path))
    assert Ratings().load(RatingsConfig(input=RatingsInput(data="ml-1m"))).count == 12_000


def test_copies_of_a_pair_are_in_one_part():
    rng = np.random.default_rng(0)
    once = rng.permutation(1000)[:400]
    pairs = np.concatenate([once, once[:100], once[:10]])  # 100 pairs twice, 10 of them three times
    values = np.concatenate([np.full(400, 3.0), np.full(60, 3.0), np.full(40, 4.0), np.full(10, 3.0)])
    splits = cut(ratings_of(pl.Series(pairs // 25), pl.Series(pairs % 25), pl.Series(values)), "80/10/10", 0)
    said = "110 of 510 ratings repeat a user and item, 70 of them with the same rating; all of a pair are in the same part"
    assert splits.complaints == (said + " of the split",)
    rows = [part.rows for part in (splits.train, splits.validation, splits.test)]
    assert np.array_equal(np.sort(np.concatenate(rows)), np.arange(510))
    assert all(len(own) > 30 for own in rows)
    for one, other in itertools.combinations(rows, 2):
        assert not set(pairs[one]) & set(pairs[other])


def test_without_copies_the_split_is_as_ever():
    ratings = ratings_of(pl.Series(np.arange(100) // 10), pl.Series(np.arange(100) % 10), pl.Series(np.ones(100)))
    splits, rows = cut(ratings, "80/10/10", 3), split(100, "80/10/10", 3)
    assert splits.complaints == ()
    for name, own in rows.items():
        assert np.array_equal(splits.part(name).rows, own)


def test_too_few_pairs_are_not_split():
    ratings = ratings_of(pl.Series([1] * 20), pl.Series([1] * 20), pl.Series([3.0] * 20))
    with pytest.raises(
        ValueError, match=r"20 ratings of 1 different pairs are too few to split: .* none left; give more pairs"
    ):
        cut(ratings, "80/10/10", 0)
