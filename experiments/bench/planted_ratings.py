"""Ratings from a generator that no default was chosen on: is the noise reached, and the true number of anchors found?

    python -m experiments bench planted_ratings [--seeds 0 1 2] [--only recode …] [--record results/planted.jsonl]

Users and items are mixes of five anchors each, with exponential weights of 30 % density, in 16 dimensions; the noise is .09 (a
mean squared error of .0081), and there are no biases to find.
"""

import tempfile
import time
from pathlib import Path

import numpy as np
import polars as pl

from antembed.files import JSON
from antembed.recommend.ratings_table import Ratings
from antembed.train.configure import configure
from antembed.train.registry import TASKS
from antembed.train.run import train
from experiments.race import parse, publish

USERS, ITEMS, RATINGS, ANCHORS, WIDTH, DENSITY, NOISE = 3_000, 1_500, 400_000, 5, 16, 0.3, 0.09
WAYS: dict[str, JSON] = {
    "paper's prox, true K": {"solver": "stochastic", "sparsify": "prox", "anchors": (ANCHORS,), "embedding_dim": WIDTH},
    "recode": {"solver": "stochastic", "budget": "14k"},
    "recode, true K": {"solver": "stochastic", "budget": "14k", "anchors": (ANCHORS,)},
    "anchors auto": {"anchors": "auto"},
    "defaults": {},
}


def generate(seed: int) -> Ratings:
    rng = np.random.default_rng(seed)

    def table(objects: int) -> np.ndarray:
        anchors = rng.standard_normal((ANCHORS, WIDTH))
        anchors /= np.linalg.norm(anchors, axis=1)[:, None]
        return (rng.exponential(1, (objects, ANCHORS)) * (rng.random((objects, ANCHORS)) < DENSITY)) @ anchors

    users, items = table(USERS), table(ITEMS)
    u, i = rng.integers(0, USERS, RATINGS), rng.integers(0, ITEMS, RATINGS)
    values = 3.5 + np.einsum("nd,nd->n", users[u], items[i]) + NOISE * rng.standard_normal(RATINGS)
    labels = pl.Series("user", np.arange(USERS)), pl.Series("item", np.arange(ITEMS))
    return Ratings(u.astype(np.int32), i.astype(np.int32), values.astype(np.float32), *labels)


def main(words: list[str]) -> None:
    given = parse(words, __doc__, seeds=[0, 1, 2], only=list(WAYS))
    for seed in given.seeds:
        made = generate(seed)
        for way in given.only:
            started = time.perf_counter()
            with tempfile.TemporaryDirectory() as folder:
                data = Path(folder) / "ratings.csv"
                frame = pl.DataFrame({"user": made.users, "item": made.items, "rating": made.values})
                frame.write_csv(data)
                config, splits = configure(TASKS["recommend"], {"data": str(data), "seed": seed, **WAYS[way]}, print)
                result = train(config, Path(folder) / "run", splits=splits)
            record = {
                "planted": way,
                "seed": seed,
                "noise": NOISE**2,
                "true_anchors": ANCHORS,
                "test_mse": result["test"]["mse"],
            }
            record |= {"anchors": result["anchors"], "parameters": result["parameters"], "epochs": result.get("epochs")}
            publish(given.record, {**record, "seconds": round(time.perf_counter() - started, 1)})
