"""Eq. 5 against the number of anchors, as a picture, with the end point of runs that found their number themselves."""

from pathlib import Path
from typing import TYPE_CHECKING

from antembed.files import JSON
from antembed.sweep.front import save
from antembed.sweep.records import Records

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
