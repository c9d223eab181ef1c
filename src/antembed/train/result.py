"""What a run has come to: metrics of the model, and its size as the paper counts and on disk."""

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from antembed.files import JSON
from antembed.layer.anchor import AnchorEmbedding
from antembed.tables.number_formats import RangeError
from antembed.tables.save import load_table
from antembed.train.config import TaskConfig
from antembed.train.model import EmbeddingModel, TaskModel, by_table
from antembed.train.run_folder import RunFolder
from antembed.train.task import Splits, Task

FORMS = (("fp16", "auto"), ("int8", "auto"), ("int8", "packed"))
TRIED = 4_000_000  # numbers in T up to which all these are tried, beyond only int8,
NOT_TRIED = 64_000_000  # and from here on none
PIECE = 1 << 16  # rows


def summarize(task: Task, config: TaskConfig, splits: Splits, model: TaskModel, folder: RunFolder) -> JSON:
    """The result of a run, for result.json, --json and records."""
    rows, size = folder.rows(), model.eval().model_size()
    files = {file.name: file.stat().st_size for file in exported_files(model, folder.path)}
    result: JSON = {
        "task": task.name,
        "embedding": config.embedding_name,
        "anchors": by_table(size.anchors),
        "metric": task.metric.headline,
        "validation": task.evaluate(model, splits, "validation") if len(splits.validation) else None,
        "test": _test(task, config, splits, model, folder.path) if len(splits.test) else None,
        "parameters": size.parameters,
        "other_parameters": size.other_parameters,
        "nnz": by_table(size.nnz),
        "rows": by_table({name: table.num_embeddings for name, table in model.embeddings.items()}),
        "bytes": sum(files.values()),
        "files": files,
        "quantized": quantized(task, splits, model),
        "seconds": round(sum(row["seconds"] for row in rows), 3),
        "epochs": rows[-1]["epoch"] if rows else 0,
        "seed": config.machine.seed,
    }
    if isinstance(model, EmbeddingModel):
        result["dense_bytes"] = model.dense_bytes()
        result["empty_rows"] = by_table(empty_rows(model, folder.path))
    result |= task.details(config, splits, model)
    result["baselines"] = task.baselines(splits)
    return result | {"remarks": remarks(task, model, result)}


def empty_rows(model: EmbeddingModel, folder: Path) -> dict[str, int]:
    """How many objects have no vector in the stored tables, all weights zero, by table."""
    found = {}
    for name, file in zip(model.embeddings, model.file_names(), strict=True):
        table = load_table(folder / file)
        pieces = (np.arange(at, min(at + PIECE, len(table))) for at in range(0, len(table), PIECE))
        found[name] = sum(int((~table.rows(ids).any(1)).sum()) for ids in pieces)
    return found


def remarks(task: Task, model: TaskModel, result: JSON) -> list[str]:
    """What a user must know of a result that looks like a success: no better than nothing, empty, or not compressed."""
    found, metric = [], task.metric.headline
    if result["test"] is not None:
        reached = result["test"][metric]
        beaten = [(name, value) for name, value in result["baselines"].items() if not task.metric.beats(reached, value)]
        found += [
            f"the model is no better than {name}: test {metric} {reached:.4f}, {name} {value:.4f}" for name, value in beaten[:1]
        ]
    anchored = {name: table for name, table in model.embeddings.items() if isinstance(table, AnchorEmbedding)}
    nonzeros = {name: table.rows.count_nonzeros() for name, table in anchored.items()}
    if anchored and not any(nonzeros.values()):
        found.append("all weights of T are 0: the tables are empty, and the model is its mean and biases alone")
    full = [name for name, table in anchored.items() if nonzeros[name] == table.num_embeddings * table.num_anchors]
    if full:
        found.append(f"no weight of T is zero ({', '.join(full)}): nothing was compressed; raise the penalty, or give a budget")
    return found


def exported_files(model: TaskModel, folder: Path) -> list[Path]:
    return [folder / name for name in model.file_names()]


def _test(task: Task, config: TaskConfig, splits: Splits, model: TaskModel, folder: Path) -> JSON:
    """Of what is stored: numbers in the files may be coarser than the model's."""
    stored = model.from_files(folder) if isinstance(model, EmbeddingModel) and config.values != "fp32" else model
    return task.evaluate(stored, splits, "test")


def quantized(task: Task, splits: Splits, model: TaskModel) -> dict[str, JSON]:
    """What coarser numbers and tighter packing make of the tables: bytes on disk, and the test metric of what is read back."""
    found: dict[str, JSON] = {}
    numbers = sum(rows.num_embeddings * rows.embedding_dim for table in model.embeddings.values() for rows in table.tables)
    if not isinstance(model, EmbeddingModel) or not len(splits.test) or numbers > NOT_TRIED:
        return found
    for values, encoding in FORMS if numbers < TRIED else FORMS[1:2]:
        with TemporaryDirectory() as name:
            try:
                written = model.export(Path(name), values, encoding)
            except RangeError:  # ratings of a million are beyond fp16
                continue
            metrics = task.evaluate(model.from_files(Path(name)), splits, "test")
        label = values if encoding == "auto" else f"{values} {encoding}"
        found[label] = {"bytes": sum(written.values()), f"test_{task.metric.headline}": metrics[task.metric.headline]}
    return found
