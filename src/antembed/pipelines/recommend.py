"""Ratings → trained tables → small files: the whole way, top to bottom."""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from antembed.data import Ratings, epoch_batches, read_ratings, split
from antembed.embedding import EMBEDDINGS, param_groups
from antembed.files import write_atomically
from antembed.optim import OPTIMISERS
from antembed.serving import Table, export, open_table
from antembed.tasks.recommend import MatrixFactorisation, evaluate, loss
from antembed.training import Plan, RunFolder, Tick, fit, load_checkpoint, save_checkpoint
from antembed.training.schedule import Schedule, constant, cosine, halving, ramp, scaled

LARGE = 5_000_000  # ratings: from here on the paper's settings for MovieLens 25M, below those for 1M
EVALUATION_BATCH = 65_536
SCHEDULES = ("halving", "cosine", "constant")
STARTS = {"full": {"std": 0.01}}  # small, or a free vector for everybody starts as noise that is never unlearned


@dataclass(frozen=True)
class Settings:
    """All that decides the result. The defaults are the paper's for MovieLens 1M, with biases, a ramp of l1 and pruning."""

    data: str
    columns: tuple[str, ...] | None = None  # user, item, rating
    protocol: str = "honest"
    embedding: str = "anchor"
    anchors: tuple[int, int] = (15, 15)  # users, items
    dimensions: int = 16
    l1: float = 1e-4
    l1_ramp: float = 0.25  # share of the steps over which l1 rises from 0
    prune: float = 0.1  # weights below this share of the mean contribution are dropped at the end
    biases: bool = True
    optimiser: str = "yogi"
    lr: float = 0.01
    schedule: str = "halving"
    halve_every: int = 100_000
    batch_size: int = 32
    epochs: int = 25
    seed: int = 0
    device: str = "cpu"
    values: str = "fp32"


def paper_settings(ratings: int) -> dict[str, Any]:
    """What the paper uses for data of this size."""
    return {"l1": 2e-6, "batch_size": 1024, "halve_every": 200_000} if ratings >= LARGE else {}


@dataclass(frozen=True)
class Job:
    """Data and model of a run, ready to be trained or judged."""

    settings: Settings
    model: MatrixFactorisation
    parts: dict[str, tuple[Tensor, ...]]  # train, validation, test: users, items, ratings
    scale: tuple[float, float]

    def judge(self, part: str) -> dict[str, float]:
        """Errors on one part of the data."""
        columns = self.parts[part]
        return evaluate(self.model, zip(*(c.split(EVALUATION_BATCH) for c in columns), strict=True), self.scale)


def prepare(settings: Settings, ratings: Ratings) -> Job:
    """Split the data, make the tables (seeded), put both on the device."""
    cut = split(len(ratings), settings.protocol, settings.seed)
    columns = [torch.from_numpy(column) for column in (ratings.users, ratings.items, ratings.values)]
    parts = {name: tuple(c[torch.from_numpy(rows)].to(settings.device) for c in columns) for name, rows in cut.items()}
    torch.manual_seed(settings.seed)
    users, items = (
        EMBEDDINGS[settings.embedding](
            len(labels), settings.dimensions, num_anchors=K, sparse=True, **STARTS.get(settings.embedding, {})
        )
        for labels, K in zip((ratings.user_labels, ratings.item_labels), settings.anchors, strict=True)
    )
    values = parts["train"][2]
    model = MatrixFactorisation(users, items, mean=float(values.mean()), biases=settings.biases)
    return Job(settings, model.to(settings.device), parts, (float(values.min()), float(values.max())))


def schedules(settings: Settings, examples: int) -> tuple[Schedule, Schedule]:
    """Learning rate and penalty by step."""
    steps = settings.epochs * -(-examples // settings.batch_size)
    shapes = {"constant": constant(), "halving": halving(settings.halve_every), "cosine": cosine(steps)}
    rise = ramp(round(settings.l1_ramp * steps))
    return scaled(settings.lr, shapes[settings.schedule]), scaled(settings.l1, rise)


def train(
    settings: Settings,
    out: str | Path,
    *,
    resume: bool = False,
    ratings: Ratings | None = None,
    tell: Callable[[Tick], None] = lambda tick: None,
) -> dict[str, Any]:
    """Train, judge, export; → what was measured. `ratings` is for callers that have them in memory (the demo)."""
    ratings = ratings if ratings is not None else read_ratings(settings.data, settings.columns)
    folder = RunFolder(out)
    config = json.loads(json.dumps(asdict(settings) | {"task": "recommend", "ratings": len(ratings)}))
    folder.create(config, resume)
    job = prepare(settings, ratings)
    training = job.parts["train"]
    lr, l1 = schedules(settings, len(training[0]))

    def validate() -> dict[str, float]:
        errors = job.judge("validation")
        return {"loss": errors["mse"] / 2, "mse": errors["mse"]}

    fit(
        job.model,
        OPTIMISERS[settings.optimiser](param_groups(job.model, l1(0)), lr=lr(0)),
        Plan(
            loss=loss,
            batches=lambda epoch: epoch_batches(training, settings.batch_size, settings.seed, epoch),
            validate=validate if len(job.parts["validation"][0]) else None,
            count=lambda: {"nnz": {name: nonzeros(table) for name, table in job.model.tables.items()}},
            epochs=settings.epochs,
            lr=lr,
            l1=l1,
        ),
        folder,
        resume=resume,
        tell=tell,
    )
    if folder.best.exists():
        load_checkpoint(folder.best, job.model)
    for table in job.model.tables.values():
        table.prune(settings.prune)
    save_checkpoint(folder.final, job.model, None, {"epochs": settings.epochs})
    write_tables(job, folder.path, values=settings.values)
    result = measure(job, folder)
    write_atomically(folder.result_file, json.dumps(result, indent=2).encode())
    return result


def nonzeros(table: Any) -> int:
    """nnz over a table's rows, cheap enough for every epoch."""
    return sum(int(rows.current.count_nonzero()) for rows in table.tables)


def write_tables(job: Job, out: Path, *, values: str = "fp32", encoding: str = "auto") -> dict[Path, Table]:
    """Export every table of the model into the folder `out`, as NAME.ant."""
    out.mkdir(parents=True, exist_ok=True)
    biases = job.model.exported_biases()
    return {
        (path := out / f"{name}.ant"): export(table, path, values=values, encoding=encoding, bias=biases[name])
        for name, table in job.model.eval().tables.items()
    }


def measure(job: Job, folder: RunFolder) -> dict[str, Any]:
    """What a run has come to: errors of the model, size of the files."""
    model, rows = job.model.eval(), folder.rows()
    files = {name: open_table(folder.path / f"{name}.ant") for name in model.tables}
    usage = {name: table.usage() for name, table in model.tables.items()}
    return {
        "task": "recommend",
        "embedding": job.settings.embedding,
        "anchors": {name: used.anchors_in_use for name, used in usage.items()},
        "metric": "mse",
        "validation": job.judge("validation") if len(job.parts["validation"][0]) else None,
        "test": job.judge("test"),
        "parameters": sum(used.parameters for used in usage.values()) + model.bias_parameters(),
        "nnz": {name: used.nnz for name, used in usage.items()},
        "bytes": sum(file.size for file in files.values()),
        "encodings": {name: file.encoding for name, file in files.items()},
        "seconds": round(sum(row["seconds"] for row in rows), 3),
        "epochs": rows[-1]["epoch"] if rows else 0,
        "seed": job.settings.seed,
    }


def reopen(run: str | Path, data: str | None = None) -> tuple[Job, RunFolder]:
    """A finished run with its data, as it was when it was judged."""
    folder = RunFolder(run)
    config = folder.config()
    expected = config.pop("ratings")
    config.pop("task")
    config["anchors"] = tuple(config["anchors"])
    settings = Settings(**config)
    ratings = read_ratings(data or settings.data, settings.columns)
    if len(ratings) != expected:
        raise ValueError(f"the run was trained on {expected} ratings, {data or settings.data} has {len(ratings)}")
    job = prepare(settings, ratings)
    load_checkpoint(folder.model_file(), job.model)
    return job, folder
