"""Tables on labelled text: every embedding at two sizes, and what knowledge of the words brings."""

from statistics import mean
from typing import Any

from antembed.reporting.markdown import Records, markdown

LIMITS = (40, 100)  # times fewer parameters than the full table
DIMENSIONS = 256
NAMES = {
    "anchor": "anchored (ANT)",
    "full": "full table",
    "low-rank": "dense rank K, T free",
    "low-rank-nonnegative": "dense rank K, T ≥ 0",
    "mixture": "linear mixture of two",
    "softmax-mixture": "softmax mixture of two",
    "frequency": "frequent words",
    "tf-idf": "words by tf-idf",
    "hashed": "hashing",
    "group-lasso": "group lasso",
    "vvd": "VVD",
    "sparse-vd": "SparseVD",
    "sparse-vd-words": "SparseVD-Voc",
    "sparse": "ℓ1 on E, prox",
    "slimming": "slimming of E",
    "sparse-code": "sparse code",
}


def best_of(trials: Records, times: int) -> dict[str, Any] | None:
    """The trial that is best on validation, of those with so many times fewer parameters than the full table (or full)."""
    fitting = [row for row in trials if row["embedding"] == "full" or row["parameters"] * times <= DIMENSIONS * row["words"]]
    return max(fitting, key=lambda row: row["validation"]["accuracy"], default=None)


def accuracy(runs: Records) -> str:
    """Mean of the test in per cent, and how far the seeds lie apart."""
    found = [100 * run["test"]["accuracy"] for run in runs]
    return f"{mean(found):.2f}" + (f" ± {(max(found) - min(found)) / 2:.2f}" if len(found) > 1 else "")


def text(records: Records, model: str) -> str:
    """For each size and method the trial with the best validation accuracy; test accuracy over its seeds, best first."""
    rows = []
    for times in LIMITS:
        found = []
        for name, title in NAMES.items():
            mine = [row for row in records if row["model"] == model and row["embedding"] == name]
            trials = [row for row in mine if row["seed"] == 0]
            if not trials:
                continue
            best = best_of(trials, times)
            if best is None:
                found.append((0.0, [f"≥ {times} ×", title, "–", "–", "no trial fits", "–", "–", str(len(trials))]))
                continue
            runs = [row for row in mine if row["trial"] == best["trial"]]
            size = mean(run["parameters"] for run in runs)
            found.append(
                (
                    mean(run["test"]["accuracy"] for run in runs),
                    [
                        "all" if name == "full" else f"≥ {times} ×",
                        title,
                        str(best["anchors"] or "–"),
                        accuracy(runs),
                        f"{size / 1000:,.1f}K",
                        f"{DIMENSIONS * best['words'] / size:.0f} ×",
                        f"{mean(run['smaller_files']['int8 packed']['bytes'] for run in runs) / 1000:,.0f} kB",
                        f"{len(trials)}, {len(runs)}",
                    ],
                )
            )
        rows += [row for _, row in sorted(found, key=lambda pair: -pair[0])]
    headings = ["fewer", "table", "anchors", "test accuracy, %", "parameters", "times fewer", "int8, packed", "trials, seeds"]
    return markdown(headings, rows)
