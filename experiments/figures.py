"""Draws the figures of docs/ from results/ (extra: plot).

python -m experiments figures [NAME.svg …]
"""

from collections.abc import Callable
from pathlib import Path
from statistics import mean

from antembed.files import JSON
from antembed.recommend.task import Ratings
from antembed.report.pictures import draw_objective, save, two_sizes
from antembed.sweep.front import rank
from antembed.sweep.records import Records, by_setting, read_records
from experiments.text_tables import OURS, front_points

ROOT = Path(__file__).parents[1]
QUANTIZED = {("anchor", "int8"): "--", ("anchor", "int8 packed"): ":", ("full", "fp16"): "-.", ("full", "int8"): "--"}
NAMES = {"anchor": "antembed: anchored", "full": "full, biased, ridge, every k"}


def points(records: Records, size: str) -> dict[str, list[tuple[float, float]]]:
    """By kind of table: (size, error), means over the seeds of a setting, smallest first; `size` is parameters or bytes."""
    found: dict[str, list[tuple[float, float]]] = {}
    for runs in by_setting(records):
        found.setdefault(runs[0]["embedding"], []).append((mean(r[size] for r in runs), mean(r["test"]["mse"] for r in runs)))
    return {embedding: sorted(those) for embedding, those in found.items()}


def quantized(record: JSON, kind: str) -> JSON:
    """The record as if its files had been written with coarser numbers."""
    found = record["quantized"][kind]
    return record | {"bytes": found["bytes"], "test": {"mse": found["test_mse"]}}


def draw_front(records: Records, out: Path) -> None:
    """Two pictures side by side: parameters, with the paper's points, and bytes on disk."""
    figure, axes_of = two_sizes("parameters, biases counted")
    for size, axes in axes_of.items():
        for embedding, those in points(records, size).items():
            name = NAMES.get(embedding, embedding)
            axes.plot(*zip(*those, strict=True), marker="o", label=name if size == "parameters" else f"{name}, fp32")
    for kind in ("fp16", "int8", "int8 packed"):
        for embedding, those in points([quantized(record, kind) for record in records], "bytes").items():
            if (embedding, kind) in QUANTIZED:
                label = f"{NAMES.get(embedding, embedding)}, {kind}"
                axes_of["bytes"].plot(*zip(*those, strict=True), marker=".", linestyle=QUANTIZED[embedding, kind], label=label)
    axes_of["bytes"].legend()
    for name, those in Ratings.published.items():
        axes_of["parameters"].plot(*zip(*those, strict=True), marker="x", linestyle="none", label=name)
    axes_of["parameters"].set_ylabel("test MSE")
    axes_of["parameters"].legend()
    figure.suptitle("MovieLens 1M, 90/10: error against size, means over seeds")
    save(figure, out)


def draw_online(records: Records, out: Path) -> None:
    """Anchors of users and items, and the error of each batch before it was learned."""
    from matplotlib.figure import Figure

    record = records[-1]
    figure = Figure(figsize=(11, 4.5), layout="constrained")
    left, right = figure.subplots(1, 2)
    for name, path in record["paths"].items():
        seen = [row["ratings"] for row in path]
        for side in ("users", "items"):
            left.plot(seen, [row["anchors"][side] for row in path], marker=".", label=f"{side}: {name}")
        later = [row for row in path if row["mse_before"] is not None]
        right.plot([row["ratings"] for row in later], [row["mse_before"] for row in later], marker=".", label=name)
    left.set_ylabel("anchors")
    right.set_ylabel("MSE of a batch before it is learned")
    for axes in (left, right):
        axes.set_xlabel("ratings so far")
        axes.grid(alpha=0.3)
        axes.legend()
    figure.suptitle("MovieLens 1M as a stream, in the order of time")
    save(figure, out)


STYLES = {"anchored": "-", "full": "--"}
LINKS = (1, 10, 25, 100)  # Gbit/s


def draw_cost(records: Records, out: Path) -> None:
    """What a process sends a step, how long that takes by the speed of the link, and what it holds."""
    from matplotlib.figure import Figure

    rows = list({(row["V"], row["zipf"]): row for row in records if row.get("benchmark") == "cost model"}.values())
    first = rows[0]
    names = {"anchored": f"T, K = {first['K']}", "full": f"full, d = {first['d']}"}
    figure = Figure(figsize=(14, 4.5), layout="constrained")
    sent, time, memory = figure.subplots(1, 3)
    for color, zipf in enumerate(sorted({row["zipf"] for row in rows})):
        own = sorted((row for row in rows if row["zipf"] == zipf), key=lambda row: row["V"])
        largest = own[-1]
        for kind, style in STYLES.items():
            look = {"linestyle": style, "marker": "o", "color": f"C{color}", "label": f"{names[kind]}; Zipf {zipf}"}
            sent.plot([row["V"] for row in own], [row["MB_sent"][kind] for row in own], **look)
            time.plot(LINKS, [8 * largest["MB_sent"][kind] / link for link in LINKS], **look)
    own = sorted((row for row in rows if row["zipf"] == rows[0]["zipf"]), key=lambda row: row["V"])
    for kind, style in STYLES.items():
        held = [row["GB_per_process"][kind] for row in own]
        memory.plot([row["V"] for row in own], held, linestyle=style, marker="o", color="black", label=names[kind])
    for row in own:
        at = row["V"], row["GB_per_process"]["full"]
        memory.annotate(f"{row['processes']} processes", at, xytext=(8, -12), textcoords="offset points")
    for axes, below, beside in (
        (sent, "rows", "MB that a process sends a step"),
        (time, f"link, Gbit/s ({largest['V']:.0e} rows, {largest['processes']} processes)", "ms a step for that"),
        (memory, "rows", "GB of a process, with two moments"),
    ):
        axes.set(xscale="log", yscale="log", xlabel=below, ylabel=beside)
        axes.grid(alpha=0.3)
    memory.margins(x=0.3)
    figure.legend(*sent.get_legend_handles_labels(), loc="outside lower center", ncols=6)
    memory.legend(loc="lower right")
    figure.suptitle(f"{first['ids']:,} ids a process and step, by the cost model, not measured")
    save(figure, out)


def draw_text_front(records: Records, out: Path) -> None:
    """Accuracy by the bytes of the file, of every classifier."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    for name, points in front_points(records).items():
        ours = name == OURS
        axes.plot(*zip(*points, strict=True), marker="o", label=name, linewidth=2.5 if ours else 1, alpha=1 if ours else 0.7)
    axes.set_xscale("log")
    axes.set_xlabel("bytes of the file, all that is needed to predict")
    axes.set_ylabel("test accuracy, %")
    axes.set_ylim(bottom=86)
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    save(figure, out)


def draw_step_growth(records: Records, out: Path) -> None:
    """A picture for each thing that varies; a dotted line grows in proportion to it."""
    from matplotlib.figure import Figure

    record = records[-1]
    times_by = record["milliseconds"]
    figure = Figure(figsize=(4 * len(times_by) / 2, 6), layout="constrained")
    for axes, (name, times) in zip(figure.subplots(2, -(-len(times_by) // 2)).flat, times_by.items(), strict=True):
        values = [float(value) for value in times]
        axes.plot(values, list(times.values()), marker="o", color="black")
        first = next(iter(times.values()))
        axes.plot(values, [first * value / values[0] for value in values], linestyle=":", color="grey")
        axes.set(xscale="log", yscale="log", xlabel=name, ylabel="ms")
        axes.grid(alpha=0.3)
    figure.suptitle(f"a step: {record['setting']}")
    save(figure, out)


def eq5(anchor_penalty: float, l0_penalty: float) -> Callable[[Records, Path], None]:
    """Eq. 5 of the paper against the number of anchors."""

    def draw(records: Records, out: Path) -> None:
        part, ranked = rank([row | {"source": ""} for row in records], anchor_penalty, l0_penalty)
        draw_objective(ranked, out, f"eq. 5 on {part} data, λ1 = {anchor_penalty:g}, λ2 = {l0_penalty:g}")

    return draw


# Picture below docs/ → its records, and how it is drawn.
FIGURES: dict[str, tuple[str, Callable[[Records, Path], None]]] = {
    "front.svg": ("front.jsonl", draw_front),
    "online.svg": ("online.jsonl", draw_online),
    "objective.svg": ("anchors-paper.jsonl", eq5(0.01, 1e-4)),
    "objective-fine.svg": ("anchors-fine.jsonl", eq5(1e-3, 1e-6)),
    "text-front.svg": ("ngrams.jsonl", draw_text_front),
    "results/distributed-cost.svg": ("distributed.jsonl", draw_cost),
    "results/step-growth.svg": ("step-growth.jsonl", draw_step_growth),
}


def main(words: list[str]) -> None:
    for name, (records, draw) in FIGURES.items():
        if not words or Path(name).name in words:
            draw(read_records(ROOT / "results" / records), ROOT / "docs" / name)
