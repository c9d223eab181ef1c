"""Many runs on the same data: each trial is a row of a file of records, and a trial that is there is not repeated."""

import hashlib
import multiprocessing
import os
import shlex
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

import torch

from antembed.files import JSON
from antembed.recommend.descent_config import OnlineConfig
from antembed.sweep.records import append_record, key_of, read_records
from antembed.tables.model_folder import RunError
from antembed.train.checkpoint import CheckpointError
from antembed.train.config import TaskConfig
from antembed.train.options import ConfigError, from_options, typed
from antembed.train.registry import TASKS
from antembed.train.run import train
from antembed.train.run_folder import RunFolder
from antembed.train.task import Splits, Task


@dataclass(frozen=True)
class Trial:
    varied: JSON
    config: TaskConfig
    command: str  # that would do the same run alone

    @property
    def task(self) -> Task:
        return TASKS[self.config.task]

    @property
    def key(self) -> str:
        return key_of(self.config.model_dump(mode="json"))

    @property
    def folder(self) -> str:
        """A name for its run; the hash differs between runs with other fixed options."""
        digest = hashlib.sha256(self.key.encode()).hexdigest()
        name = label(self.varied | {"seed": self.config.machine.seed})
        return name.replace(" ", "_").replace("/", "-") + "_" + digest[:8]


def label(varied: JSON) -> str:
    """l1_penalty=1e-05 anchors=40/16, for people."""
    return " ".join(f"{name}={word(value, '/')}" for name, value in varied.items())


def word(value: object, between: str = ",") -> str:
    return between.join(str(part) for part in value) if isinstance(value, list | tuple) else str(value)


def command_of(data: str, given: JSON, task: Task) -> str:
    """What would be typed to do one trial alone."""
    return shlex.join(["antembed", "train", task.name, data, *option_words(given)])


def option_words(given: JSON) -> list[str]:
    """Options as they are typed: --l1-penalty 1e-05 --no-biases."""
    words = []
    for name, value in given.items():
        option = typed(name)
        no = option.replace("--", "--no-", 1)
        words += [option if value else no] if isinstance(value, bool) else [option, word(value)]
    return words


def plan(
    task: Task,
    data: str,
    points: Sequence[JSON],
    fixed: JSON,
    seeds: Sequence[int],
    examples: int,
    threads: int = 1,
    objects: int = 0,
) -> list[Trial]:
    """Every point with every seed; `examples` and `objects` decide some of the defaults, as for a single run."""
    trials: dict[str, Trial] = {}
    for point in points:
        if both := point.keys() & fixed.keys():
            raise ConfigError(f"{min(both)} is both set (to {fixed[min(both)]}) and varied; choose one")
        for seed in seeds:
            given = {**task.Config.sweep_options, **fixed, **point, "seed": seed}
            more = task.Config.defaults(examples, given, objects) | {"threads": threads}
            trial = Trial(point, from_options(task.Config, {"data": data} | given, more), command_of(data, given, task))
            if isinstance(trial.config.solver, OnlineConfig):
                raise ConfigError("a stream has no validation data to compare settings by; take another --solver", "solver")
            trials.setdefault(trial.key, trial)
    return list(trials.values())


def finished(records: Path, splits: Splits, task: Task) -> dict[str, JSON]:
    """What a file of records has of a sweep over these data, by the settings."""
    rows = read_records(records) if records.is_file() else []
    for number, row in enumerate(rows, 1):
        if not {"config", "settings", "sha256"} <= row.keys():
            raise ValueError(f"{records}: line {number} is no trial of a sweep; choose another file with --out")
        if row["task"] != task.name:
            raise ValueError(f"{records} has trials of {row['task']}, these are of {task.name}; choose another file with --out")
        if row["sha256"] != splits.digest:
            raise ValueError(
                f"{records} has trials on other data: {row[task.examples]} {task.examples} with sha256 "
                f"{row['sha256'][:12]}…, here {splits.count} with {splits.digest[:12]}…; choose another file with --out"
            )
    return {key_of(row["config"]): row for row in rows}


def sweep(
    trials: Sequence[Trial],
    records: str | Path,
    splits: Splits,
    *,
    jobs: int = 1,
    keep: str | Path | None = None,
    callback: Callable[[JSON], None] = lambda row: None,
) -> list[JSON]:
    """Do the trials that `records` lacks, one row each as soon as it is done; → the rows of all, in the order of the trials.

    `splits`: the data of all trials; records of other data are an error. `keep`: a folder for the runs, which are
    otherwise temporary."""
    if not trials:
        raise ValueError("a sweep of 0 trials; say what to vary, as in --vary l1_penalty=1e-5,1e-4")
    records, task = Path(records), trials[0].task
    done = finished(records, splits, task)
    todo = [*{trial.key: trial for trial in trials if trial.key not in done}.values()]  # one asked for twice is done once
    folder = None if keep is None else Path(keep)
    one_by_one = ((trial, run_trial(trial, folder)) for trial in todo)
    for trial, measured in one_by_one if min(jobs, len(todo)) < 2 else side_by_side(todo, folder, jobs):
        about = {"settings": trial.varied, "config": trial.config.model_dump(mode="json"), "command": trial.command}
        row = measured | about | {"sha256": splits.digest, task.examples: splits.count}
        append_record(records, row)
        callback(row)
    done = finished(records, splits, task)
    return [done[trial.key] for trial in trials]


def run_trial(trial: Trial, keep: Path | None) -> JSON:
    """Train and measure. A run that fails by its settings is a result, too, or it would stop the sweep again and again."""
    with tempfile.TemporaryDirectory(prefix="antembed-sweep-") as temporary:
        folder = RunFolder(Path(temporary) / "run" if keep is None else keep / trial.folder)
        try:
            return train(trial.config, folder.path, resume=folder.config_file.exists())
        except (RunError, CheckpointError):  # of the folder, not of the settings
            raise
        except ValueError as error:
            return {"task": trial.task.name, "failed": str(error), "seed": trial.config.machine.seed}


def side_by_side(todo: Sequence[Trial], keep: Path | None, jobs: int) -> Iterator[tuple[Trial, JSON]]:
    """Several processes, as they come."""
    context = multiprocessing.get_context("spawn")  # a forked OpenMP or Numba pool hangs
    pool = ProcessPoolExecutor(min(jobs, len(todo)), context, begin_worker)
    try:
        begun = {pool.submit(run_trial, trial, keep): trial for trial in todo}
        for future in as_completed(begun):
            yield begun[future], future.result()
    finally:
        pool.shutdown(cancel_futures=True)


def begin_worker() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends it silently; the sweep says what to do
    threading.Thread(target=leave_with_parent, daemon=True).start()
    torch.set_num_threads(1)


def leave_with_parent() -> None:
    """A worker of a killed sweep would wait for its next trial for ever."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
