"""README tables from records: python -m antembed.reporting.readme README.md results."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from antembed.reporting.records import read_records

Records = list[dict[str, Any]]


def markdown(headings: list[str], rows: list[list[str]]) -> str:
    """A Markdown table, the first column to the left, the others to the right."""
    rule = ["---", *["---:"] * (len(headings) - 1)]
    return "\n".join("| " + " | ".join(row) + " |" for row in [headings, rule, *rows])


def recommend(records: Records) -> str:
    """One row a run, smallest error first."""
    rows = [
        [
            r["embedding"],
            "/".join(str(k) for k in r["anchors"].values()) if any(r["anchors"].values()) else "–",
            f"{r['test']['mse']:.3f}",
            f"{r['parameters'] / 1000:.1f}K",
            f"{r['bytes'] / 1000:.0f} kB",
            f"{r['seconds'] / 60:.0f} min",
            f"`{r['command']}`",
        ]
        for r in sorted(records, key=lambda r: r["test"]["mse"])
    ]
    return markdown(["tables", "anchors in use", "test MSE", "parameters", "files", "training", "command"], rows)


def bench(records: Records) -> str:
    """The newest record of each benchmark, one row a ratio."""
    newest = {r["benchmark"]: r for r in records}
    rows = [[name, r["setting"], peer, f"{ratio:g} ×"] for name, r in newest.items() for peer, ratio in r["ratios"].items()]
    return markdown(["what", "setting", "peer", "peer ÷ antembed"], rows)


TABLES: dict[str, Callable[[Records], str]] = {"recommend": recommend, "bench": bench}


def fill(text: str, results: Path) -> str:
    """Put each table between its markers, <!-- results: NAME --> and <!-- end -->."""
    for name, table in TABLES.items():
        before, start, rest = text.partition(f"<!-- results: {name} -->\n")
        _, end, after = rest.partition("<!-- end -->")
        if not (start and end):
            raise ValueError(f"no place for the table {name!r}: the text lacks <!-- results: {name} --> … <!-- end -->")
        text = f"{before}{start}{table(read_records(results / f'{name}.jsonl'))}\n{end}{after}"
    return text


if __name__ == "__main__":
    page = Path(sys.argv[1])
    page.write_text(fill(page.read_text(), Path(sys.argv[2])))
