"""A run is a folder: config.json, metrics.jsonl, checkpoint/, and the exported tables."""

import json
import shutil
from pathlib import Path
from typing import Any

from antembed.files import append_json, read_json_lines, write_atomically

# Does not change what is trained, so a run may be resumed with another; but a budget of bytes counts them.
MAY_DIFFER = ("values",)


class RunError(ValueError):
    """A run folder that is not what was asked for."""


class RunFolder:
    """Names of the files in a run, and what is written to them."""

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self.config_file = self.path / "config.json"
        self.metrics_file = self.path / "metrics.jsonl"
        self.result_file = self.path / "result.json"
        self.last = self.path / "checkpoint" / "last.safetensors"
        self.best = self.path / "checkpoint" / "best.safetensors"
        self.snapshot = self.path / "checkpoint" / "snapshot.safetensors"  # what a trial of more or fewer anchors goes back to
        self.final = self.path / "checkpoint" / "final.safetensors"

    def create(self, config: dict[str, Any], resume: bool) -> None:
        """Make the folder, or find the one that is to be resumed: the same settings, or an error that names the other."""
        if self.config_file.exists():
            if not resume:
                raise RunError(
                    f"{self.path} exists; add --resume to go on with it or --overwrite to replace it, or choose another --out"
                )
            saved = self.config()
            for name, value in config.items():
                if saved.get(name) != value and (name not in MAY_DIFFER or saved.get("budget")):
                    raise RunError(
                        f"{self.path} was started with {name}={saved.get(name)!r}, not {value!r}; "
                        "resume with the same settings, or choose another --out"
                    )
        elif self.path.exists() and (strangers := {p.name for p in self.path.iterdir()} - {"checkpoint"}):
            raise RunError(f"{self.path} is no run, but has {min(strangers)} in it; choose another --out")
        self.last.parent.mkdir(parents=True, exist_ok=True)
        for leftover in [*self.path.glob(".*.*"), *self.last.parent.glob(".*.*")]:
            leftover.unlink()  # of a write that was killed
        write_atomically(self.config_file, json.dumps(config, indent=2).encode())

    def must_be_finished(self) -> None:
        """Raise if training has not come to its end."""
        if not self.final.exists():
            done, planned = len(self.rows()), self.config().get("epochs")
            raise RunError(f"{self.path} is not finished: {done} of {planned} epochs; go on with it by --resume")

    def remove(self) -> None:
        """Delete the folder, if it is a run."""
        if self.config_file.exists():
            shutil.rmtree(self.path)

    def config(self) -> dict[str, Any]:
        if not self.config_file.is_file():
            raise RunError(f"{self.path} is no run: it has no config.json")
        return json.loads(self.config_file.read_text())

    def log(self, row: dict[str, Any]) -> None:
        append_json(self.metrics_file, row)

    def rows(self) -> list[dict[str, Any]]:
        """What was logged, one row an epoch."""
        return read_json_lines(self.metrics_file) if self.metrics_file.is_file() else []

    def forget_after(self, epochs: int) -> None:
        """Drop rows of epochs that a resumed run will do again."""
        rows = [row for row in self.rows() if row["epoch"] <= epochs]
        write_atomically(self.metrics_file, "".join(json.dumps(row) + "\n" for row in rows).encode())
