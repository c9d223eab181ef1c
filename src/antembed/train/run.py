"""The life of a run, once for every task and solver: create, train, resume, evaluate, export."""

from contextlib import nullcontext
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from antembed.budget import BudgetError, parse_budget
from antembed.files import JSON
from antembed.layer.sharded.collectives import Ranks
from antembed.tables.model_folder import SEEN, RunError, by_part, check_own, write_description, write_weights
from antembed.tables.number_formats import RangeError
from antembed.train.checkpoint import CheckpointError, capture, read_checkpoint, restore, write_checkpoint
from antembed.train.config import TaskConfig
from antembed.train.early_checks import first_config, suited, without_auto
from antembed.train.model import EmbeddingModel, TaskModel
from antembed.train.options import ConfigError, Options, chosen_options, from_options, to_options, with_options
from antembed.train.processes import on_first_served, whole_rows
from antembed.train.registry import TASKS
from antembed.train.result import summarize
from antembed.train.run_folder import BESIDE, RunFolder
from antembed.train.search_cache import Report, Search, search_of, silent
from antembed.train.shared_run import build, check_alike, check_options, train_shared
from antembed.train.solver import Callback, Solver, ignore, make_solver
from antembed.train.task import Splits, Task

FILES = ("data", "test")  # options that name files
SPLITTING = {"hold_out", "split"}  # options that decide the parts of the data


def configure(task: Task, given: Options, report: Report = silent, *, search: bool = True) -> tuple[TaskConfig, Splits]:
    """Options → a config and the data it names. What was not given follows from the data: by a search, where there is one, else
    from the number of examples. `report` is told what is searched; without `search` nothing is, and the defaults stay."""
    searched = task.Config.to_search(given) if search else None
    if searched is not None:
        return _search(search_of(task.Config), *searched, given, report)
    given = without_auto(given)
    splits = task.load(first_config(task.Config, given))
    if (other := task.task_for(splits)) != task.name:
        return _as(other, given, report)
    return from_options(task.Config, given, task.Config.defaults(splits.count, given, splits.objects)), splits


def _search(search: Search, name: str, first: Options, given: Options, report: Report) -> tuple[TaskConfig, Splits]:
    """The same where what was not given is searched."""
    task = TASKS[name]
    config = from_options(task.Config, first)
    splits = task.load(config)
    if (other := task.task_for(splits)) != name:
        return _as(other, given, report)
    found = search(config, given, splits, report)
    config = from_options(task.Config, {key: value for key, value in first.items() if key not in found} | found)
    return config, task.load(config) if found.keys() & SPLITTING else splits


def _as(other: str, given: Options, report: Report) -> tuple[TaskConfig, Splits]:
    """As another task than was asked for."""
    why = "--implicit" if given.get("implicit") else "the data have no ratings"
    report(f"{why}: trained as {other}, on what was chosen")
    return configure(TASKS[other], suited(TASKS[other].Config, given), report)


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
    """Train, evaluate, export; → what was measured. `splits` is for callers that have the data in memory.

    With `ranks` (antembed.train.processes()) these processes train together: all call it, rank 0 writes the files and gets
    the result, the others get {}.
    """
    task, folder = TASKS[config.task], RunFolder(out)
    if ranks is not None:
        check_options(task, config, ranks)
        check_alike(config, ranks)
    splits = task.load(config) if splits is None else splits
    _pretrain(task, config, splits)
    model = build(task, config, splits, ranks)
    check_budget(config, model)
    facts, tables = task.facts(splits, model), model.file_names()

    def create() -> None:
        folder.create(config, facts, tables, resume=resume, overwrite=overwrite)
        splits.save(folder.path)

    solver = make_solver(task, config, model, splits) if ranks is None else None
    with folder.locked() if ranks is None or ranks.first else nullcontext():
        if solver is None:
            assert ranks is not None
            solver = train_shared(task, config, model, splits, folder, ranks, create, resume, callback)
        else:
            create()
            if resume and folder.last.exists():
                _continue(solver, folder.last)
            folder.forget_after(solver.epoch)
            for record in solver.fit(folder, callback):
                folder.log(record)
                write_checkpoint(folder.last, solver.state_dict())
        work = partial(_finish, task, config, splits, solver, folder)
        return work() if ranks is None else on_first_served(model, ranks, work) or {}


def _finish(task: Task, config: TaskConfig, splits: Splits, solver: Solver, folder: RunFolder) -> JSON:
    """Write the model and its files; → what was measured."""
    model = solver.model
    write_checkpoint(folder.final, capture(model, None, {"epoch": solver.epoch}), whole_rows(model))
    splits.save(folder.path)  # a stream knows its labels only now
    _export_own(config, model, folder)
    result = _summary(task, config, splits, model, folder) | solver.result()
    if (found := result.get("tolerance")) and found["error"] > found["limit"]:
        near = f"{found['error']:.4g}, {found['limit']:.4g} was the limit"
        result["remarks"].append(f"no small model was within the tolerance: the nearest has a validation error of {near}")
    folder.write_result(result)
    return result


def _continue(solver: Solver, file: Path) -> None:
    """Put a solver where a checkpoint was taken; one that is whole but of another make is an error before anything is done."""
    checkpoint = read_checkpoint(file)
    try:
        solver.load_state_dict(checkpoint)
    except (KeyError, TypeError, IndexError, AttributeError, RuntimeError, ValueError) as error:
        raise CheckpointError(f"{file} does not fit this run ({type(error).__name__}: {error}); start the run anew") from error
    if not isinstance(solver.epoch, int) or solver.epoch < 0:
        raise CheckpointError(f"{file} is of epoch {solver.epoch!r}, which cannot be; start the run anew")


def _export_own(config: TaskConfig, model: TaskModel, folder: RunFolder) -> None:
    try:
        model.eval().export(folder.path, config.values, config.encoding)
    except RangeError as error:
        how = "continue it with the same command, --resume and --values fp32"
        raise RunError(
            f"{folder.path} is trained, but its tables cannot be written in {config.values}: {error}; {how}"
        ) from error


def check_budget(config: TaskConfig, model: TaskModel) -> None:
    """Raise before anything is trained if a budget is below what empty tables take."""
    if not config.budget or not isinstance(model, EmbeddingModel):
        return
    budget = parse_budget(config.budget, model.dense_bytes())
    least = model.smallest_size(budget.unit, config.values, config.encoding)
    if least > budget.amount:
        raise BudgetError(f"a budget of {budget} cannot be met: empty tables have {least:,.0f} {budget.unit}; allow more")


def _pretrain(task: Task, config: TaskConfig, splits: Splits) -> None:
    """The run that comes before, if the task asks for one; nothing is left of it but its model."""
    before = task.pretraining(config)
    if before is None:
        return
    with TemporaryDirectory() as name:
        train(before, Path(name) / "run", splits=splits)
        task.use_pretrained(splits, load_model(Path(name) / "run"))


def load_model(run: str | Path) -> TaskModel:
    """A finished run's model; its data are not needed."""
    folder = RunFolder(run)
    task = folder.task()
    config, facts = folder.open()
    folder.check_trained_here()
    model = task.build(task.for_evaluation(config), task.reopen(config, facts, folder.path))
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
    splits = task.load(task.for_evaluation(config if data is None else with_options(config, data=data)))
    if splits.digest != facts["sha256"]:
        raise ValueError(
            f"{data or 'the file'} is not what the run was trained on: {splits.count} {task.examples} here, "
            f"{facts['examples']} there, and other contents; give the right file with --data"
        )
    model = task.build(task.for_evaluation(config), splits)
    restore(read_checkpoint(folder.final), model)
    before = folder.result()
    kept = {name: before[name] for name in ("engine", "growth") if name in before}
    return _summary(task, config, splits, model, folder) | kept


def _summary(task: Task, config: TaskConfig, splits: Splits, model: TaskModel, folder: RunFolder) -> JSON:
    """What was measured, and what an export will take: by part and in total, and what --with-seen adds."""
    result = summarize(task, config, splits, model, folder)
    with TemporaryDirectory() as name:
        _write_beside(task, config, model, folder, Path(name))
        sizes = result["files"] | {file.name: file.stat().st_size for file in Path(name).iterdir()}
    result["export_bytes"] = by_part(sizes) | {"total": sum(sizes.values())}
    seen = folder.path / SEEN
    return result | ({"seen_bytes": seen.stat().st_size} if seen.is_file() else {})


def export(
    run: str | Path,
    out: Path,
    *,
    values: str | None = None,
    encoding: str | None = None,
    seen: bool = False,
    overwrite: bool = False,
) -> dict[str, int]:
    """Write a run as a folder that needs neither its data nor its checkpoint nor torch; → bytes of its files by name.

    `seen`: for recommenders, also what users have rated.
    """
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
    _write_beside(task, config, model, folder, out, values, encoding, seen)
    names = (*model.file_names(), *BESIDE, "config.json")
    return {name: (out / name).stat().st_size for name in names if (out / name).is_file()}


def _write_beside(
    task: Task,
    config: TaskConfig,
    model: TaskModel,
    folder: RunFolder,
    out: Path,
    values: str | None = None,
    encoding: str | None = None,
    seen: bool = False,
) -> None:
    """What an export has beside its tables."""
    facts = folder.raw()["data"]
    task.reopen(config, facts, folder.path).save(out)
    task.export_extras(folder.path, config, out, seen)
    if others := outside_tables(model):
        write_weights(out, others)
    write_description(out, standalone(task, config, values, encoding).model_dump(mode="json"), facts, model.file_names())


def standalone(task: Task, config: TaskConfig, values: str | None = None, encoding: str | None = None) -> TaskConfig:
    """The config of an export: no files of this machine in it."""
    changes: JSON = {name: "" for name in FILES if name in to_options(config)}
    changes |= {name: value for name, value in (("values", values), ("encoding", encoding)) if value is not None}
    known = chosen_options(type(config), {"solver": config.solver.name})
    return with_options(task.for_evaluation(config), **{name: value for name, value in changes.items() if name in known})


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
