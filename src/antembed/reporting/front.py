"""Error against size, as a picture: python -m antembed.reporting.front results/front.jsonl docs/front.svg (extra: plot)."""

import sys
from pathlib import Path
from statistics import mean
from typing import Any

from antembed.reporting.readme import setting
from antembed.reporting.records import read_records

# MovieLens 1M, MSE @ parameters, as published (SPEC §7).
PAPER = {
    "paper: full": [(155.2e3, 0.771)],
    "paper: ANT": [(59.4e3, 0.772), (29.2e3, 0.786), (10.8e3, 0.836)],
    "paper: nbANT": [(27.7e3, 0.795), (10.6e3, 0.837)],
}
NAMES = {"anchor": "antembed: anchored", "full": "full, biased, ridge, every k"}


def points(records: list[dict[str, Any]], size: str) -> dict[str, list[tuple[float, float]]]:
    """By kind of table: (size, error), means over the seeds of a setting, smallest first; `size` is parameters or bytes."""
    settings: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for record in records:
        settings.setdefault((record["embedding"], setting(record["command"])), []).append(record)
    found: dict[str, list[tuple[float, float]]] = {}
    for (embedding, _), runs in settings.items():
        found.setdefault(embedding, []).append((mean(r[size] for r in runs), mean(r["test"]["mse"] for r in runs)))
    return {embedding: sorted(those) for embedding, those in found.items()}


def draw(records: list[dict[str, Any]], out: Path) -> None:
    """Two pictures side by side: parameters, with the paper's points, and bytes on disk."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    mpl.rcParams["svg.hashsalt"] = "antembed"  # the same records give the same file
    figure = Figure(figsize=(11, 4.5), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    for axes, size in ((left, "parameters"), (right, "bytes")):
        for embedding, those in points(records, size).items():
            axes.plot(*zip(*those, strict=True), marker="o", label=NAMES.get(embedding, embedding))
        axes.set_xscale("log")
        axes.set_xlabel("parameters, biases counted" if size == "parameters" else "bytes on disk, indices counted")
        axes.grid(alpha=0.3, which="both")
    for name, those in PAPER.items():
        left.plot(*zip(*those, strict=True), marker="x", linestyle="none", label=name)
    left.set_ylabel("test MSE")
    left.legend()
    figure.suptitle("MovieLens 1M, 90/10: error against size, means over seeds")
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, metadata={"Date": None})


if __name__ == "__main__":
    draw(read_records(sys.argv[1]), Path(sys.argv[2]))
