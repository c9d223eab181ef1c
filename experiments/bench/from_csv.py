"""From a CSV of 25 million ratings to a trained and exported model, with one command; and what reading takes of it.

    python -m experiments bench from_csv [--ratings 25000000] [--record results/bench.jsonl]

The ratings have the shape of MovieLens 25M and planted tastes. Reading is measured with an empty cache and with a full one,
once with whole numbers for labels and once with text.
"""

import json
import tempfile
import time
from pathlib import Path

import polars as pl

from antembed.files import default_cache
from antembed.recommend.read_ratings import read_ratings
from experiments.bench.factorization import ITEMS, USERS
from experiments.race import antembed, parse, publish
from experiments.synthetic_stream import stream


def write_csv(path: Path, n: int, text: bool) -> None:
    with open(path, "wb") as file:
        file.write(b"userId,movieId,rating,timestamp\n")
        for users, items, values in stream((USERS, ITEMS), n):
            frame = pl.DataFrame(
                {"user": users, "item": items, "rating": (values * 2).round() / 2, "when": 1_234_567_890 + users}
            )
            if text:
                frame = frame.with_columns(pl.format("user-{}", "user").alias("user"), pl.format("B{}X", "item").alias("item"))
            frame.write_csv(file, include_header=False)


def main(words: list[str]) -> None:
    chosen = parse(words, __doc__, ratings=25_000_000)
    default_cache().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=default_cache()) as name:
        folder, reading = Path(name), {}
        for kind in ("text", "numbers"):
            file = folder / f"{kind}.csv"
            write_csv(file, chosen.ratings, kind == "text")
            read_ratings(file, cache=folder / "warm-up")  # compiles, and brings the file into memory
            for state in ("empty", "full"):
                started = time.perf_counter()
                read_ratings(file, cache=folder / "cache")
                reading[f"{kind}, {state} cache"] = round(time.perf_counter() - started, 2)
        size = file.stat().st_size
        words = ["train", "recommend", str(file), "--anchors", "10,15", "--epochs", "2", "--out", str(folder / "run"), "--json"]
        started = time.perf_counter()
        result = json.loads(antembed(words, ANTEMBED_CACHE=str(folder / "another")))
        whole = time.perf_counter() - started
        rows = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
        exported = sum(path.stat().st_size for path in (folder / "run").glob("*.ant"))
    epoch = min(row["seconds"] for row in rows)
    publish(
        chosen.record,
        {
            "benchmark": "from CSV to an exported model",
            "setting": f"{chosen.ratings:,} ratings, {size / 1e6:.0f} MB, 80/10/10, 2 epochs, K=10/15",
            "reading_seconds": reading,
            "epoch_seconds": round(epoch, 2),
            "whole_command_seconds": round(whole, 1),
            "exported_bytes": exported,
            "test_mse": round(result["test"]["mse"], 4),
        },
    )
