"""Many runs on the same data: each trial is a row of a file of records, and a trial that is there is not repeated."""

import hashlib
import json
import multiprocessing
import os
import shlex
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from antembed.pipelines.task import RECOMMEND, TASKS, Data, Point, Row, Task
from antembed.reporting import append_record, read_records
from antembed.reporting.front import judged_on, pareto, settings_of
from antembed.training import CheckpointError, RunError, RunFolder


@dataclass(frozen=True)
class Trial:
    """One run of a sweep."""

    varied: Point
    settings: Any
    command: str  # that would do the same run alone
    task: Task = RECOMMEND

    @property
    def config(self) -> Point:
        """All that decides its result, but for the data."""
        deciding = self.task.defaults.keys()
        return {name: value for name, value in asdict(self.settings).items() if name in deciding}

    @property
    def key(self) -> str:
        return key_of(self.config, self.task)

    @property
    def folder(self) -> str:
        """A name for its run; the hash tells it from runs with other fixed options."""
        digest = hashlib.sha256(self.key.encode()).hexdigest()
        return label(self.varied | {"seed": self.settings.seed}).replace(" ", "_").replace("/", "-") + "_" + digest[:8]


def key_of(config: Point, task: Task = RECOMMEND) -> str:
    """Equal for equal settings. Options that a record does not have yet had their default."""
    return json.dumps(task.defaults | config, sort_keys=True)


def label(varied: Point) -> str:
    """l1=1e-05 anchors=40/16, for people."""
    return " ".join(f"{name}={word(value, '/')}" for name, value in varied.items())


def word(value: Any, between: str = ",") -> str:
    return between.join(str(part) for part in value) if isinstance(value, list | tuple) else str(value)


def command_of(data: str, given: Point, task: Task = RECOMMEND) -> str:
    """What would be typed to do one trial alone."""
    words = ["antembed", "train", task.name, data]
    for name, value in given.items():
        option = name.replace("_", "-")
        words += [f"--{option}" if value else f"--no-{option}"] if isinstance(value, bool) else [f"--{option}", word(value)]
    return shlex.join(words)


def plan(
    data: str,
    points: Sequence[Point],
    fixed: Point,
    seeds: Sequence[int],
    examples: int,
    threads: int = 1,
    task: Task = RECOMMEND,
) -> list[Trial]:
    """Every point with every seed; `examples` says which of the paper's settings are the default, as for a single run."""
    trials: dict[str, Trial] = {}
    for point in points:
        if both := point.keys() & fixed.keys():
            raise ValueError(f"{min(both)} is both set (to {fixed[min(both)]}) and varied; choose one")
        for seed in seeds:
            given = {**fixed, **point, "seed": seed}
            settings = task.settings(data=data, **{"threads": threads, **task.usual(examples), **given})
            trial = Trial(point, settings, command_of(data, given, task), task)
            trials.setdefault(trial.key, trial)
    return list(trials.values())


def finished(records: Path, data: Data, task: Task = RECOMMEND) -> dict[str, Row]:
    """What a file of records has of a sweep over these data, by the settings."""
    rows = read_records(records) if records.is_file() else []
    for number, row in enumerate(rows, 1):
        if not {"config", "settings", "sha256"} <= row.keys():
            raise ValueError(f"{records}: line {number} is no trial of a sweep; choose another file with --out")
        if row["task"] != task.name:
            raise ValueError(f"{records} has trials of {row['task']}, these are of {task.name}; choose another file with --out")
        if row["sha256"] != data.digest:
            raise ValueError(
                f"{records} has trials on other data: {row[task.examples]} {task.examples} with sha256 "
                f"{row['sha256'][:12]}…, here {len(data)} with {data.digest[:12]}… (of {', '.join(task.hashed)}); "
                "choose another file with --out"
            )
    return {key_of(row["config"], task): row for row in rows}


def sweep(
    trials: Sequence[Trial],
    records: str | Path,
    data: Data,
    *,
    jobs: int = 1,
    keep: str | Path | None = None,
    tell: Callable[[Row], None] = lambda row: None,
) -> list[Row]:
    """Do the trials that `records` lacks, one row each as soon as it is done; → the rows of all, in the order of the trials.

    `keep`: a folder for the runs, which are otherwise temporary. With several jobs each process reads the data itself.
    """
    if not trials:
        raise ValueError("a sweep of 0 trials; say what to vary, as in --vary l1=1e-5,1e-4")
    records, task = Path(records), trials[0].task
    done = finished(records, data, task)
    todo = [*{trial.key: trial for trial in trials if trial.key not in done}.values()]  # one asked for twice is done once
    folder = None if keep is None else Path(keep)
    run = one_by_one(todo, data, folder) if min(jobs, len(todo)) < 2 else side_by_side(todo, folder, jobs)
    for trial, measured in run:
        row = measured | {
            "settings": trial.varied,
            "config": trial.config,
            "sha256": data.digest,
            task.examples: len(data),
            "command": trial.command,
        }
        append_record(records, row)
        tell(row)
    done = finished(records, data, task)
    return [done[trial.key] for trial in trials]


def front_of(rows: Sequence[Row]) -> Row:
    """The settings that no other beats in both error and parameters, by error; error is on validation data if there are any."""
    good = [row for row in rows if "failed" not in row]
    if not good:
        raise ValueError(f"all {len(rows)} trials failed; the first: {rows[0]['failed']}")
    part, error = judged_on(good), TASKS[rows[0]["task"]].error
    found = settings_of(good, part, error)
    best = [found[n] for n in pareto([(setting["error"], setting["parameters"]) for setting in found])]
    return {
        "metric": error,
        "error": part,
        "settings": len(found),
        "failed": len(rows) - len(good),
        "front": best,
        "all": found,
    }


def one_by_one(todo: Sequence[Trial], data: Data, keep: Path | None) -> Iterator[tuple[Trial, Row]]:
    for trial in todo:
        yield trial, run_trial(trial, data, keep)


def run_trial(trial: Trial, data: Data, keep: Path | None) -> Row:
    """Train and measure. A run that fails by its settings is a result, too, or it would stop the sweep again and again."""
    with tempfile.TemporaryDirectory(prefix="antembed-sweep-") as temporary:
        folder = RunFolder(Path(temporary) / "run" if keep is None else keep / trial.folder)
        try:
            return trial.task.train(trial.settings, folder.path, folder.config_file.exists(), data)
        except (RunError, CheckpointError):  # of the folder, not of the settings
            raise
        except ValueError as error:
            return {"task": trial.task.name, "failed": str(error), "seed": trial.settings.seed}


def side_by_side(todo: Sequence[Trial], keep: Path | None, jobs: int) -> Iterator[tuple[Trial, Row]]:
    """Several processes, as they come."""
    context = multiprocessing.get_context("spawn")  # a forked OpenMP or Numba pool hangs
    pool = ProcessPoolExecutor(min(jobs, len(todo)), context, begin_worker, (todo[0],))
    try:
        begun = {pool.submit(work, trial, keep): trial for trial in todo}
        for future in as_completed(begun):
            yield begun[future], future.result()
    finally:
        pool.shutdown(cancel_futures=True)


_read: list[Data] = []  # by a worker, once


def begin_worker(first: Trial) -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends it without a word; the sweep says what to do
    threading.Thread(target=leave_with_parent, daemon=True).start()
    torch.set_num_threads(first.settings.threads)
    _read.append(first.task.read(first.settings))


def leave_with_parent() -> None:
    """A worker of a killed sweep would wait for its next trial for ever."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def work(trial: Trial, keep: Path | None) -> Row:
    return run_trial(trial, _read[0], keep)
