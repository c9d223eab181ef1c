"""A stream against many passes, on MovieLens 1M in the order of time; and memory on a stream ten times as long.

    python -m experiments bench online ml-1m/ratings.dat [--record results/online.jsonl]

A tenth of the ratings, drawn at random, is held out; the others are learned once, in the order of time, or all at once.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import polars as pl

from antembed.recommend import synthetic
from antembed.recommend.config import RatingsConfig
from antembed.train.options import from_options
from antembed.train.run import train
from antembed.train.run_folder import RunFolder
from antembed.train.splits import split
from experiments.race import parse, publish

OPTIONS = {"anchors": "auto", "embedding_dim": 10, "l0_penalty": 1.0, "ridge": 6.0, "ridge_per_rating": 0.02, "threads": 2}
BATCHES = (100_000, 20_000)
SHORT, LONG = 300_000, 10  # ratings, and how many times as long


def peak_of(path: Path, out: Path) -> float:
    """GB that a process needs for a stream, at most."""
    words = ["--solver", "online", "--embedding-dim", "10", "--l0-penalty", "1", "--batch-size", "100000", "--epochs", "6"]
    words += ["--out", str(out)]
    child = (
        "import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True, capture_output=True); "
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1e6)"
    )
    command = [sys.executable, "-c", child, sys.executable, "-m", "antembed", "train", "recommend", str(path), *words]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def main(words: list[str]) -> None:
    chosen = parse(words, __doc__, "ratings")
    text = pl.read_csv(chosen.ratings, has_header=False, separator=":", new_columns=list("aXbYcZd"))
    frame = text.select(user="a", item="b", rating=pl.col("c").cast(pl.Float32), when="d")
    cut = split(len(frame), "90/10", 0)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        frame[cut["train"]].sort("when", maintain_order=True).drop("when").write_csv(folder / "train.csv")
        frame[cut["test"]].drop("when").write_csv(folder / "test.csv")
        results, paths = {}, {}
        for size in BATCHES:
            files = {"data": str(folder / "train.csv"), "test": str(folder / "test.csv")}
            options = files | {"solver": "online", "batch_size": size, "epochs": 20}
            out = folder / f"online-{size}"
            result = train(from_options(RatingsConfig, OPTIONS | options), out)
            label = f"a stream, batches of {size:,}"
            results[label] = {key: result[key] for key in ("test", "validation", "parameters", "bytes", "seconds", "anchors")}
            paths[label] = [{key: row[key] for key in ("ratings", "anchors", "mse_before")} for row in RunFolder(out).rows()]
        options = {"data": chosen.ratings, "solver": "coordinate_descent", "epochs": 16, "split": "90/10"}
        result = train(from_options(RatingsConfig, OPTIONS | options), folder / "whole")
        kept = ("test", "parameters", "bytes", "seconds", "anchors")
        results["all together, 16 sweeps"] = {key: result[key] for key in kept}
        memory = {}
        for times in (1, LONG):
            path = folder / f"stream-{times}.csv"
            long_stream(path, times * SHORT)
            memory[f"{times * SHORT:,} ratings"] = round(peak_of(path, folder / f"memory-{times}"), 2)
    publish(
        chosen.record,
        {
            "benchmark": "online",
            "setting": "MovieLens 1M in the order of time, a tenth held out at random, seed 0, anchors auto",
            "results": results,
            "paths": paths,
            "peak_gigabytes": memory,
            "settings": OPTIONS,
        },
    )


def long_stream(path: Path, n: int) -> None:
    """Synthetic ratings of 6000 users and 4000 items, however many."""
    users = synthetic.planted(6000, 10, anchors=8, seed=1)
    items = synthetic.planted(4000, seed=2, like=users)
    with open(path, "w") as file:
        file.write("user,item,rating\n")
        for seed in range(n // SHORT):
            columns = synthetic.ratings(users, items, SHORT, noise=0.3, seed=seed).columns
            pl.DataFrame(dict(zip(("user", "item", "rating"), columns, strict=True))).write_csv(file, include_header=False)
