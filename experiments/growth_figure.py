"""The growth of a layer's step, drawn from its records:
python -m experiments.growth_figure results/step-growth.jsonl docs/results/step-growth.svg (extra: plot)."""

import sys
from pathlib import Path

from antembed.sweep.front import save
from antembed.sweep.records import Records, read_records


def draw(records: Records, out: Path) -> None:
    """One panel for each thing that varies; a dotted line grows in proportion to it."""
    from matplotlib.figure import Figure

    record = records[-1]
    panels = record["milliseconds"]
    figure = Figure(figsize=(4 * len(panels) / 2, 6), layout="constrained")
    for axes, (name, times) in zip(figure.subplots(2, -(-len(panels) // 2)).flat, panels.items(), strict=True):
        values = [float(value) for value in times]
        axes.plot(values, list(times.values()), marker="o", color="black")
        first = next(iter(times.values()))
        axes.plot(values, [first * value / values[0] for value in values], linestyle=":", color="grey")
        axes.set(xscale="log", yscale="log", xlabel=name, ylabel="ms")
        axes.grid(alpha=0.3)
    figure.suptitle(f"a step: {record['setting']}")
    save(figure, out)


if __name__ == "__main__":
    draw(read_records(sys.argv[1]), Path(sys.argv[2]))
