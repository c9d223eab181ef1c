"""A stream of ratings → tables, batch by batch, none seen twice: the whole way (training/stream.py has the method).

Each batch is first predicted, then learned: the mean of those errors is what the stream is judged by as it goes. A checkpoint a
batch: a stopped stream goes on behind the last batch that was learned.
"""

import json
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from antembed.data import read_ratings
from antembed.data.rating_stream import RatingStream
from antembed.data.ratings import whole_numbers
from antembed.files import write_atomically
from antembed.pipelines.descend import prices_of, put
from antembed.pipelines.job import write_tables
from antembed.pipelines.recommend import write_labels
from antembed.pipelines.recommender import Recommender
from antembed.pipelines.settings import Settings, build_model
from antembed.training import RunFolder, load_tensors, save_checkpoint, save_tensors
from antembed.training.stream import Stream

BATCH = 100_000


def learn(
    settings: Settings,
    out: str | Path,
    *,
    batch_size: int = BATCH,
    test: str | Path | None = None,
    resume: bool = False,
    tell: Callable[[dict[str, Any]], None] = lambda row: None,
) -> dict[str, Any]:
    """Learn a stream to its end and export the tables; → what was measured. `test`: ratings to be judged by at the end."""
    if settings.solver != "cd" or settings.embedding != "anchor":
        raise ValueError("a stream is learned by coordinate descent on anchored tables; say --solver cd --embedding anchor")
    refused = {"budget": "", "polish": 0.0, "unseen": 0.0, "on_error": "stop", "keep": 0}
    for name, usual in refused.items():
        if getattr(settings, name) != usual:
            raise ValueError(f"{name}={getattr(settings, name)!r} cannot be had on a stream; leave it at {usual!r}")
    if test is not None and not Path(test).is_file():
        raise ValueError(f"{test} is no file; --test takes a file of ratings")
    folder = RunFolder(out)
    config = asdict(settings) | {"task": "recommend", "online": True, "online_batch": batch_size}
    folder.create(json.loads(json.dumps(config)), resume)
    stream = Stream(
        settings.dimensions,
        prices_of(settings),
        anchors=settings.start,
        auto=settings.anchors == "auto",
        sweeps=settings.epochs,
        seed=settings.seed,
        threads=settings.threads,
    )
    arrivals = RatingStream(settings.data, settings.columns, batch_size=batch_size)
    squared = 0.0
    if resume and folder.last.exists():
        state, progress = load_tensors(folder.last)
        stream.load(state)
        squared = progress["squared"]
        labels = (pl.read_parquet(folder.last.parent / f"{name}.labels.parquet")["label"] for name in ("users", "items"))
        arrivals.resume(stream.ratings, *labels)
    folder.forget_after(stream.batches)
    for batch in arrivals:
        started = time.perf_counter()
        before = float(np.square(batch[2] - stream.predict(*batch[:2]), dtype=np.float64).sum()) if stream.batches else 0.0
        squared += before
        row = stream.learn(batch)
        row |= {"epoch": stream.batches, "mse_before": before / len(batch[2]) if stream.batches > 1 else None}
        row["seconds"] = time.perf_counter() - started
        tell(row)
        folder.log(row)
        # Before the checkpoint: labels of a batch that is learned again get the numbers they have.
        write_labels(arrivals.users.labels, arrivals.items.labels, folder.last.parent)
        save_tensors(folder.last, stream.state(), {"squared": squared})
    if not stream.batches:
        raise ValueError(f"{settings.data} has no ratings")
    return finish(settings, stream, arrivals, folder, squared, test)


def finish(
    settings: Settings, stream: Stream, arrivals: RatingStream, folder: RunFolder, squared: float, test: str | Path | None
) -> dict[str, Any]:
    """Rows in the order of their labels, as in every other run; export; measure."""
    labels = []
    for memory, known in ((stream.users, arrivals.users), (stream.items, arrivals.items)):
        sortable = known.labels.cast(pl.Int64) if whole_numbers(known.labels) else known.labels
        order = sortable.arg_sort().to_numpy()
        memory.reorder(order)
        labels.append(sortable.gather(order))
    model = build_model(settings, (len(labels[0]), len(labels[1])), stream.mean)
    put(stream, model)
    save_checkpoint(folder.final, model, None, {"epochs": stream.batches})
    files = write_tables(model, folder.path, values=settings.values)
    write_labels(labels[0], labels[1], folder.path)
    rows, usage = folder.rows(), {name: table.usage() for name, table in model.tables.items()}
    first = rows[0]["ratings"]
    result: dict[str, Any] = {
        "task": "recommend",
        "embedding": settings.embedding,
        "anchors": {name: used.anchors_in_use for name, used in usage.items()},
        "mean": stream.mean,
        "metric": "mse",
        "validation": {"mse": squared / (stream.ratings - first)} if stream.ratings > first else None,  # each before learned
        "test": None,
        "parameters": sum(used.parameters for used in usage.values()) + model.bias_parameters(),
        "nnz": {name: used.nnz for name, used in usage.items()},
        "bytes": sum(file.size for file in files.values()),
        "seconds": round(sum(row["seconds"] for row in rows), 3),
        "epochs": 1,
        "batches": stream.batches,
        "ratings": stream.ratings,
        "seed": settings.seed,
        "engine": "stream",
    }
    write_atomically(folder.result_file, json.dumps(result, indent=2).encode())
    if test is not None:
        held = read_ratings(test, settings.columns)
        predicted = Recommender.load(folder.path).predict(
            held.user_labels.gather(held.users), held.item_labels.gather(held.items)
        )
        errors = predicted - held.values
        result["test"] = {"mse": float(np.square(errors, dtype=np.float64).mean()), "mae": float(np.abs(errors).mean())}
        write_atomically(folder.result_file, json.dumps(result, indent=2).encode())
    return result
