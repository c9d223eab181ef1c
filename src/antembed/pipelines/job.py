"""Data and model of a run on ratings: made, judged, counted, written as files."""

from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from antembed.data import Examples, Ratings, split
from antembed.pipelines.settings import COUNTED, Settings, build_model
from antembed.serving import Table, export
from antembed.tasks.recommend import MatrixFactorisation, evaluate

EVALUATION_BATCH = 65_536
SMALL = 1_000_000  # objects: up to here files are also tried out in other encodings
PIECE = 1 << 20  # ratings


@dataclass(frozen=True)
class Job:
    """Data and model of a run, ready to be trained or judged."""

    settings: Settings
    model: MatrixFactorisation
    parts: dict[str, Examples]  # train, validation, test: users, items, ratings
    scale: tuple[float, float]

    def judge(self, part: str) -> dict[str, float] | None:
        """Errors on one part of the data; None if this protocol has no such part."""
        examples = self.parts[part]
        return evaluate(self.model, examples.batches(EVALUATION_BATCH), self.scale) if len(examples) else None

    def validate(self) -> dict[str, float]:
        """For the log of an epoch."""
        errors = self.judge("validation")
        assert errors is not None
        return {"loss": errors["mse"] / 2, "mse": errors["mse"]}


def prepare(settings: Settings, ratings: Ratings) -> Job:
    """Split the data, make the tables, put both on the device."""
    cut = split(len(ratings), settings.protocol, settings.seed)
    parts = {name: Examples(ratings.columns, rows, settings.device, settings.threads) for name, rows in cut.items()}
    pieces = [ratings.values[cut["train"][start : start + PIECE]] for start in range(0, len(cut["train"]), PIECE)]
    values = torch.from_numpy(np.concatenate(pieces))
    model = build_model(settings, ratings.objects, float(values.mean()), counts_of(settings, ratings, cut["train"]))
    return Job(settings, model, parts, (float(values.min()), float(values.max())))


def counts_of(settings: Settings, ratings: Ratings, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """How many of these ratings each user and item has, for the embeddings that want to know."""
    if settings.embedding not in COUNTED:
        return None
    sides = zip((ratings.users, ratings.items), ratings.objects, strict=True)
    users, items = (np.bincount(ids[rows], minlength=V) for ids, V in sides)
    return users, items


def nonzeros(table: Any) -> int:
    """nnz over a table's rows, cheap enough for every epoch."""
    return sum(int(piece.count_nonzero()) for rows in table.tables for piece in rows.current.split(PIECE))


def write_tables(model: MatrixFactorisation, out: Path, *, values: str = "fp32", encoding: str = "auto") -> dict[Path, Table]:
    """Export every table of the model into the folder `out`, as NAME.ant."""
    out.mkdir(parents=True, exist_ok=True)
    biases = model.exported_biases()
    return {
        (path := out / f"{name}.ant"): export(table, path, values=values, encoding=encoding, **biases[name])
        for name, table in model.eval().tables.items()
    }


def smaller_files(job: Job) -> dict[str, dict[str, float]]:
    """What coarser numbers and tighter packing make of the tables: bytes on disk, and the error of what is read back."""
    examples, found = job.parts["test"], {}
    if sum(table.num_embeddings for table in job.model.tables.values()) > SMALL or not len(examples):
        return {}
    for values, encoding in (("fp16", "auto"), ("int8", "auto"), ("int8", "packed")):
        with TemporaryDirectory() as name:
            users, items = write_tables(job.model, Path(name), values=values, encoding=encoding).values()
        squared = 0.0
        for batch in examples.batches(EVALUATION_BATCH):
            u, i, ratings, *_ = (column.cpu().numpy() for column in batch)
            predicted = np.einsum("nd,nd->n", users[u], items[i]) + users.bias_of(u) + items.bias_of(i)
            squared += float(np.square(predicted - ratings, dtype=np.float64).sum())
        name = values if encoding == "auto" else f"{values} {encoding}"
        found[name] = {"bytes": users.size + items.size, "test_mse": squared / len(examples)}
    return found
