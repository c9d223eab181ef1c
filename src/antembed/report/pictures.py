"""Pictures of many runs: error against size, and eq. 5 of the paper against the number of anchors (extra: plot)."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from antembed.files import JSON
from antembed.sweep.front import pareto
from antembed.sweep.records import Records

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def draw_settings(
    settings: Records, out: Path, *, error: str = "MSE", published: Mapping[str, Sequence[tuple[float, float]]]
) -> None:
    """A sweep: every setting (`mean_by_setting`), and a line through those that no other beats in error and this size.

    `error`: what is measured; `published`: the paper's points.
    """
    figure, axes_of = two_sizes("parameters")
    for size, axes in axes_of.items():
        found = [(setting[size], setting["error"]) for setting in settings]
        sizes, errors = zip(*found, strict=True)
        axes.scatter(sizes, errors, s=14, alpha=0.5, label="settings tried")
        best = [found[n] for n in pareto(found)]
        axes.plot(*zip(*best, strict=True), marker="o", color="black", drawstyle="steps-post", label="not beaten in both")
    left = axes_of["parameters"]
    for name, points in published.items():
        left.plot(*zip(*points, strict=True), marker="x", linestyle="none", label=f"{name} (test)")
    left.set_ylabel(error)
    left.legend()
    figure.suptitle("error against size, means over seeds")
    save(figure, out)


def two_sizes(parameters: str) -> "tuple[Figure, dict[str, Axes]]":
    """A figure, and its axes by size: parameters to the left, bytes on disk to the right."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.5), layout="constrained")
    axes_of = dict(zip(("parameters", "bytes"), figure.subplots(1, 2, sharey=True), strict=True))
    for axes, label in zip(axes_of.values(), (parameters, "bytes on disk, indices counted"), strict=True):
        axes.set_xlabel(label)
        axes.set_xscale("log")
        axes.grid(alpha=0.3, which="both")
    return figure, axes_of


def save(figure: "Figure", out: Path) -> None:
    """The same figure gives the same file."""
    import matplotlib as mpl

    out.parent.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context({"svg.hashsalt": "antembed"}):
        figure.savefig(out, metadata={"Date": None} if out.suffix in (".svg", ".pdf") else None)


def draw_objective(ranked: Records, out: Path, title: str) -> None:
    """Eq. 5 over all anchors if users and items were given as many, else over both, in three dimensions; with a line or plane
    at the lowest value of runs that found their number of anchors themselves. `ranked`: see `rank`."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 5), layout="constrained")
    deep = any(row["asked"] is not None and len(set(row["asked"])) > 1 for row in ranked)
    axes = figure.add_subplot(projection="3d") if deep else figure.subplots()

    def position(row: JSON) -> tuple[float, ...]:
        return tuple(row["anchors"][name] for name in ("users", "items")) if deep else (sum(row["anchors"].values()),)

    for auto, look in ((False, {"marker": "o"}), (True, {"marker": "*", "s": 150, "color": "red"})):
        found = [(*position(row), row["objective"]) for row in ranked if row["auto"] == auto]
        if found:
            axes.scatter(*zip(*found, strict=True), label="nbANT" if auto else "anchors given", **look)
    reached = min((row["objective"] for row in ranked if row["auto"]), default=None)
    if deep:
        label_3d(axes, [position(row) for row in ranked], reached)
    else:
        label_2d(
            axes, [(*position(row), row["objective"]) for row in ranked if not row["auto"]], reached, list(ranked[0]["anchors"])
        )
    axes.legend()
    figure.suptitle(title)
    save(figure, out)


def label_2d(axes: "Axes", given: Sequence[tuple[float, ...]], reached: float | None, tables: list[str]) -> None:
    lowest = {K: min(objective for k, objective in given if k == K) for K, _ in given}
    axes.plot(sorted(lowest), [lowest[K] for K in sorted(lowest)], alpha=0.5)
    if reached is not None:
        axes.axhline(reached, color="red", alpha=0.4, linestyle="--")
    axes.set_xlabel("anchors in use" + (f", {' and '.join(tables)}" if len(tables) > 1 else ""))
    axes.set_ylabel("objective (eq. 5)")
    axes.grid(alpha=0.3)


def label_3d(axes: Any, positions: Sequence[tuple[float, ...]], reached: float | None) -> None:
    if reached is not None:  # the paper's plane: how low nbANT got, to be compared with every point of the grid
        import numpy as np

        x, y = np.meshgrid(*([min(numbers), max(numbers)] for numbers in zip(*positions, strict=True)))
        axes.plot_surface(x, y, np.full(x.shape, reached), color="red", alpha=0.2)
    axes.set_xlabel("user anchors in use")
    axes.set_ylabel("item anchors in use")
    axes.set_zlabel("objective (eq. 5)")
