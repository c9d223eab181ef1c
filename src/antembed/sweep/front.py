"""Which of many runs to take: the front of error and size, or the lowest eq. 5 of the paper; and pictures of both."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any

from antembed.files import JSON
from antembed.layer.growth import nbant_objective
from antembed.sweep.records import Records, by_setting, read_records
from antembed.train.registry import TASKS
from antembed.train.run_folder import RunFolder
from antembed.train.task import Task

if TYPE_CHECKING:  # matplotlib is an extra
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NEEDED = {"anchors", "metric", "nnz", "validation", "test", "parameters", "config"}  # of a record, to rank it


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


def front_of(rows: Sequence[JSON]) -> JSON:
    """The settings that no other beats in both error and parameters, by error; error is on validation data if there are any."""
    good = [row for row in rows if "failed" not in row]
    if not good:
        raise ValueError(f"all {len(rows)} trials failed; the first: {rows[0]['failed']}")
    part, error = evaluated_on(good), TASKS[rows[0]["task"]].metric.name
    found = mean_by_setting(good, part, error)
    best = [found[n] for n in pareto([(setting["error"], setting["parameters"]) for setting in found])]
    return {
        "metric": error,
        "error": part,
        "settings": len(found),
        "failed": len(rows) - len(good),
        "front": best,
        "all": found,
    }


# Eq. 5 (Appendix L of the paper): λ1 for an anchor, λ2 for a non-zero of T.


def gather(sources: Sequence[str | Path]) -> list[JSON]:
    """The results of run folders and of files of records, and where each is from."""
    rows = [row for source in map(Path, sources) for row in (of_folder(source) if source.is_dir() else of_records(source))]
    data = {row["sha256"]: row["source"] for row in rows if row.get("sha256")}
    if len(data) > 1:
        raise ValueError(
            f"runs on {len(data)} different sets of data, as {' and '.join([*data.values()][:2])}; select among one"
        )
    return rows


def of_folder(folder: Path) -> list[JSON]:
    run = RunFolder(folder)
    about = run.raw()
    return [run.result() | {"config": about["config"], "sha256": about["data"].get("sha256"), "source": str(folder)}]


def of_records(file: Path) -> list[JSON]:
    if not file.is_file():
        raise ValueError(f"{file} is neither a run folder nor a file of records")
    rows = [row | {"source": f"{file}:{n}"} for n, row in enumerate(read_records(file), 1) if "failed" not in row]
    for row in rows:
        if missing := NEEDED - row.keys():
            line = row["source"].rpartition(":")[2]
            raise ValueError(f"{file}: line {line} is no record of a run: it has no {min(missing)}")
    return rows


def task_of(rows: Sequence[JSON]) -> Task:
    """The one task of all these runs."""
    found = {row["config"]["task"]: row["source"] for row in rows}
    if len(found) > 1:
        listed = " and ".join(f"{source} of {task}" for task, source in found.items())
        raise ValueError(f"runs of {len(found)} tasks: {listed}; select among one")
    name = next(iter(found))
    if name not in TASKS:
        raise ValueError(f"{found[name]} is a run of {name!r}; there are: {', '.join(TASKS)}")
    return TASKS[name]


def by_table(count: Mapping[str, int] | int) -> dict[str, int]:
    """A run with one table has a number instead of a mapping."""
    return dict(count) if isinstance(count, Mapping) else {"anchors": count}


def rank(rows: Sequence[JSON], anchor_penalty: float, l0_penalty: float | None = None) -> tuple[str, list[JSON]]:
    """By eq. 5, best first; → the part of the data it was evaluated on, and the ranking. No λ2: that of each run itself.

    Full tables have no T and are left out. The loss is the mean loss on validation data if every run has them, else on test
    data.
    """
    rows = [row for row in rows if any(by_table(row["anchors"]).values()) or not any(by_table(row["nnz"]).values())]
    if not rows:
        raise ValueError("0 runs with anchors to select among; give run folders or files of records")
    error, part = task_of(rows).metric.name, evaluated_on(rows)
    ranked = []
    for row in rows:
        own = own_penalty(row) if l0_penalty is None else l0_penalty
        nnz, anchors = sum(by_table(row["nnz"]).values()), by_table(row["anchors"])
        asked = row["config"].get("anchors", {}).get("anchors")
        if "loss" not in row[part]:
            raise ValueError(f"{row['source']} has no loss on {part} data, which eq. 5 needs; evaluate the run anew")
        ranked.append(
            {
                "objective": nbant_objective(row[part]["loss"], nnz, sum(anchors.values()), anchor_penalty, own),
                error: row[part][error],
                "nnz": nnz,
                "anchors": anchors,
                "parameters": row["parameters"],
                "l0_penalty": own,
                "asked": None if asked is None or isinstance(asked, str) else tuple(asked),
                "auto": asked == "auto",
                "source": row["source"],
                "settings": row.get("settings"),
                "seed": row.get("seed"),
            }
        )
    return part, sorted(ranked, key=lambda row: row["objective"])


def own_penalty(row: JSON) -> float:
    """λ2 as the run had it; coordinate descent counts it in the summed loss."""
    solver = row["config"]["solver"]
    if solver["name"] != "stochastic":
        raise ValueError(f"{row['source']} does not say its λ2 for a mean loss; give one for all with --l0-penalty")
    growth = solver["growth"]["l0_penalty"]
    found = solver["sparsity"]["l1_penalty"] if growth is None or row["config"]["anchors"]["anchors"] != "auto" else growth
    return float(found)


# Pictures


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
