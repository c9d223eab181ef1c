"""The life of a run: a folder, and what is done with it; the same for every task and solver."""

from importlib import import_module
from typing import TYPE_CHECKING

from antembed.runs.folder import RunError, RunFolder

if TYPE_CHECKING:
    from antembed.runs.lifecycle import configure, evaluate, export, export_table, load_model, open_predictor, train

__all__ = ["RunError", "RunFolder", "configure", "evaluate", "export", "export_table", "load_model", "open_predictor", "train"]


def __getattr__(name: str) -> object:
    """What needs torch is imported on first use."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("antembed.runs.lifecycle"), name)
