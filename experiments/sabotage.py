"""Makes the program worse on purpose, in a copy, and says which check notices it.

    python -m experiments sabotage [--only TEXT]

A sabotage is a substitution in the source. Checks are tried in turn: quality floors, quick claims, and golden runs last,
which are exact on one machine only. One that goes unnoticed fails the command: it needs a floor, or a claim.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
COPIED = ("src", "tests", "experiments", "examples", "recipes", "results", "docs", "README.md", "pyproject.toml")


@dataclass(frozen=True)
class Sabotage:
    name: str
    changes: tuple[tuple[str, str], ...]  # (text that stands once in src/, what is written instead)
    checks: tuple[str, ...]  # "floors WORDS" and "golden WORDS" are for pytest -k; "claims NAME": the quick claim


SABOTAGES = (
    Sabotage(
        "n-gram search set back: repeated n-grams are never counted",
        (('("repeats", 1)', '("repeats", 0)'), ('"orders": 1, "repeats": True', '"orders": 1, "repeats": False')),
        ("floors counts_of_a_phrase", "claims AG-News, text"),
    ),
    Sabotage(
        "n-grams: the first letters of long words do not count",
        (('option(5, "Longer words', 'option(0, "Longer words'), ("prefix: int = 5", "prefix: int = 0")),
        ("floors stems", "claims AG-News, n-grams in 10KB"),
    ),
    Sabotage(
        "ratings: the ridges that were found are doubled",
        (("own.ridge, own.ridge_per_rating, bias_ridge", "2 * own.ridge, 2 * own.ridge_per_rating, bias_ridge"),),
        ("floors ratings", "claims MovieLens 1M, ratings"),
    ),
    Sabotage(
        "ratings: the tolerance is 3 %, not 1 %",
        (('TOLERANCE = "1%"', 'TOLERANCE = "3%"'),),
        ("floors ratings", "claims MovieLens 1M, ratings"),
    ),
    Sabotage(
        "ratings: the penalty of weights does not rise slowly",
        (("RAMP = 0.6", "RAMP = 1e-9"),),
        ("floors ratings", "claims MovieLens 1M, 90/10", "golden descent"),
    ),
    Sabotage(
        "events: pairs without an event count a tenth",
        (("min(UNOBSERVED * events", "min(0.1 * UNOBSERVED * events"),),
        ("floors events", "claims Last.fm"),
    ),
    Sabotage(
        "compress: a bit is ten times as dear",
        (("RATE = 0.44", "RATE = 4.4"),),
        ("floors vectors", "claims GloVe, 16x"),
    ),
    Sabotage(
        "compress: sparse codes fitted in two rounds, not fifteen",
        (("((20_000, 10), (100_000, 5))", "((20_000, 1), (100_000, 1))"),),
        ("floors vectors",),
    ),
    Sabotage(
        "numbers of six bits have five",
        (('"int6": 31', '"int6": 15'),),
        ("floors ratings", "claims MovieLens 1M, ratings", "golden automatic"),
    ),
    Sabotage(
        "recode: one pass over a row, not eight",
        (("PASSES = 8  # over a row, at", "PASSES = 1  # over a row, at"),),
        ("claims MovieLens 1M, recode", "golden recode"),
    ),
    Sabotage(
        "text networks: no word is dropped while sparsifying",
        (('"word_dropout": 0.5', '"word_dropout": 0.0'),),
        ("claims AG-News, mean", "golden classify"),
    ),
    Sabotage(
        "language: short corpora do not start from smoothed counts",
        (('"count_smoothing": 1.0', '"count_smoothing": 1e9'),),
        ("floors by_their_counts", "floors chain"),
    ),
)


def apply(sabotage: Sabotage, source: Path) -> None:
    files = {file: file.read_text() for file in source.rglob("*.py")}
    for old, new in sabotage.changes:
        found = [file for file, text in files.items() if old in text]
        if len(found) != 1 or files[found[0]].count(old) != 1:
            raise LookupError(f"{sabotage.name}: {old!r} stands in {len(found)} files, and should stand once")
        files[found[0]] = files[found[0]].replace(old, new)
        found[0].write_text(files[found[0]])


def notices(check: str, tree: Path) -> bool:
    """Whether this check fails there."""
    kind, words = check.split(" ", 1)
    arguments = {
        "floors": ["-m", "pytest", "-q", "-x", "tests/test_floors.py", "-k", words],
        "golden": ["-m", "pytest", "-q", "-x", "tests/golden", "-k", words],
        "claims": ["-m", "experiments", "claims", "--quick", "--only", words, "--data", str(ROOT / "../shared/data")],
    }[kind]
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=tree,
        env=os.environ | {"PYTHONPATH": f"{tree / 'src'}:{tree}"},
        capture_output=True,
        text=True,
    )
    if done.returncode not in (0, 1) or (" claims checked" in done.stdout and ", 0 not checked" not in done.stdout):
        raise RuntimeError(f"{check}: {done.stdout[-1000:]}{done.stderr[-1000:]}")
    return done.returncode == 1


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="sabotages whose names contain this")
    wanted = parser.parse_args(words).only
    unnoticed = 0
    for sabotage in [each for each in SABOTAGES if wanted in each.name]:
        started = time.monotonic()
        with tempfile.TemporaryDirectory() as name:
            for part in COPIED:
                copy = shutil.copytree if (ROOT / part).is_dir() else shutil.copy
                copy(ROOT / part, Path(name) / part)
            apply(sabotage, Path(name) / "src")
            by = next((check for check in sabotage.checks if notices(check, Path(name))), None)
        unnoticed += by is None
        print(f"{sabotage.name}: {by or 'UNNOTICED'} ({time.monotonic() - started:.0f} s)", flush=True)
    return int(unnoticed > 0)


if __name__ == "__main__":
    raise SystemExit(main())
