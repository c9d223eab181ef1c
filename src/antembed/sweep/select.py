"""Which of several finished runs to take, by eq. 5 of the paper (its Appendix L): λ1 for an anchor, λ2 for a non-zero of T."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from antembed.files import JSON
from antembed.layer.growth import nbant_objective
from antembed.sweep.front import evaluated_on
from antembed.sweep.records import read_records
from antembed.train.registry import TASKS
from antembed.train.run_folder import RunFolder
from antembed.train.task import Task

NEEDED = {"anchors", "metric", "nnz", "validation", "test", "parameters", "config"}


def gather(sources: Sequence[str | Path]) -> list[JSON]:
    """The results of run folders and of files of records, and where each is from."""
    rows = []
    for source in map(Path, sources):
        rows += of_folder(source) if source.is_dir() else of_records(source)
    data = {row["sha256"]: row["source"] for row in rows if row.get("sha256")}
    if len(data) > 1:
        raise ValueError(
            f"runs on {len(data)} different sets of data, as {' and '.join([*data.values()][:2])}; select among one"
        )
    return rows


def of_folder(folder: Path) -> list[JSON]:
    run = RunFolder(folder)
    whole = run.raw()
    return [run.result() | {"config": whole["config"], "sha256": whole["data"].get("sha256"), "source": str(folder)}]


def of_records(file: Path) -> list[JSON]:
    if not file.is_file():
        raise ValueError(f"{file} is neither a run folder nor a file of records")
    rows = []
    for number, row in enumerate(read_records(file), 1):
        if "failed" in row:
            continue
        if missing := NEEDED - row.keys():
            raise ValueError(f"{file}: line {number} is no record of a run: it has no {min(missing)}")
        rows.append(row | {"source": f"{file}:{number}"})
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
    """A run with one table says its number alone."""
    return dict(count) if isinstance(count, Mapping) else {"anchors": count}


def rank(rows: Sequence[JSON], anchor_penalty: float, l0_penalty: float | None = None) -> tuple[str, list[JSON]]:
    """By eq. 5, best first; → the part of the data it was evaluated on, and the ranking. No λ2: that of each run itself.

    Full tables have no T and are left out. The loss is the mean loss on validation data if every run has them, else on test
    data.
    """
    rows = [row for row in rows if any(by_table(row["anchors"]).values()) or not any(by_table(row["nnz"]).values())]
    if not rows:
        raise ValueError("0 runs with anchors to select among; give run folders or files of records")
    task, part = task_of(rows), evaluated_on(rows)
    error = task.metric.name
    ranked = []
    for row in rows:
        own = own_penalty(row) if l0_penalty is None else l0_penalty
        nnz, anchors = sum(by_table(row["nnz"]).values()), by_table(row["anchors"])
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
                "asked": asked(row),
                "auto": row["config"].get("anchors", {}).get("anchors") == "auto",
                "source": row["source"],
                "settings": row.get("settings"),
                "seed": row.get("seed"),
            }
        )
    return part, sorted(ranked, key=lambda row: row["objective"])


def asked(row: JSON) -> tuple[int, ...] | None:
    """The numbers of anchors that were asked for."""
    anchors = row["config"].get("anchors", {}).get("anchors")
    return None if anchors is None or isinstance(anchors, str) else tuple(anchors)


def own_penalty(row: JSON) -> float:
    """λ2 as the run had it; coordinate descent counts it in the summed loss."""
    solver = row["config"]["solver"]
    if solver["name"] != "stochastic":
        raise ValueError(f"{row['source']} does not say its λ2 for a mean loss; give one for all with --l0-penalty")
    growth = solver["growth"]["l0_penalty"]
    found = solver["sparsity"]["l1_penalty"] if growth is None or row["config"]["anchors"]["anchors"] != "auto" else growth
    return float(found)
