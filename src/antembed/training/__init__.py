"""The loop and its engines, schedules, checkpoints and folder."""

from antembed.training.checkpoint import CheckpointError, load_checkpoint, load_tensors, save_checkpoint, save_tensors
from antembed.training.engine import Engine, TorchEngine
from antembed.training.fused import FusedEngine, why_not
from antembed.training.grower import Grower
from antembed.training.loop import Plan, Tick, fit
from antembed.training.run import RunError, RunFolder

__all__ = [
    "CheckpointError",
    "Engine",
    "FusedEngine",
    "Grower",
    "Plan",
    "RunError",
    "RunFolder",
    "Tick",
    "TorchEngine",
    "fit",
    "load_checkpoint",
    "load_tensors",
    "save_checkpoint",
    "save_tensors",
    "why_not",
]
