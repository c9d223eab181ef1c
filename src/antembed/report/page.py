"""Finished runs side by side: their metrics, their sizes, and the options in which they differ."""

import html
from collections.abc import Sequence
from pathlib import Path

from antembed.files import JSON
from antembed.train.options import to_options
from antembed.train.run_folder import RunFolder


def compare_runs(runs: Sequence[str | Path]) -> list[JSON]:
    """One row a run, in the order given; `options` are those that are not the same for all."""
    folders = [RunFolder(run) for run in runs]
    options = [to_options(folder.open()[0], all=True) for folder in folders]
    names = list(dict.fromkeys(name for each in options for name in each))
    different = [name for name in names if len({str(each.get(name)) for each in options}) > 1]
    return [
        {"run": str(folder.path), **folder.result(), "options": {name: own[name] for name in different if name in own}}
        for folder, own in zip(folders, options, strict=True)
    ]


def cell(text: str) -> str:
    """Names of files and options as they are: nothing in them is Markdown or HTML."""
    return html.escape(" ".join(text.split()), quote=False).replace("|", "\\|")


def markdown(headings: list[str], rows: list[list[str]]) -> str:
    """A Markdown table, the first column to the left, the others to the right."""
    rule = ["---", *["---:"] * (len(headings) - 1)]
    return "\n".join("| " + " | ".join(row) + " |" for row in [headings, rule, *rows])


def report_table(rows: Sequence[JSON]) -> str:
    """The rows as a Markdown table."""
    lines = []
    for row in rows:
        metric, options = row["metric"], row["options"]
        lines.append(
            [
                cell(row["run"]),
                metric,
                *("–" if not row[part] else f"{row[part][metric]:.4f}" for part in ("validation", "test")),
                f"{row['parameters']:,}",
                f"{row['bytes']:,}",
                f"{row['seconds']:.1f}",
                cell(", ".join(f"{name}={value}" for name, value in options.items())) or "–",
            ]
        )
    return markdown(["run", "metric", "validation", "test", "parameters", "bytes", "seconds", "options"], lines)
