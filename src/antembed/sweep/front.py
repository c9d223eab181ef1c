"""Error against size, as a picture: python -m antembed.sweep.front results/front.jsonl docs/front.svg (extra: plot)."""

import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING

from antembed.files import JSON
from antembed.recommend.task import Ratings
from antembed.sweep.records import Records, by_setting, read_records

# MERGED Eq. 5 against the number of anchors, as a picture, with the end point of runs that found their number themselves.

if TYPE_CHECKING:  # matplotlib is an extra
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

QUANTIZED = {("anchor", "int8"): "--", ("anchor", "int8 packed"): ":", ("full", "fp16"): "-.", ("full", "int8"): "--"}
COUNTED = "parameters, biases counted"
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


def pareto(points: Sequence[Sequence[float]]) -> list[int]:
    """The positions of the points that no other point beats, in the order of their first number.

    A point is beaten by one that is nowhere larger and somewhere smaller; one that is not finite is on no front.
    """
    finite = [n for n, point in enumerate(points) if all(math.isfinite(number) for number in point)]

    def beats(a: Sequence[float], b: Sequence[float]) -> bool:
        return all(x <= y for x, y in zip(a, b, strict=True)) and any(x < y for x, y in zip(a, b, strict=True))

    best = [n for n in finite if not any(beats(points[m], points[n]) for m in finite)]
    return sorted(best, key=lambda n: tuple(points[n]))


def evaluated_on(rows: Sequence[JSON]) -> str:
    """The part of the data to choose by: validation, if every run has it."""
    return "validation" if all(row["validation"] for row in rows) else "test"


def mean_by_setting(rows: Sequence[JSON], part: str, error: str) -> Records:
    """One row a setting of a sweep: means over its seeds, and half of how far their errors lie apart. `error`: its name."""
    found = []
    for runs in by_setting(rows):
        errors = [row[part][error] for row in runs]
        found.append(
            {
                "settings": runs[0]["settings"],
                "embedding": runs[0]["embedding"],
                "error": mean(errors),
                "spread": (max(errors) - min(errors)) / 2,
                "test": mean(row["test"][error] for row in runs),
                **{name: mean(row[name] for row in runs) for name in ("parameters", "bytes", "seconds")},
                "seeds": sorted(row["seed"] for row in runs),
            }
        )
    return found


def draw(records: Records, out: Path) -> None:
    """Two pictures side by side: parameters, with the paper's points, and bytes on disk."""
    figure, sides = two_sizes()
    for size, axes in sides.items():
        for embedding, those in points(records, size).items():
            name = NAMES.get(embedding, embedding)
            axes.plot(*zip(*those, strict=True), marker="o", label=name if size == "parameters" else f"{name}, fp32")
    for kind in ("fp16", "int8", "int8 packed"):
        for embedding, those in points([quantized(record, kind) for record in records], "bytes").items():
            if (embedding, kind) in QUANTIZED:
                label = f"{NAMES.get(embedding, embedding)}, {kind}"
                sides["bytes"].plot(*zip(*those, strict=True), marker=".", linestyle=QUANTIZED[embedding, kind], label=label)
    sides["bytes"].legend()
    add_points(sides["parameters"], Ratings.published)
    sides["parameters"].set_ylabel("test MSE")
    sides["parameters"].legend()
    figure.suptitle("MovieLens 1M, 90/10: error against size, means over seeds")
    save(figure, out)


def draw_settings(
    settings: Records, out: Path, *, error: str = "MSE", published: Mapping[str, Sequence[tuple[float, float]]]
) -> None:
    """A sweep: every setting (`mean_by_setting`), and a line through those that no other beats in error and this size.

    `error` says what is measured; `published`: the paper's points.
    """
    figure, sides = two_sizes("parameters")
    for size, axes in sides.items():
        found = [(setting[size], setting["error"]) for setting in settings]
        sizes, errors = zip(*found, strict=True)
        axes.scatter(sizes, errors, s=14, alpha=0.5, label="settings tried")
        best = [found[n] for n in pareto(found)]
        axes.plot(*zip(*best, strict=True), marker="o", color="black", drawstyle="steps-post", label="not beaten in both")
    add_points(sides["parameters"], published, " (test)")
    sides["parameters"].set_ylabel(error)
    sides["parameters"].legend()
    figure.suptitle("error against size, means over seeds")
    save(figure, out)


def two_sizes(size: str = COUNTED) -> "tuple[Figure, dict[str, Axes]]":
    """A figure, and its axes by size: parameters to the left, bytes on disk to the right."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.5), layout="constrained")
    sides = dict(zip(("parameters", "bytes"), figure.subplots(1, 2, sharey=True), strict=True))
    sides["parameters"].set_xlabel(size)
    sides["bytes"].set_xlabel("bytes on disk, indices counted")
    for axes in sides.values():
        axes.set_xscale("log")
        axes.grid(alpha=0.3, which="both")
    return figure, sides


def add_points(axes: "Axes", published: Mapping[str, Sequence[tuple[float, float]]], remark: str = "") -> None:
    """The paper's."""
    for name, those in published.items():
        axes.plot(*zip(*those, strict=True), marker="x", linestyle="none", label=name + remark)


def save(figure: "Figure", out: Path) -> None:
    """The same figure gives the same file."""
    import matplotlib as mpl

    out.parent.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context({"svg.hashsalt": "antembed"}):
        figure.savefig(out, metadata={"Date": None} if out.suffix in (".svg", ".pdf") else None)


if __name__ == "__main__":
    draw(read_records(sys.argv[1]), Path(sys.argv[2]))


if TYPE_CHECKING:  # matplotlib is an extra
    from matplotlib.figure import Figure


def draw_objective(ranked: Records, out: Path, title: str) -> None:
    """Over all anchors if users and items were given as many, else over both, in three dimensions.

    Each of `ranked` has objective, anchors (in use, by table), asked (the numbers asked for, None if unknown) and auto.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 5), layout="constrained")
    if any(row["asked"] is not None and len(set(row["asked"])) > 1 for row in ranked):
        draw_3d(figure, ranked)
    else:
        draw_2d(figure, ranked)
    figure.suptitle(title)
    save(figure, out)


def in_use(row: JSON) -> int:
    return sum(row["anchors"].values())


def draw_2d(figure: "Figure", ranked: Records) -> None:
    axes = figure.subplots()
    for auto, look in ((False, {"marker": "o"}), (True, {"marker": "*", "s": 150, "color": "red"})):
        found = [(in_use(row), row["objective"]) for row in ranked if row["auto"] == auto]
        if found:
            axes.scatter(*zip(*found, strict=True), label="nbANT" if auto else "anchors given", **look)
    lowest: dict[int, float] = {}
    for row in ranked:
        if not row["auto"]:
            K = in_use(row)
            lowest[K] = min(row["objective"], lowest.get(K, row["objective"]))
    axes.plot(sorted(lowest), [lowest[K] for K in sorted(lowest)], alpha=0.5)
    reached = [row["objective"] for row in ranked if row["auto"]]
    if reached:
        axes.axhline(min(reached), color="red", alpha=0.4, linestyle="--")
    tables = ranked[0]["anchors"]
    axes.set_xlabel("anchors in use" + (f", {' and '.join(tables)}" if len(tables) > 1 else ""))
    axes.set_ylabel("objective (eq. 5)")
    axes.grid(alpha=0.3)
    axes.legend()


def draw_3d(figure: "Figure", ranked: Records) -> None:
    axes = figure.add_subplot(projection="3d")
    for auto, look in ((False, {"marker": "o"}), (True, {"marker": "*", "s": 150, "color": "red"})):
        found = [(row["anchors"]["users"], row["anchors"]["items"], row["objective"]) for row in ranked if row["auto"] == auto]
        if found:
            axes.scatter(*zip(*found, strict=True), label="nbANT" if auto else "anchors given", **look)
    reached = [row["objective"] for row in ranked if row["auto"]]
    if reached:  # the paper's plane: how low nbANT got, to be held against every point of the grid
        import numpy as np

        corners = (
            [min(row["anchors"][side] for row in ranked), max(row["anchors"][side] for row in ranked)]
            for side in ("users", "items")
        )
        x, y = np.meshgrid(*corners)
        axes.plot_surface(x, y, np.full(x.shape, min(reached)), color="red", alpha=0.2)
    axes.set_xlabel("user anchors in use")
    axes.set_ylabel("item anchors in use")
    axes.set_zlabel("objective (eq. 5)")
    axes.legend()
