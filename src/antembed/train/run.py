"""The life of a run, for every task and solver: create, train, resume, evaluate, export; and its result."""

from contextlib import nullcontext
from functools import partial
from operator import call
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from antembed.budget import BudgetError, parse_budget
from antembed.files import JSON
from antembed.layer.anchor import AnchorEmbedding
from antembed.layer.sharded.collectives import Ranks
from antembed.layer.sharded.sharded_embedding import shard_
from antembed.tables.model_folder import SEEN, RunError, by_part, check_own, write_description, write_weights
from antembed.tables.number_formats import RangeError
from antembed.tables.save import load_table
from antembed.train.checkpoint import CheckpointError, capture, read_checkpoint, restore, write_checkpoint
from antembed.train.config import StochasticConfig, TaskConfig
from antembed.train.model import EmbeddingModel, TaskModel, by_table
from antembed.train.options import ConfigError, chosen_options, to_options, with_options
from antembed.train.processes import build, check_alike, check_options, on_first_served, rows_of_shared, share_rows
from antembed.train.registry import TASKS
from antembed.train.run_folder import BESIDE, RunFolder
from antembed.train.solver import Callback, Solver, ignore, make_solver
from antembed.train.task import Splits, Task

FILES = ("data", "test")  # options that name files


def train(
    config: TaskConfig,
    out: str | Path,
    *,
    splits: Splits | None = None,
    resume: bool = False,
    overwrite: bool = False,
    callback: Callback = ignore,
    ranks: Ranks | None = None,
) -> JSON:
    """Train, evaluate, export; → what was measured. `splits` is for callers that have the data in memory. With `ranks`
    (antembed.train.processes()) these processes train together: all call it, rank 0 writes the files and gets the result, the
    others get {}."""
    task, folder = TASKS[config.task], RunFolder(out)
    if ranks is not None:
        check_options(task, config, ranks)
        check_alike(config, ranks)
    splits = task.load(config) if splits is None else splits
    if (before := task.pretraining(config)) is not None:
        with TemporaryDirectory() as name:  # nothing is left of it but its model
            train(before, Path(name) / "run", splits=splits)
            task.use_pretrained(splits, load_model(Path(name) / "run"))
    model = build(task, config, splits, ranks)
    check_budget(config, model)
    facts, tables = {**task.facts(splits, model), "examples": splits.count, "sha256": splits.digest}, model.file_names()

    def create() -> None:
        folder.create(config, facts, tables, resume=resume, overwrite=overwrite)
        splits.save(folder.path)

    if ranks is not None and isinstance(config.solver, StochasticConfig):
        shard_(model, ranks)
        share_rows(splits, ranks)
    solver = make_solver(task, config, model, splits, ranks)
    first, on_first = (True, call) if ranks is None else (ranks.first, ranks.on_first)
    with folder.locked() if first else nullcontext():
        on_first(create)
        if resume and solver.storage.exists(folder.last):
            _continue(solver, folder.last)
        on_first(lambda: folder.forget_after(solver.epoch))
        for record in solver.fit(folder, callback if first else ignore):
            if first:
                folder.log(record)
            solver.storage.save(folder.last, solver.state_dict())
        work = partial(_finish, task, config, splits, solver, folder)
        return work() if ranks is None else on_first_served(model, ranks, work) or {}


def _finish(task: Task, config: TaskConfig, splits: Splits, solver: Solver, folder: RunFolder) -> JSON:
    """Write the model and its files; → what was measured."""
    model = solver.model
    write_checkpoint(folder.final, capture(model, None, {"epoch": solver.epoch}), rows_of_shared(model))
    splits.save(folder.path)  # a stream knows its labels only now
    try:
        model.eval().export(folder.path, config.values, config.encoding)
    except RangeError as error:
        said = f"{folder.path} is trained, but its tables cannot be written in {config.values}: {error}"
        raise RunError(f"{said}; continue it with the same command, --resume and --values fp32") from error
    result = summarize(task, config, splits, model, folder) | solver.result()
    if (found := result.get("tolerance")) and found["error"] > found["limit"]:
        near = f"{found['error']:.4g}, {found['limit']:.4g} was the limit"
        result["remarks"].append(f"no small model was within the tolerance: the nearest has a validation error of {near}")
    folder.write_result(result)
    return result


def _continue(solver: Solver, file: Path) -> None:
    """Put a solver where a checkpoint was taken. A valid checkpoint of a different run raises."""
    checkpoint = solver.storage.load(file)
    try:
        solver.load_state_dict(checkpoint)
    except (KeyError, TypeError, IndexError, AttributeError, RuntimeError, ValueError) as error:
        raise CheckpointError(f"{file} does not fit this run ({type(error).__name__}: {error}); start the run anew") from error
    if not isinstance(solver.epoch, int) or solver.epoch < 0:
        raise CheckpointError(f"{file} is of epoch {solver.epoch!r}, which cannot be; start the run anew")


def check_budget(config: TaskConfig, model: TaskModel) -> None:
    """Raise before anything is trained if a budget is below what empty tables take."""
    if not config.budget or not isinstance(model, EmbeddingModel):
        return
    budget = parse_budget(config.budget, model.dense_bytes())
    least = model.smallest_size(budget.unit, config.values, config.encoding)
    if least > budget.amount:
        raise BudgetError(f"a budget of {budget} cannot be met: empty tables have {least:,.0f} {budget.unit}; allow more")


def load_model(run: str | Path) -> TaskModel:
    """A finished run's model; its data are not needed."""
    folder = RunFolder(run)
    task = folder.task()
    config, facts = folder.open()
    folder.check_trained_here()
    model = task.build(config.for_evaluation(), task.reopen(config, facts, folder.path))
    restore(read_checkpoint(folder.final), model)
    return model.eval()


def evaluate(run: str | Path, data: str | None = None) -> JSON:
    """Evaluate a finished run on the split it was trained with. `data`: where the data are now, if they have moved."""
    folder = RunFolder(run)
    task = folder.task()
    config, facts = folder.open()
    if facts.get("online"):
        raise ValueError(f"{folder.path} was evaluated while its stream came (metrics.jsonl); it has no split")
    folder.check_trained_here()
    splits = task.load((config if data is None else with_options(config, data=data)).for_evaluation())
    if splits.digest != facts["sha256"]:
        raise ValueError(
            f"{data or 'the file'} is not what the run was trained on: {splits.count} {task.examples} here, "
            f"{facts['examples']} there, and other contents; give the right file with --data"
        )
    model = task.build(config.for_evaluation(), splits)
    restore(read_checkpoint(folder.final), model)
    before = folder.result()
    kept = {name: before[name] for name in ("engine", "growth") if name in before}
    return summarize(task, config, splits, model, folder) | kept


def export(
    run: str | Path,
    out: Path,
    *,
    values: str | None = None,
    encoding: str | None = None,
    seen: bool = False,
    overwrite: bool = False,
) -> dict[str, int]:
    """Write a run as a folder that needs neither its data nor its checkpoint nor torch; → bytes of its files by name. `seen`:
    for recommenders, also what users have rated."""
    folder = RunFolder(run)
    task = folder.task()
    config, _ = folder.open()
    if out.exists() and out.samefile(folder.path):
        raise ValueError(f"{out} is the run itself; export it into another folder")
    check_own(out)
    if not overwrite and (out / "config.json").exists():
        raise ValueError(f"{out} has a model already; choose another folder, or say --overwrite")
    model = load_model(run)
    model.export(out, values or config.values, encoding or config.encoding)
    for name in BESIDE if (out / "config.json").exists() else ():
        (out / name).unlink(missing_ok=True)  # of the export that is overwritten
    _write_beside(task, config, model, folder, out, seen, values=values, encoding=encoding)
    names = (*model.file_names(), *BESIDE, "config.json")
    return {name: (out / name).stat().st_size for name in names if (out / name).is_file()}


def _write_beside(
    task: Task, config: TaskConfig, model: TaskModel, folder: RunFolder, out: Path, seen: bool = False, **form: str | None
) -> None:
    """What an export has beside its tables."""
    facts = folder.raw()["data"]
    task.reopen(config, facts, folder.path).save(out)
    task.export_extras(folder.path, config, out, seen)
    if others := outside_tables(model):
        write_weights(out, others)
    write_description(out, standalone(config, **form).model_dump(mode="json"), facts, model.file_names())


def standalone(config: TaskConfig, values: str | None = None, encoding: str | None = None) -> TaskConfig:
    """The config of an export: no files of this machine in it."""
    changes: JSON = {name: "" for name in FILES if name in to_options(config)}
    changes |= {name: value for name, value in (("values", values), ("encoding", encoding)) if value is not None}
    known = chosen_options(type(config), {"solver": config.solver.name})
    return with_options(config.for_evaluation(), **{name: value for name, value in changes.items() if name in known})


def outside_tables(model: TaskModel) -> dict[str, np.ndarray]:
    """What a network has beside what `export` writes, by the names of its state."""
    if not isinstance(model, EmbeddingModel):
        return {}
    inside = {*model.embeddings, *model.stored_with_tables}
    return {name: tensor.cpu().numpy() for name, tensor in model.state_dict().items() if name.split(".")[0] not in inside}


def export_table(
    run: str | Path, path: Path, table: str | None, *, values: str | None = None, encoding: str | None = None
) -> int:
    """Write one table of a run as a file; → its bytes."""
    config, _ = RunFolder(run).open()
    model = load_model(run)
    if not isinstance(model, EmbeddingModel):
        raise ValueError(f"{run} has no tables: {', '.join(model.file_names())} is all of it")
    names = list(model.embeddings)
    if table is None and len(names) > 1:
        which = f"{run} has {len(names)} tables; say which with --table ({', '.join(names)}), or give a folder"
        raise ConfigError(which, "table")
    if table is not None and table not in names:
        raise ConfigError(f"table {table!r} is none of: {', '.join(names)}", "table")
    return model.export_table(table or names[0], path, values or config.values, encoding or config.encoding).size


# The result of a run: metrics of the model, and its size as the paper counts and on disk.

FORMS = (("fp16", "auto"), ("int8", "auto"), ("int8", "packed"))
TRIED = 4_000_000  # numbers in T up to which all these are tried, beyond only int8,
NOT_TRIED = 64_000_000  # and from here on none
BLOCK = 1 << 16  # rows


def summarize(task: Task, config: TaskConfig, splits: Splits, model: TaskModel, folder: RunFolder) -> JSON:
    """The result of a run, for result.json, --json and records: what was measured, and what an export will take, by part and in
    total, and what --with-seen adds."""
    rows, size = folder.rows(), model.eval().model_size()
    files = {name: (folder.path / name).stat().st_size for name in model.file_names()}
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
        result |= {"dense_bytes": model.dense_bytes(), "empty_rows": by_table(empty_rows(model, folder.path))}
    result |= model.details
    result["baselines"] = task.baselines(splits)
    result["remarks"] = remarks(task, model, result)
    with TemporaryDirectory() as name:
        _write_beside(task, config, model, folder, Path(name))
        sizes = files | {file.name: file.stat().st_size for file in Path(name).iterdir()}
    result["export_bytes"] = by_part(sizes) | {"total": sum(sizes.values())}
    seen = folder.path / SEEN
    return result | ({"seen_bytes": seen.stat().st_size} if seen.is_file() else {})


def empty_rows(model: EmbeddingModel, folder: Path) -> dict[str, int]:
    """How many objects have no vector in the stored tables, all weights zero, by table."""
    found = {}
    for name, file in zip(model.embeddings, model.file_names(), strict=True):
        table = load_table(folder / file)
        blocks = (np.arange(at, min(at + BLOCK, len(table))) for at in range(0, len(table), BLOCK))
        found[name] = sum(int((~table.rows(ids).any(1)).sum()) for ids in blocks)
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
