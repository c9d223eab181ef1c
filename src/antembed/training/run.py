"""A run is a folder: config.json, metrics.jsonl, checkpoint/, and the exported tables."""

import json
from pathlib import Path
from typing import Any

from antembed.files import append_line, write_atomically


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
        self.final = self.path / "checkpoint" / "final.safetensors"

    def create(self, config: dict[str, Any], resume: bool) -> None:
        """Make the folder, or find the one that is to be resumed: the same settings, or an error that names the other."""
        if not resume:
            if self.path.exists() and any(self.path.iterdir()):
                raise RunError(f"{self.path} exists; add --resume to go on with it, or choose another --out")
            self.last.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(self.config_file, json.dumps(config, indent=2).encode())
            return
        saved = self.config()
        for name, value in config.items():
            if saved.get(name) != value:
                raise RunError(
                    f"{self.path} was started with {name}={saved.get(name)!r}, not {value!r}; "
                    "resume with the same settings, or choose another --out"
                )

    def model_file(self) -> Path:
        """The checkpoint that counts: the finished model; before that the best epoch, or the last without validation."""
        for file in (self.final, self.best, self.last):
            if file.exists():
                return file
        raise RunError(f"{self.path} has no checkpoint yet; train it first")

    def config(self) -> dict[str, Any]:
        if not self.config_file.is_file():
            raise RunError(f"{self.path} is no run: it has no config.json")
        return json.loads(self.config_file.read_text())

    def log(self, row: dict[str, Any]) -> None:
        append_line(self.metrics_file, json.dumps(row))

    def rows(self) -> list[dict[str, Any]]:
        """What was logged, one row an epoch."""
        if not self.metrics_file.is_file():
            return []
        whole = self.metrics_file.read_bytes().rpartition(b"\n")[0]
        return [json.loads(line) for line in whole.splitlines()]

    def forget_after(self, epochs: int) -> None:
        """Drop rows of epochs that a resumed run will do again."""
        rows = [row for row in self.rows() if row["epoch"] <= epochs]
        write_atomically(self.metrics_file, "".join(json.dumps(row) + "\n" for row in rows).encode())
