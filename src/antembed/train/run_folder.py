"""A run is a folder: config.json, metrics.jsonl, result.json, checkpoint/, and the exported tables."""

import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from antembed.files import JSON, append_json, is_temporary, locked, read_json_lines, write_atomically
from antembed.tables.model_folder import (
    POPULARITY,
    RATINGS,
    SEEN,
    TOP_NGRAMS,
    WEIGHTS,
    RunError,
    check_own,
    read_description,
    read_json,
    write_description,
)
from antembed.tables.row_labels import LABELLED
from antembed.train.config import TaskConfig
from antembed.train.options import ConfigError, to_options, validated
from antembed.train.registry import TASKS

if TYPE_CHECKING:
    from antembed.train.task import Task

# Do not change what is trained, so a run may be resumed with others; but a budget of bytes counts the files.
MAY_DIFFER = ("values", "encoding")
LOCK = ".lock"  # who trains here
# What a run, an export or an estimator writes beside config.json and the tables that it names.
BESIDE = ("metrics.jsonl", "result.json", "vocabulary.parquet", "classifier.json", TOP_NGRAMS, SEEN, RATINGS, POPULARITY,
          WEIGHTS, *(f"{name}.labels.{kind}" for name in LABELLED for kind in ("safetensors", "parquet")))  # fmt: skip


class RunFolder:
    """Names of the files in a run, and what is written to them."""

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self.config_file = self.path / "config.json"
        self.metrics_file = self.path / "metrics.jsonl"
        self.result_file = self.path / "result.json"
        self.last = self.path / "checkpoint" / "last.safetensors"
        self.shared = self.path / "checkpoint" / "last.json"  # of several processes; beside it folders last-NUMBER
        self.best = self.path / "checkpoint" / "best.safetensors"
        self.snapshot = self.path / "checkpoint" / "snapshot.safetensors"
        self.final = self.path / "checkpoint" / "final.safetensors"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """One process trains in a folder; a second one gets an error that names the first."""
        self.path.mkdir(parents=True, exist_ok=True)
        with locked(self.path / LOCK, f"the run {self.path}"):
            yield

    def create(
        self, config: TaskConfig, facts: JSON, tables: Sequence[str], *, resume: bool = False, overwrite: bool = False
    ) -> None:
        """Begin a run that will write these tables, or find the one to be resumed: the same config and data, or an error that
        names the difference. `overwrite` removes what the run before has written, and nothing else."""
        self.check_free(resume=resume, overwrite=overwrite)
        if self.config_file.exists():
            if resume and any((self.last.exists(), self.shared.exists(), self.final.exists(), self.exported)):
                self._check_same(config, facts)
            else:  # there is nothing to continue
                self._clear()
        self.last.parent.mkdir(parents=True, exist_ok=True)
        write_description(self.path, config.model_dump(mode="json"), facts, tables)

    def check_free(self, *, resume: bool, overwrite: bool) -> None:
        """Raise if a run cannot be here: another one is, and neither `resume` nor `overwrite` is asked for; or other files."""
        if self.config_file.exists():
            check_own(self.path)
            if not resume and not overwrite:
                raise RunError(
                    f"{self.path} exists; continue it with --resume, replace it with --overwrite, or choose another --out"
                )
        elif self.path.exists() and not self.path.is_dir():
            raise RunError(f"{self.path} is a file; a run is a folder: choose another --out")
        elif self.path.exists() and (strangers := self._strangers()):
            raise RunError(f"{self.path} is no run, but has {min(strangers)} in it; choose another --out")

    def _strangers(self) -> set[str]:
        """Files that cannot be of a run killed before it had written its config.json."""
        found = [*self.path.iterdir(), *(self.last.parent.iterdir() if self.last.parent.is_dir() else ())]
        ours = (self.last.parent, self.path / LOCK)
        return {str(path.relative_to(self.path)) for path in found if path not in ours and not is_temporary(path)}

    def _check_same(self, config: TaskConfig, facts: JSON) -> None:
        saved, remembered = self.open()
        before, now = (  # what "auto" stands for depends on the budget
            to_options(each, all=True) | {"values": each.values, "encoding": each.encoding} for each in (saved, config)
        )
        for name in {**now, **before}:
            if before.get(name) != now.get(name) and (name not in MAY_DIFFER or saved.budget):
                raise RunError(
                    f"{self.path} was started with {name}={before.get(name)!r}, not {now.get(name)!r}; "
                    "resume with the same options, or choose another --out"
                )
        if remembered.get("sha256") != facts.get("sha256"):
            raise RunError(f"{self.path} was started on other data; resume with the same file, or choose another --out")

    def raw(self) -> JSON:
        """config.json as it is."""
        return read_description(self.path)

    def task(self) -> "Task":
        """The task of the run."""
        return TASKS[self._task_name()]

    def _task_name(self) -> str:
        name = self.raw()["config"]["task"]
        if name not in TASKS:
            raise RunError(f"{self.path} is a run of the task {name!r}; there are: {', '.join(TASKS)}")
        return str(name)

    def open(self) -> tuple[TaskConfig, JSON]:
        """The config of the run, and what it remembers of its data."""
        found = self.raw()
        try:
            return validated(TASKS.configs[self._task_name()], found["config"]), found["data"]
        except ConfigError as error:
            raise RunError(f"{self.path}/config.json: {error}; train the run anew") from error

    def check_finished(self) -> None:
        """Raise if training has not come to its end. An export stands alone: it is of a finished run."""
        if not self.final.exists() and not self.exported:
            done, planned = len(self.rows()), self.open()[0].solver.epochs
            raise RunError(f"{self.path} is not finished: {done} of {planned} epochs; continue it with --resume")

    @property
    def exported(self) -> bool:
        """Whether this is a model without the state of its training: of `antembed export`, or saved by an estimator."""
        return not self.final.parent.exists() and any(file.suffix in (".ant", ".ngrams") for file in self.path.iterdir())

    def check_trained_here(self) -> None:
        """Raise if there is no finished training in this folder, whose checkpoint has the numbers in full."""
        self.check_finished()
        if not self.final.exists():
            raise RunError(f"{self.path} is an exported or saved model without a checkpoint; give the run it is from")

    def remove(self) -> None:
        """Delete what a run has written here; what it has not written stays."""
        if self.config_file.exists():
            check_own(self.path)
            self._clear()
            self.config_file.unlink()
            for folder in (self.last.parent, self.path):
                with suppress(OSError):  # there is more in it
                    folder.rmdir()

    def _clear(self) -> None:
        """Delete all that a run has written but config.json, which says what that is."""
        tables = read_json(self.config_file).get("files", [])
        plain = [name for name in tables if isinstance(name, str) and name == Path(name).name]
        for name in (*plain, *BESIDE):
            (self.path / name).unlink(missing_ok=True)
        for file in (self.last, self.shared, self.best, self.snapshot, self.final):
            file.unlink(missing_ok=True)
        for folder in self.last.parent.glob("last-[0-9]*/"):
            shutil.rmtree(folder)

    def log(self, record: JSON) -> None:
        append_json(self.metrics_file, record)

    def rows(self) -> list[JSON]:
        """What was logged, one row an epoch."""
        rows = read_json_lines(self.metrics_file) if self.metrics_file.is_file() else []
        for number, row in enumerate(rows, 1):
            epoch, seconds = row.get("epoch"), row.get("seconds")
            if not isinstance(epoch, int) or not isinstance(seconds, int | float):
                at = f"{self.metrics_file}: line {number} has epoch {epoch!r} and seconds {seconds!r}"
                raise RunError(f"{at}, no numbers; correct them, or train the run anew")
        return rows

    def forget_after(self, epoch: int) -> None:
        """Drop rows of epochs that a resumed run will do again."""
        rows = [row for row in self.rows() if row["epoch"] <= epoch]
        write_atomically(self.metrics_file, "".join(json.dumps(row) + "\n" for row in rows).encode())

    def write_result(self, result: JSON) -> None:
        write_atomically(self.result_file, json.dumps(result, indent=2).encode())

    def result(self) -> JSON:
        """What the run came to."""
        self.check_finished()
        if not self.result_file.is_file():
            raise RunError(f"{self.path} has no result.json; write it with: antembed train … --resume --out {self.path}")
        return read_json(self.result_file)
