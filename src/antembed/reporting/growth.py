"""How well the number of anchors is found: planted data."""

from statistics import median

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
