"""Checkpoints of processes that all have the same state: one file, which rank 0 writes and all read."""

from pathlib import Path

from antembed.layer.sharded.collectives import Ranks
from antembed.train.checkpoint import Checkpoint, read_checkpoint, write_checkpoint


class FirstStorage:
    """Called by all processes."""

    def __init__(self, ranks: Ranks):
        self.ranks = ranks

    def exists(self, path: Path) -> bool:
        return bool(self.ranks.from_first({"found": path.exists()})["found"])

    def save(self, path: Path, checkpoint: Checkpoint) -> None:
        self.ranks.on_first(lambda: write_checkpoint(path, checkpoint))

    def load(self, path: Path) -> Checkpoint:
        return read_checkpoint(path)
