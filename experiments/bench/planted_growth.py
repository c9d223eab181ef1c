"""nbANT on planted ratings: does it end at the planted number of anchors, and as low as the best of a sweep over all K?

    python -m experiments bench planted_growth [--planted 3 6 12] [--starts 1 10 30] [--seeds 0 1 2]

For every planted K* and seed: a sweep over fixed K (the same objective, eq. 5, of the exported model on validation data; both
tables alike), then both policies from every start. One record a case.
"""

import tempfile
import time
from pathlib import Path

import torch

from antembed.files import JSON
from antembed.layer.growth_rule import nbant_objective
from antembed.recommend.config import RatingsConfig
from antembed.recommend.dataset import cut
from antembed.recommend.ratings_table import Ratings
from antembed.recommend.synthetic import planted, ratings
from antembed.train.options import from_options
from antembed.train.run import train
from experiments.race import parse, publish

USERS, ITEMS, RATINGS, NOISE, WIDTH = 300, 200, 60_000, 0.2, 16
# An anchor lowers the loss by 0.2/K* or so; it must cost less than that, and more than nothing.
ANCHOR_PENALTY, L0_PENALTY = 1e-3, 1e-5
COMMON: JSON = {"l1_penalty": L0_PENALTY, "biases": False, "batch_size": 64, "embedding_dim": WIDTH}
SWEPT, GROWN, TREND = 120, 300, 60  # epochs


def data(K: int, seed: int) -> Ratings:
    users = planted(USERS, WIDTH, anchors=K, exponent=0, seed=seed)
    return ratings(users, planted(ITEMS, exponent=0, seed=seed + 1, like=users), RATINGS, mean=0, noise=NOISE, seed=seed + 2)


def run(options: JSON, given: Ratings) -> JSON:
    """K in use, eq. 5 on validation data, epochs and seconds of one run."""
    config = from_options(RatingsConfig, COMMON | options)
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        result = train(config, Path(folder) / "run", splits=cut(given, config.input.split, config.machine.seed))
    loss, K = result["validation"]["loss"], sum(result["anchors"].values())
    objective = nbant_objective(loss, sum(result["nnz"].values()), K, ANCHOR_PENALTY, L0_PENALTY)
    found = {"anchors": result["anchors"], "objective": round(objective, 5), "loss": round(loss, 5), "epochs": result["epochs"]}
    return found | {"seconds": round(time.perf_counter() - started, 1)}


def main(words: list[str]) -> None:
    chosen = parse(words, __doc__, planted=[3, 6, 12], starts=[1, 10, 30], seeds=[0, 1, 2], reach=4)
    torch.set_num_threads(1)
    for seed in chosen.seeds:
        for wanted in chosen.planted:
            given = data(wanted, seed)
            sweep = {
                K: run({"anchors": K, "seed": seed, "epochs": SWEPT, "schedule": "cosine"}, given)["objective"]
                for K in [*range(1, wanted + chosen.reach + 1), 20, 30]
            }
            lowest = min(sweep, key=lambda K: sweep[K])
            for start in chosen.starts:
                for policy, epochs in (("plateau", GROWN), ("trend", TREND)):
                    growth = {"anchors": "auto", "growth": policy, "initial_anchors": start, "anchor_penalty": ANCHOR_PENALTY}
                    found = run(growth | {"seed": seed, "epochs": epochs}, given)
                    publish(
                        chosen.record,
                        {
                            "benchmark": "planted growth",
                            "policy": policy,
                            "planted": wanted,
                            "start": start,
                            "seed": seed,
                            **found,
                            "off": max(abs(K - wanted) for K in found["anchors"].values()),
                            "over_sweep": round(found["objective"] / sweep[lowest] - 1, 4),
                            "sweep": sweep,
                            "sweep_lowest_at": lowest,
                            "anchor_penalty": ANCHOR_PENALTY,
                            "l0_penalty": L0_PENALTY,
                        },
                    )
