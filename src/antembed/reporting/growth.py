"""How well the number of anchors is found: planted data, and MovieLens 1M against a sweep of fixed numbers."""

from statistics import median
from typing import Any

from antembed.growth.objective import nbant_objective
from antembed.reporting.markdown import Records, markdown


def planted(records: Records) -> str:
    """By policy and planted number: cases that end there, within one, and within 2 % of the best of a sweep over all K."""
    cases: dict[tuple[str, int], Records] = {}
    for record in records:
        cases.setdefault((record["policy"], record["planted"]), []).append(record)
    rows = []
    for (policy, wanted), runs in sorted(cases.items()):
        over = [run["over_sweep"] for run in runs]
        rows.append(
            [
                policy,
                str(wanted),
                str(len(runs)),
                str(sum(run["off"] == 0 for run in runs)),
                str(sum(run["off"] <= 1 for run in runs)),
                str(sum(each <= 0.02 for each in over)),
                f"{median(over):+.1%}",
                f"{max(over):+.1%}",
            ]
        )
    headings = ["policy", "planted", "cases", "exact", "within ±1", "objective within 2 %", "median over the sweep", "worst"]
    return markdown(headings, rows)


def objective_of(record: dict[str, Any]) -> float:
    """Eq. 5 on validation data, at the run's own λ1 and λ2."""
    prices = record["config"]["lambda1"], record["config"]["l1"]
    # With nothing in use there is still one anchor of each table to be paid for.
    K = sum(max(used, 1) for used in record["anchors"].values())
    return nbant_objective(record["validation"]["mse"] / 2, sum(record["nnz"].values()), K, *prices)


def anchors(records: Records) -> str:
    """Fixed numbers of anchors and the one found, by their objective."""
    rows = [
        [
            "auto" if record["config"]["anchors"] == "auto" else str(record["config"]["anchors"][0]),
            "/".join(str(used) for used in record["anchors"].values()),
            f"{objective_of(record):.4f}",
            f"{record['validation']['mse']:.4f}",
            f"{sum(record['nnz'].values()) / 1000:.1f}K",
            f"{record['seconds']:.0f} s",
        ]
        for record in sorted(records, key=objective_of)
    ]
    return markdown(["anchors", "in use", "eq. 5", "validation MSE", "nnz", "training"], rows)
