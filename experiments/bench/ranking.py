"""Lists of ten on MovieLens 1M: each user's last fifth is held out, and what they liked in it (4 or 5 stars) is to be found.

    python -m experiments bench ranking ml-1m/ratings.dat [--record results/ranking.jsonl]

Contestants: the most rated items, the best by bias, our model of ratings, and our model of choices. Settings of the latter were
chosen on the fifth before the last (--choose), trained on what is before that.
"""

import time
from collections.abc import Iterator

import numpy as np
import polars as pl

import antembed as ant
from experiments.race import parse, publish

LIKED, TEN = 4, 10
CHOICES = {
    "anchors": 48,
    "embedding_dim": 16,
    "l0_penalty": 0.1,
    "ridge": 5.0,
    "ridge_per_rating": 0.1,
    "unobserved_weight": 0.3,
    "epochs": 12,
}
SEEN = 0.4  # what a rating of fewer stars counts as, where liked is 1 and unobserved 0


def read(path: str) -> pl.DataFrame:
    """user, item, rating, when, and `part`: 0 (to train on), 1 (to choose by) or 2 (held out), by each user's time."""
    text = pl.read_csv(path, has_header=False, separator=":", new_columns=list("aXbYcZd"))
    frame = text.select(user="a", item="b", rating=pl.col("c").cast(pl.Float32), when="d")
    place = pl.col("when").rank("ordinal").over("user") / pl.len().over("user")
    return frame.with_columns(part=pl.when(place > 0.8).then(2).when(place > 0.6).then(1).otherwise(0))


def hits(lists: np.ndarray, wanted: Iterator[np.ndarray]) -> Iterator[tuple[np.ndarray, int]]:
    """For each list: which of its places are wanted, and how many are wanted in all."""
    for items, those in zip(lists, wanted, strict=True):
        yield np.isin(items, those), len(those)


def recall_at(lists: np.ndarray, wanted: Iterator[np.ndarray]) -> float:
    """Mean over lists of: wanted items in the list ÷ as many as could be there. Lists without any wanted are left out."""
    shares = [found.sum() / min(n, len(found)) for found, n in hits(lists, wanted) if n]
    return float(np.mean(shares)) if shares else float("nan")


def ndcg_at(lists: np.ndarray, wanted: Iterator[np.ndarray]) -> float:
    """Mean over lists of: Σ over wanted items of 1/log2(place + 1) ÷ the best such sum. Lists without any are left out."""
    gains = []
    for found, n in hits(lists, wanted):
        if n:
            discount = 1 / np.log2(np.arange(2, len(found) + 2))
            gains.append((found * discount).sum() / discount[: min(n, len(found))].sum())
    return float(np.mean(gains)) if gains else float("nan")


def main(words: list[str]) -> None:
    chosen = parse(words, __doc__, "ratings", choose=False, set=[])
    frame = read(chosen.ratings)
    train = frame.filter(pl.col("part") < (1 if chosen.choose else 2))
    held = frame.filter((pl.col("part") == (1 if chosen.choose else 2)) & (pl.col("rating") >= LIKED))
    users = held["user"].unique().sort()
    held = held.group_by("user", maintain_order=True).agg("item").sort("user")

    def wanted() -> Iterator[np.ndarray]:
        return (np.asarray(items) for items in held["item"])

    def evaluate(found: pl.DataFrame) -> dict[str, float]:
        lists = np.zeros((len(users), TEN), np.int64)
        place = found.with_columns(place=pl.int_range(pl.len()).over("user"))
        rows = np.searchsorted(users.to_numpy(), place["user"].to_numpy())
        lists[rows, place["place"].to_numpy()] = place["item"].to_numpy()
        return {"ndcg@10": round(ndcg_at(lists, wanted()), 4), "recall@10": round(recall_at(lists, wanted()), 4)}

    overrides = {name: float(value) if "." in value else int(value) for name, value in (o.split("=") for o in chosen.set)}
    options = {"l0_penalty": 1.0, "ridge": 6.0, "ridge_per_rating": 0.02}
    ratings = ant.Recommender(anchors=48, embedding_dim=10, epochs=16, threads=2, options=options)
    choices = ant.Recommender(threads=2, options=CHOICES | overrides)
    results, seconds = {}, {}
    for name, model, data in (
        ("our model of ratings", ratings, train),
        (
            "our model of choices",
            choices,
            train.with_columns(rating=pl.when(pl.col("rating") >= LIKED).then(1.0).otherwise(SEEN)),
        ),
    ):
        started = time.perf_counter()
        model.fit(data.select("user", "item", "rating"))
        fitted = time.perf_counter()
        found = model.recommend(users, TEN)
        seconds[name] = {"fit": round(fitted - started, 1), "lists": round(time.perf_counter() - fitted, 2)}
        results[name] = evaluate(found) | {"bytes": model.users_.size + model.items_.size}
    for name, score in (
        ("most rated", train["item"].value_counts().rename({"count": "score"})),
        (
            "best by bias",
            pl.DataFrame({"item": ratings.item_labels_, "score": ratings.items_.bias_of(np.arange(len(ratings.item_labels_)))}),
        ),
    ):
        ranked = users.to_frame("user").join(score.top_k(1200, by="score"), how="cross")
        unseen = ranked.join(train, on=["user", "item"], how="anti").sort("user", "score", descending=[False, True])
        results[name] = evaluate(unseen.group_by("user", maintain_order=True).head(TEN))
    publish(
        chosen.record,
        {
            "benchmark": "lists of ten",
            "setting": f"MovieLens 1M, each user's last fifth held out, {len(users):,} users, liked is {LIKED} stars or more",
            "evaluated_on": "the fifth before the last" if chosen.choose else "the last fifth",
            "results": results,
            "seconds": seconds,
            "settings": CHOICES | overrides,
        },
    )
