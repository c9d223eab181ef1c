"""The loop, its schedules, its checkpoints and its folder."""

from antembed.training.checkpoint import CheckpointError, load_checkpoint, save_checkpoint
from antembed.training.loop import Plan, Tick, fit
from antembed.training.run import RunError, RunFolder

__all__ = ["CheckpointError", "Plan", "RunError", "RunFolder", "Tick", "fit", "load_checkpoint", "save_checkpoint"]
