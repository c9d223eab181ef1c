"""Every embedding on labelled text, at comparable sizes, each with the same number of trials.

    python -m experiments bench text_baselines TRAIN.csv TEST.csv --model mean --trials 8 --seeds 3 --record results/text.jsonl

For each method, trials are drawn from its space (seeded, one training each, seed 0). For each limit of parameters the trial
that fits and is best on validation is trained again with further seeds; the table has the test accuracy of those alone
(experiments/text_tables.py). What is in the record already is not run again.
"""

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from antembed.classify.config import TextConfig, read_input
from antembed.classify.task import Text
from antembed.files import JSON
from antembed.sweep.records import append_record, read_records
from antembed.train.options import from_options
from antembed.train.run import train
from experiments.race import command, parse
from experiments.text_tables import LIMITS, best_of

Space = dict[str, Any]


def log(low: float, high: float) -> Any:
    return lambda rng: float(f"{np.exp(rng.uniform(np.log(low), np.log(high))):.3g}")


def whole(low: int, high: int) -> Any:
    return lambda rng: round(np.exp(rng.uniform(np.log(low), np.log(high))))


def one_of(*values: Any) -> Any:
    return lambda rng: values[rng.integers(len(values))]


# How a model learns, whatever the table; ranges set by hand before any trial, after a few runs of full and anchored tables.
COMMON: dict[str, Space] = {
    "mean": {"lr": log(4e-3, 3e-2), "word_dropout": one_of(0.3, 0.4, 0.5, 0.6), "dropout": one_of(0.0, 0.2)},
    "cnn": {"lr": log(2e-3, 6e-3), "word_dropout": one_of(0.3, 0.4, 0.5, 0.6), "dropout": 0.5},
}
ROWS: Space = {"anchors": whole(60, 1200), "l1_penalty": 0.0}
KEPT: Space = {"max_nonzeros": one_of(60_000, 120_000, 300_000)}
# What decides the size of each method is drawn with what decides how it learns.
SPACES: dict[str, Space] = {
    "full": {"l1_penalty": 0.0},
    "anchor": {
        "anchors": whole(8, 40),
        "l1_penalty": log(5e-6, 1.5e-4),
        "anchor_init": one_of("none", "frequency", "kmeans", "frequency-kmeans"),
    },
    "low-rank": {"anchors": one_of(1, 2, 3, 4, 6), "l1_penalty": 0.0},
    "low-rank-nonnegative": {"anchors": one_of(1, 2, 3, 4, 6), "l1_penalty": 0.0},
    "mixture": {"anchors": whole(8, 40), "l1_penalty": log(5e-6, 1.5e-4)},
    "softmax-mixture": {"anchors": whole(8, 40), "l1_penalty": log(5e-6, 1.5e-4)},
    "frequency": ROWS,
    "tf-idf": ROWS,
    "hashed": ROWS,
    "group-lasso": KEPT | {"l1_penalty": log(0.02, 0.4)},  # in the plain metric
    "vvd": KEPT | {"l1_penalty": 0.0},
    "sparse-vd": KEPT | {"l1_penalty": 0.0},
    "sparse-vd-words": KEPT | {"l1_penalty": 0.0},
    "sparse": KEPT | {"l1_penalty": log(1e-7, 1e-5)},
    "slimming": KEPT | {"l1_penalty": log(1e-7, 1e-5)},
    "sparse-code": {"anchors": whole(50, 400), "l1_penalty": 0.0},
}


def drawn(model: str, embedding: str, trials: int) -> list[JSON]:
    """The trials of a method, the same whatever other methods there are."""
    rng = np.random.default_rng([len(embedding), *embedding.encode()])
    space = COMMON[model] | SPACES[embedding]
    return [{name: value(rng) if callable(value) else value for name, value in space.items()} for _ in range(trials)]


def main(words: list[str]) -> None:
    asked = parse(
        words,
        __doc__,
        "train",
        "test",
        model="mean",
        methods=",".join(SPACES),
        trials=8,
        seeds=3,
        epochs=8,
        threads=1,
        record="results/text.jsonl",
    )
    torch.set_num_threads(asked.threads)
    base = {"data": asked.train, "test": asked.test, "model": asked.model, "epochs": asked.epochs, "threads": asked.threads}
    documents = read_input(from_options(TextConfig, base).input)
    done = {key_of(row): row for row in (read_records(asked.record) if Path(asked.record).exists() else [])}

    def run(embedding: str, trial: JSON, seed: int) -> JSON:
        row = {"trial": trial, "model": asked.model, "embedding": embedding, "seed": seed, "epochs_at_most": asked.epochs}
        if (key := key_of(row)) in done:
            return done[key]
        config = from_options(TextConfig, base | {"embedding": embedding, "seed": seed} | trial)
        with tempfile.TemporaryDirectory() as folder:
            result = train(config, Path(folder) / "run", splits=Text().split(config, *documents))
        row = result | row | {"config": config.model_dump(mode="json"), "command": command()}
        done[key] = row
        append_record(asked.record, row)
        accuracy = result["validation"]["accuracy"]
        print(f"{asked.model} {embedding} seed {seed}: {accuracy:.4f} @ {result['parameters']:,} {trial}", flush=True)
        return row

    for embedding in asked.methods.split(","):
        trials = [run(embedding, trial, 0) for trial in drawn(asked.model, embedding, asked.trials)]
        for times in LIMITS:
            best = best_of(trials, times)
            for seed in range(1, asked.seeds if best else 0):
                run(embedding, best["trial"], seed)


def key_of(row: JSON) -> str:
    """Equal for equal runs."""
    return json.dumps([row[name] for name in ("model", "embedding", "seed", "trial", "epochs_at_most")], sort_keys=True)
