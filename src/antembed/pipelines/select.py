"""Which of several finished runs to take, by eq. 5 of the paper (its Appendix L): λ1 prices an anchor, λ2 a non-zero of T."""

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from antembed.growth.objective import nbant_objective
from antembed.pipelines.space import value_of
from antembed.pipelines.task import TASKS, Row, Task
from antembed.reporting import read_records
from antembed.reporting.front import judged_on
from antembed.reporting.markdown import setting
from antembed.training import RunFolder

NEEDED = {"anchors", "metric", "nnz", "validation", "test", "parameters"}
BY_METRIC = {task.metric: task for task in TASKS.values()}


def gather(sources: Sequence[str | Path]) -> list[Row]:
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


def of_folder(folder: Path) -> list[Row]:
    run = RunFolder(folder)
    config = run.config()
    refuse_tiny(config, folder)
    run.must_be_finished()
    if not run.result_file.is_file():
        raise ValueError(f"{folder} has no result.json; judge it by: antembed train … --resume --out {folder}")
    result = json.loads(run.result_file.read_text())
    return [result | {"config": config, "sha256": config.get("sha256"), "source": str(folder)}]


def of_records(file: Path) -> list[Row]:
    if not file.is_file():
        raise ValueError(f"{file} is neither a run folder nor a file of records")
    rows = []
    for number, row in enumerate(read_records(file), 1):
        if "failed" in row:
            continue
        if missing := NEEDED - row.keys():
            raise ValueError(f"{file}: line {number} is no record of a run: it has no {min(missing)}")
        refuse_tiny(row, f"{file}:{number}")
        rows.append(row | {"source": f"{file}:{number}"})
    return rows


def refuse_tiny(row: Row, source: str | Path) -> None:
    if row.get("model") == "tiny":
        raise ValueError(f"{source} is a tiny classifier, of which eq. 5 knows nothing: no T, no loss; give runs of cnn or bag")


def task_of(rows: Sequence[Row]) -> Task:
    """The one task of all these runs."""
    found = {row["metric"]: row["source"] for row in rows}
    for metric, source in found.items():
        if metric not in BY_METRIC:
            raise ValueError(f"{source} is judged by {metric}; eq. 5 is worked out for runs judged by {' or '.join(BY_METRIC)}")
    if len(found) > 1:
        told = " and ".join(f"{source} by {metric}" for metric, source in found.items())
        raise ValueError(f"runs of {len(found)} tasks, judged otherwise: {told}; select among one")
    return BY_METRIC[next(iter(found))]


def by_table(count: Any) -> dict[str, int]:
    """Ratings have two tables, text has one."""
    return count if isinstance(count, dict) else {"words": count}


def rank(rows: Sequence[Row], lambda1: float, lambda2: float | None = None) -> tuple[str, list[Row]]:
    """By eq. 5, best first; → what the error was measured on, and the ranking. No λ2: the price each run was trained with.

    Full tables have no T and are left out. The mean loss is ½·MSE or cross-entropy, on validation data if every run has them,
    else on test data.
    """
    rows = [row for row in rows if any(by_table(row["anchors"]).values()) or not any(by_table(row["nnz"]).values())]
    if not rows:
        raise ValueError("0 runs with anchors to select among; give run folders or files of records")
    task, part = task_of(rows), judged_on(rows)
    ranked = []
    for row in rows:
        price = own_price(row) if lambda2 is None else lambda2
        nnz, anchors = sum(by_table(row["nnz"]).values()), by_table(row["anchors"])
        ranked.append(
            {
                "objective": nbant_objective(task.loss(row[part]), nnz, sum(anchors.values()), lambda1, price),
                task.error: row[part][task.error],
                "nnz": nnz,
                **anchors,
                "parameters": row["parameters"],
                "lambda2": price,
                "asked": asked(row),
                "auto": asked_for(row, "anchors") == "auto",
                "source": row["source"],
                "settings": row.get("settings"),
                "seed": row.get("seed"),
            }
        )
    return part, sorted(ranked, key=lambda row: row["objective"])


def asked_for(row: Row, option: str) -> Any:
    """An option of the run: from its settings, or from the command that made it; None if neither says."""
    if "config" in row:
        return row["config"].get(option)
    words = shlex.split(setting(row.get("command", "")))
    name = f"--{option.replace('_', '-')}"
    if name not in words[:-1]:
        return None
    text = words[words.index(name) + 1]
    return text if text == "auto" else value_of(option, text, BY_METRIC[row["metric"]])


def asked(row: Row) -> tuple[int, ...] | None:
    """The numbers of anchors that were asked for: of users and items, or of words."""
    anchors = asked_for(row, "anchors")
    if anchors is None or isinstance(anchors, str):
        return None
    return (anchors,) if isinstance(anchors, int) else tuple(anchors)


def own_price(row: Row) -> float:
    """λ2 as the run had it; coordinate descent prices a non-zero in the summed loss."""
    price = asked_for(row, "l1")
    if price is None or asked_for(row, "solver") == "cd":
        raise ValueError(f"{row['source']} does not say its λ2; give one for all with --lambda2")
    return price
