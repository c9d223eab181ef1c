"""The cost model of shared tables, drawn from its records:
python -m experiments.figures results/distributed.jsonl docs/results/distributed-cost.svg (extra: plot)."""

import sys
from pathlib import Path

from antembed.sweep.front import save
from antembed.sweep.records import Records, read_records

STYLES = {"anchored": "-", "full": "--"}
LINKS = (1, 10, 25, 100)  # Gbit/s


def draw(records: Records, out: Path) -> None:
    """What a process sends a step, how long that takes by the speed of the link, and what it holds."""
    from matplotlib.figure import Figure

    rows = list({(row["V"], row["zipf"]): row for row in records if row.get("benchmark") == "cost model"}.values())
    first = rows[0]
    names = {"anchored": f"T, K = {first['K']}", "full": f"full, d = {first['d']}"}
    figure = Figure(figsize=(14, 4.5), layout="constrained")
    sent, time, memory = figure.subplots(1, 3)
    for color, zipf in enumerate(sorted({row["zipf"] for row in rows})):
        own = sorted((row for row in rows if row["zipf"] == zipf), key=lambda row: row["V"])
        largest = own[-1]
        for kind, style in STYLES.items():
            look = {"linestyle": style, "marker": "o", "color": f"C{color}", "label": f"{names[kind]}; Zipf {zipf}"}
            sent.plot([row["V"] for row in own], [row["MB_sent"][kind] for row in own], **look)
            time.plot(LINKS, [8 * largest["MB_sent"][kind] / link for link in LINKS], **look)
    own = sorted((row for row in rows if row["zipf"] == rows[0]["zipf"]), key=lambda row: row["V"])
    for kind, style in STYLES.items():
        held = [row["GB_per_process"][kind] for row in own]
        memory.plot([row["V"] for row in own], held, linestyle=style, marker="o", color="black", label=names[kind])
    for row in own:
        at = row["V"], row["GB_per_process"]["full"]
        memory.annotate(f"{row['processes']} processes", at, xytext=(8, -12), textcoords="offset points")
    for axes, below, beside in (
        (sent, "rows", "MB that a process sends a step"),
        (time, f"link, Gbit/s ({largest['V']:.0e} rows, {largest['processes']} processes)", "ms a step for that"),
        (memory, "rows", "GB of a process, with two moments"),
    ):
        axes.set(xscale="log", yscale="log", xlabel=below, ylabel=beside)
        axes.grid(alpha=0.3)
    memory.margins(x=0.3)
    figure.legend(*sent.get_legend_handles_labels(), loc="outside lower center", ncols=6)
    memory.legend(loc="lower right")
    figure.suptitle(f"{first['ids']:,} ids a process and step, by the model; nobody has run these")
    save(figure, out)


if __name__ == "__main__":
    draw(read_records(sys.argv[1]), Path(sys.argv[2]))
