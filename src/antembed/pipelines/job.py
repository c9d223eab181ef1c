"""Data and model of a run on ratings: made, judged, counted, written as files."""

from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from antembed.data import Examples, Ratings, split
from antembed.embedding import EMBEDDINGS, Embedding
from antembed.pipelines.settings import Settings, build_model
from antembed.serving import Table, export, serialize
from antembed.tasks.recommend import MatrixFactorization, evaluate, loss
from antembed.training import Engine, FusedEngine, TorchEngine, why_not
from antembed.training.budget import Budget, parse_budget

EVALUATION_BATCH = 65_536
SMALL = 1_000_000  # objects: up to here files are also tried out in other encodings
PIECE = 1 << 20  # ratings


@dataclass(frozen=True)
class Job:
    """Data and model of a run, ready to be trained or judged."""

    settings: Settings
    model: MatrixFactorization
    parts: dict[str, Examples]  # train, validation, test: users, items, ratings
    scale: tuple[float, float]

    @property
    def tables(self) -> dict[str, Embedding]:
        return self.model.tables

    def engine(self, optimizer: Any) -> Engine:
        """The fused engine where it can do the job, unless told otherwise."""
        name = self.settings.engine
        if name == "fused" or (name == "auto" and why_not(self.model, optimizer) is None):
            return FusedEngine(self.model, optimizer, self.settings.threads)
        return TorchEngine(self.model, optimizer, loss)

    def size(self, unit: str) -> float:
        return size_of(self.model, unit, self.settings.values)

    def budget(self) -> Budget:
        return budget_of(self.settings, (self.model.users.num_embeddings, self.model.items.num_embeddings))

    def judge(self, part: str) -> dict[str, float] | None:
        """Errors on one part of the data; None if this split has no such part."""
        examples = self.parts[part]
        return evaluate(self.model, examples.batches(EVALUATION_BATCH), self.scale) if len(examples) else None

    def judge_files(self, part: str, users: Table, items: Table) -> dict[str, float] | None:
        """The same of what is in the files, whose numbers may be coarser."""

        def predict(u: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
            a, b = u.numpy(), i.numpy()
            return torch.from_numpy(np.einsum("nd,nd->n", users[a], items[b]) + users.bias_of(a) + items.bias_of(b))

        examples = self.parts[part]
        batches = (tuple(column.cpu() for column in batch) for batch in examples.batches(EVALUATION_BATCH))
        return evaluate(predict, batches, self.scale) if len(examples) else None

    def validate(self) -> dict[str, float]:
        """For the log of an epoch."""
        errors = self.judge("validation")
        assert errors is not None
        return {"loss": errors["mse"] / 2, "mse": errors["mse"]}


def prepare(settings: Settings, ratings: Ratings) -> Job:
    """Split the data, make the tables, put both on the device."""
    cut = split(len(ratings), settings.split, settings.seed)
    parts = {name: Examples(ratings.columns, rows, settings.device, settings.threads) for name, rows in cut.items()}
    pieces = [ratings.values[cut["train"][start : start + PIECE]] for start in range(0, len(cut["train"]), PIECE)]
    values = torch.from_numpy(np.concatenate(pieces))
    model = build_model(settings, ratings.objects, float(values.mean()), counts_of(settings, ratings, cut["train"]))
    return Job(settings, model, parts, (float(values.min()), float(values.max())))


def counts_of(settings: Settings, ratings: Ratings, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """How many of these ratings each user and item has, for the embeddings that want to know."""
    if "counts" not in EMBEDDINGS[settings.embedding].requires:
        return None
    sides = zip((ratings.users, ratings.items), ratings.objects, strict=True)
    users, items = (np.bincount(ids[rows], minlength=V) for ids, V in sides)
    return users, items


def write_tables(model: MatrixFactorization, out: Path, *, values: str = "fp32", encoding: str = "auto") -> dict[Path, Table]:
    """Export every table of the model into the folder `out`, as NAME.ant."""
    out.mkdir(parents=True, exist_ok=True)
    biases = model.exported_biases()
    return {
        (path := out / f"{name}.ant"): export(table, path, values=values, encoding=encoding, **biases[name])
        for name, table in model.eval().tables.items()
    }


@torch.no_grad()
def size_of(model: MatrixFactorization, unit: str, values: str = "fp32") -> float:
    """What a budget counts: parameters, or bytes of the exported files."""
    if unit == "parameters":
        return model.bias_parameters() + sum(count_parameters(*table.factors()) for table in model.tables.values())
    biases, total = model.exported_biases(), 0
    for name, table in model.tables.items():
        T, A = (None if part is None else part.cpu().numpy() for part in table.factors())
        assert T is not None
        total += len(serialize(T, A, values=values, **biases[name]))
    return total


def budget_of(settings: Settings, objects: tuple[int, int]) -> Budget:
    """The settings' budget; "40x" is 40 times less than the files of full tables of this width in fp32."""
    return parse_budget(settings.budget, full_bytes(settings, objects))


def full_bytes(settings: Settings, objects: tuple[int, int]) -> int:
    """Of full tables of this width with their biases, in fp32."""
    return 4 * sum(objects) * (settings.dimensions + settings.biases)


def what_it_means(settings: Settings, objects: tuple[int, int]) -> dict[str, Any]:
    """A budget for these data, before anything is trained."""
    if not settings.budget:
        raise ValueError("a dry run says what a budget means; give one with --budget")
    budget, (users, items) = budget_of(settings, objects), objects
    anchors = sum(settings.start) * settings.dimensions
    value = {"fp32": 4, "fp16": 2, "int8": 1}[settings.values]
    if budget.unit == "parameters":
        left = budget.amount - anchors
    else:  # a weight takes its value and its column, a row the number of its weights
        left = (budget.amount - (users + items) - max(value, 2) * anchors) / (value + 1)
    return {
        "rows": {"users": users, "items": items},
        "full_tables_bytes": full_bytes(settings, objects),
        "budget": str(budget),
        "values": settings.values,
        "anchors": "auto" if settings.anchors == "auto" else "/".join(map(str, settings.start)),
        "weights_and_biases": max(int(left), 0),
        "of_them_a_row": round(max(left, 0.0) / max(users + items, 1), 2),
    }


def count_parameters(T: torch.Tensor, A: torch.Tensor | None) -> int:
    """nnz(T) + K·d over anchors in use."""
    return int(T.count_nonzero()) + (0 if A is None else int((T != 0).any(0).sum()) * A.shape[1])


def smaller_files(job: Job) -> dict[str, dict[str, float]]:
    """What coarser numbers and tighter packing make of the tables: bytes on disk, and the error of what is read back."""
    examples, found = job.parts["test"], {}
    if sum(table.num_embeddings for table in job.model.tables.values()) > SMALL or not len(examples):
        return {}
    for values, encoding in (("fp16", "auto"), ("int8", "auto"), ("int8", "packed")):
        with TemporaryDirectory() as name:
            users, items = write_tables(job.model, Path(name), values=values, encoding=encoding).values()
        errors = job.judge_files("test", users, items)
        assert errors is not None
        name = values if encoding == "auto" else f"{values} {encoding}"
        found[name] = {"bytes": users.size + items.size, "test_mse": errors["mse"]}
    return found
