"""The number of anchors over a stream, drawn: python -m experiments.online_figure results/online.jsonl docs/online.svg."""

import sys
from pathlib import Path

from antembed.files import JSON
from antembed.report.page import markdown
from antembed.sweep.front import save
from antembed.sweep.records import Records, read_records


def online(records: Records) -> str:
    """The newest run: streams and many passes, and the memory of a longer stream."""
    record = records[-1]
    whole = next(r["test"]["mse"] for name, r in record["results"].items() if name.startswith("all"))
    rows = [
        [
            name,
            f"{r['test']['mse']:.4f}",
            f"{r['test']['mse'] / whole - 1:+.1%}" if r["test"]["mse"] != whole else "–",
            f"{r['parameters'] / 1000:.1f}K",
            "/".join(str(K) for K in r["anchors"].values()),
            f"{r['seconds']:.0f} s",
        ]
        for name, r in record["results"].items()
    ]
    return markdown(["learned as", "test MSE", "worse by", "parameters", "anchors", "training"], rows)


def draw(record: JSON, out: Path) -> None:
    """Anchors of users and items, and the error of each batch before it was learned."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.5), layout="constrained")
    left, right = figure.subplots(1, 2)
    for name, path in record["paths"].items():
        seen = [row["ratings"] for row in path]
        for side in ("users", "items"):
            left.plot(seen, [row["anchors"][side] for row in path], marker=".", label=f"{side}: {name}")
        later = [row for row in path if row["mse_before"] is not None]
        right.plot([row["ratings"] for row in later], [row["mse_before"] for row in later], marker=".", label=name)
    left.set_ylabel("anchors")
    right.set_ylabel("MSE of a batch before it is learned")
    for axes in (left, right):
        axes.set_xlabel("ratings so far")
        axes.grid(alpha=0.3)
        axes.legend()
    figure.suptitle("MovieLens 1M as a stream, in the order of time")
    save(figure, out)


if __name__ == "__main__":
    draw(read_records(sys.argv[1])[-1], Path(sys.argv[2]))
