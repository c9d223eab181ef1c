"""How well the number of anchors is found: on planted data, and against a sweep over fixed numbers."""

from statistics import mean, median

from antembed.files import JSON
from antembed.layer.growth import nbant_objective
from antembed.report.page import markdown
from antembed.sweep.records import Records


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


def objective(records: Records, anchor_penalty: float, l0_penalty: float) -> str:
    """Eq. 5 on validation data by the number of anchors asked for, lowest first; means over seeds."""
    kinds: dict[str, Records] = {}
    for record in records:
        asked = record["config"]["anchors"]["anchors"]
        tables = len(record["anchors"])  # one number is for all of them
        name = asked if isinstance(asked, str) else "/".join(map(str, asked * tables if len(asked) == 1 else asked))
        kinds.setdefault(name, []).append(record)

    def eq5(row: JSON) -> float:
        nnz, anchors = sum(row["nnz"].values()), sum(row["anchors"].values())
        return nbant_objective(row["validation"]["loss"], nnz, anchors, anchor_penalty, l0_penalty)

    rows = [
        [
            "nbANT" if asked == "auto" else asked,
            f"{mean(eq5(run) for run in runs):.4f}",
            f"{mean(run['validation']['mse'] for run in runs):.4f}",
            f"{mean(sum(run['nnz'].values()) for run in runs):,.0f}",
            ", ".join(sorted({"/".join(map(str, run["anchors"].values())) for run in runs})),
            f"{mean(run['seconds'] for run in runs):.1f} s",
            str(len(runs)),
        ]
        for asked, runs in sorted(kinds.items(), key=lambda pair: mean(eq5(run) for run in pair[1]))
    ]
    return markdown(["anchors asked for", "eq. 5", "validation MSE", "non-zeros", "anchors in use", "training", "seeds"], rows)
