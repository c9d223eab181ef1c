"""The life of a run: a folder, and what is done with it; the same for every task and solver."""

from antembed.runs.folder import RunError, RunFolder
from antembed.runs.lifecycle import configure, evaluate, export, export_table, load_model, open_predictor, train

__all__ = ["RunError", "RunFolder", "configure", "evaluate", "export", "export_table", "load_model", "open_predictor", "train"]
