"""Ratings → trained tables → small files: the whole way, top to bottom."""

import io
import json
from collections.abc import Callable
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import polars as pl

from antembed.data import Ratings, default_cache, read_ratings
from antembed.embedding import param_groups
from antembed.files import write_atomically
from antembed.optim import OPTIMIZERS
from antembed.pipelines.descend import by_descent, start_from_dense
from antembed.pipelines.job import Job, prepare, smaller_files, write_tables
from antembed.pipelines.settings import Settings, build_model
from antembed.pipelines.steps import learn, schedules
from antembed.serving import load_table
from antembed.tasks.recommend import MatrixFactorization
from antembed.training import RunFolder, Tick, load_checkpoint, save_checkpoint, why_not


def read(settings: Settings, data: str | None = None) -> Ratings:
    """The ratings of a run; `data`: where they are now, if they have moved."""
    return read_ratings(data or settings.data, settings.columns, on_error=settings.on_error, cache=default_cache())


def train(
    settings: Settings,
    out: str | Path,
    *,
    resume: bool = False,
    ratings: Ratings | None = None,
    tell: Callable[[Tick], None] = lambda tick: None,
) -> dict[str, Any]:
    """Train, judge, export; → what was measured. `ratings` is for callers that have them in memory."""
    ratings = ratings if ratings is not None else read(settings)
    job = prepare(settings, ratings)
    folder = RunFolder(out)
    solve = by_descent if settings.solver == "cd" else by_steps
    engine = solve(job, folder, lambda: begin(job, folder, ratings, resume), resume, tell)
    save_checkpoint(folder.final, job.model, None, {"epochs": settings.epochs})
    write_tables(job.model, folder.path, values=settings.values)
    result = measure(job, folder) | {"engine": engine}
    write_atomically(folder.result_file, json.dumps(result, indent=2).encode())
    return result


def begin(job: Job, folder: RunFolder, ratings: Ratings, resume: bool) -> None:
    """Make the folder of the run, or find it."""
    folder.create(json.loads(json.dumps(asdict(job.settings) | about(ratings))), resume)
    write_labels(ratings.user_labels, ratings.item_labels, folder.path)


def by_steps(job: Job, folder: RunFolder, begin: Callable[[], None], resume: bool, tell: Callable[[Tick], None]) -> str:
    """The stochastic solver; → the name of the engine that did it."""
    settings = job.settings
    if settings.init == "dense":
        start_from_dense(job)
    lr, l1 = (schedule(0) for schedule in schedules(settings, len(job.parts["train"])))
    optimizer = OPTIMIZERS[settings.optimizer](param_groups(job.model, l1, settings.l2), lr=lr)
    reason = why_not(job.model, optimizer)
    if settings.engine == "fused" and reason is not None:
        raise ValueError(f"the fused engine cannot train this model: {reason}; use --engine torch")
    begin()
    learn(job, optimizer, folder, resume=resume, tell=tell)
    return "fused" if settings.engine != "torch" and reason is None else "torch"


def about(ratings: Ratings) -> dict[str, Any]:
    """What a run remembers of its data, so that it is judged on the very same."""
    return {"task": "recommend", "objects": ratings.objects, "ratings": len(ratings), "sha256": ratings.digest}


def write_labels(users: pl.Series, items: pl.Series, out: Path) -> None:
    """Which user and item each row is: users.labels.parquet and items.labels.parquet, one column in the order of the rows."""
    for name, labels in (("users", users), ("items", items)):
        packed = io.BytesIO()
        labels.alias("label").to_frame().write_parquet(packed)
        write_atomically(out / f"{name}.labels.parquet", packed.getvalue())


def measure(job: Job, folder: RunFolder) -> dict[str, Any]:
    """What a run has come to: errors of the model, size of the files."""
    model, rows = job.model.eval(), folder.rows()
    files = {name: load_table(folder.path / f"{name}.ant") for name in model.tables}
    usage = {name: table.usage() for name, table in model.tables.items()}
    return {
        "task": "recommend",
        "embedding": job.settings.embedding,
        "anchors": {name: used.anchors_in_use for name, used in usage.items()},
        "mean": float(model.bias.detach()),
        "metric": "mse",
        "validation": job.judge("validation"),
        "test": job.judge("test") if job.settings.values == "fp32" else job.judge_files("test", files["users"], files["items"]),
        "parameters": sum(used.parameters for used in usage.values()) + model.bias_parameters(),
        "nnz": {name: used.nnz for name, used in usage.items()},
        "bytes": sum(file.size for file in files.values()),
        "encodings": {name: file.encoding for name, file in files.items()},
        "smaller_files": smaller_files(job),
        "seconds": round(sum(row["seconds"] for row in rows), 3),
        "epochs": rows[-1]["epoch"] if rows else 0,
        "seed": job.settings.seed,
    } | ({"growth": growth_of(job.settings, rows)} if job.settings.anchors == "auto" and job.settings.solver == "prox" else {})


def growth_of(settings: Settings, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """How the number of anchors came about: the policy, the best objective (eq. 5), and the changes that were tried."""
    return {
        "policy": settings.growth,
        "lambda1": settings.lambda1,
        "lambda2": settings.l1,
        "objective": min(row["objective"] for row in rows),
        "changes": sum(row.get("growth") is not None for row in rows),
    }


def settings_of(folder: RunFolder) -> tuple[Settings, dict[str, Any]]:
    """A run's settings, and what it remembers of its data (a saved recommender does not)."""
    told = folder.config()
    own = {field.name for field in fields(Settings)}
    config = {name: value for name, value in told.items() if name in own}
    remembered = {name: value for name, value in told.items() if name not in own}
    tuples = {name: tuple(config[name]) for name in ("anchors", "columns") if isinstance(config[name], list)}
    return Settings(**config | tuples), remembered


def reopen_model(run: str | Path) -> MatrixFactorization:
    """A run's model; its data are not needed."""
    folder = RunFolder(run)
    settings, remembered = settings_of(folder)
    folder.must_be_finished()
    labels = [folder.path / f"{name}.labels.parquet" for name in ("users", "items")]
    objects = remembered.get("objects") or [pl.scan_parquet(file).select(pl.len()).collect().item() for file in labels]
    model = build_model(settings, (objects[0], objects[1]))
    load_checkpoint(folder.final, model)
    return model


def reopen(run: str | Path, data: str | None = None) -> tuple[Job, RunFolder]:
    """A run with its data, as it was when it was judged. `data`: where they are now, if they have moved."""
    folder = RunFolder(run)
    settings, remembered = settings_of(folder)
    if "sha256" not in remembered:
        came = "was judged as its stream came (metrics.jsonl)" if remembered.get("online") else "is a saved recommender, no run"
        raise ValueError(f"{folder.path} {came}; there is no split to judge it by")
    if data is None and not Path(settings.data).is_file():
        raise ValueError(f"the run was trained on {settings.data}, which is not there; say where it is now with --data")
    ratings = read(settings, data)
    if about(ratings)["sha256"] != remembered["sha256"]:
        raise ValueError(
            f"{data or settings.data} is not what the run was trained on: {len(ratings)} ratings here, "
            f"{remembered['ratings']} there, and other contents; give the right file with --data"
        )
    folder.must_be_finished()
    job = prepare(settings, ratings)
    load_checkpoint(folder.final, job.model)
    return job, folder


def again(run: str | Path, data: str | None = None) -> dict[str, Any]:
    """Judge a finished run again."""
    return measure(*reopen(run, data))
