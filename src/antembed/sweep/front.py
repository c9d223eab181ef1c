"""Which of many runs to take: the front of error and size, or the lowest eq. 5 of the paper."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean

from antembed.files import JSON
from antembed.layer.growth_rule import nbant_objective
from antembed.sweep.records import Records, by_setting, read_records
from antembed.train.registry import TASKS
from antembed.train.run_folder import RunFolder
from antembed.train.task import Task

NEEDED = {"anchors", "metric", "nnz", "validation", "test", "parameters", "config"}  # of a record, to rank it


def pareto(points: Sequence[Sequence[float]]) -> list[int]:
    """The positions of the points that no other point beats, in the order of their first number.

    A point is beaten by one that is nowhere larger and somewhere smaller; one that is not finite is on no front."""
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
    about = {"metric": error, "error": part, "settings": len(found), "failed": len(rows) - len(good)}
    return {**about, "front": best, "all": found}


# Eq. 5 (Appendix L of the paper): λ1 for an anchor, λ2 for a non-zero of T.


def gather(sources: Sequence[str | Path]) -> list[JSON]:
    """The results of run folders and of files of records, and where each is from."""
    rows = [row for source in map(Path, sources) for row in (of_folder(source) if source.is_dir() else of_records(source))]
    data = {row["sha256"]: row["source"] for row in rows if row.get("sha256")}
    if len(data) > 1:
        raise ValueError(f"runs on {len(data)} different sets of data, as {' and '.join([*data.values()][:2])}; choose one")
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
    data."""
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
