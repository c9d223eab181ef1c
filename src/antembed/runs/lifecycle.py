"""The life of a run, once for every task and solver: create, train, resume, evaluate, export."""

import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from antembed.checkpoint import capture, read_checkpoint, restore, write_checkpoint
from antembed.config import ConfigError, Options, TaskConfig, from_options, with_options
from antembed.files import JSON
from antembed.runs.folder import RunFolder
from antembed.runs.result import summarize
from antembed.solvers import Callback, ignore, make_solver
from antembed.solvers.automatic import AUTOMATIC, is_automatic
from antembed.tasks import TASKS, EmbeddingModel, Predictor, Splits, Task, TaskModel


def configure(task: Task, given: Options, report: Callable[[str], None] = lambda line: None) -> tuple[TaskConfig, Splits]:
    """Options → a config and the data it names. What was not given follows from the data: by a search, where there is one, else
    from the number of examples. `report` is told what is searched."""
    first = _first_config(task, given)
    splits = task.load(first)
    if is_automatic(task, given) and AUTOMATIC[task.name].applies(first):
        found = AUTOMATIC[task.name](first, given, splits, report)
        given = {name: value for name, value in given.items() if name != "solver"} | found
    return from_options(task.Config, given, task.defaults(splits.count)), splits


def _first_config(task: Task, given: Options) -> TaskConfig:
    """Wrong options are reported before the data are read; but what does not suit few examples may suit many."""
    try:
        return from_options(task.Config, given)
    except ConfigError as error:
        try:
            return from_options(task.Config, given, task.defaults(sys.maxsize))
        except ConfigError:
            raise error from None


def train(
    config: TaskConfig, out: str | Path, *, splits: Splits | None = None, resume: bool = False, callback: Callback = ignore
) -> JSON:
    """Train, evaluate, export; → what was measured. `splits` is for callers that have the data in memory."""
    task, folder = TASKS[config.task], RunFolder(out)
    splits = task.load(config) if splits is None else splits
    _pretrain(task, config, splits)
    model = task.build(config, splits)
    solver = make_solver(task, config, model, splits)
    folder.create(config, task.facts(splits, model), resume)
    splits.save(folder.path)
    if resume and folder.last.exists():
        solver.load_state_dict(read_checkpoint(folder.last))
    folder.forget_after(solver.epoch)
    for record in solver.fit(folder, callback):
        folder.log(record)
        write_checkpoint(folder.last, solver.state_dict())
    write_checkpoint(folder.final, capture(model, None, {"epoch": solver.epoch}))
    splits.save(folder.path)  # a stream knows its labels only now
    model.eval().export(folder.path, config.values, config.encoding)
    result = summarize(task, config, splits, model, folder) | solver.result()
    folder.write_result(result)
    return result


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
    folder.check_finished()
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
    folder.check_finished()
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
    return summarize(task, config, splits, model, folder) | kept


def export(run: str | Path, out: Path, *, values: str | None = None, encoding: str | None = None) -> dict[str, int]:
    """Write a run's tables into a folder, with what says which row is whose; → bytes by file name."""
    folder = RunFolder(run)
    config, facts = folder.open()
    written = load_model(run).export(out, values or config.values, encoding or config.encoding)
    folder.task().reopen(config, facts, folder.path).save(out)
    return written


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


def open_predictor(run: str | Path) -> Predictor:
    """A finished run as a classifier."""
    folder = RunFolder(run)
    config, facts = folder.open()
    task = folder.task()
    return task.predictor(folder.path, config, load_model(run), task.reopen(config, facts, folder.path))
