"""Runs again what README and guides claim, and fails where the program has become worse: make claims [QUICK=1].

results/claims.toml names, for each claim, the command, the record it was made from and the metrics to compare. "Then" is the
record, "now" the command's --json output at the head. A loss beyond the metric's tolerance fails; a gain is shown, so that the
record can be renewed (run the printed command with --record). Searches are not taken from the cache.

    python -m experiments claims [--quick] [--data FOLDER …] [--only TEXT] [--list]
"""

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
JSON = dict[str, Any]


@dataclass(frozen=True)
class Tolerance:
    """How much worse a metric may become: relative to what it was, or in points of a share."""

    amount: float
    relative: bool
    higher_is_better: bool

    def loss(self, then: float, now: float) -> float:
        """How much worse it is now, in the unit of `amount`; negative: better."""
        worse = (then - now) if self.higher_is_better else (now - then)
        return worse / abs(then) if self.relative else worse


TOLERANCES = {
    "mse": Tolerance(0.005, relative=True, higher_is_better=False),
    "relative_error": Tolerance(0.005, relative=True, higher_is_better=False),
    "perplexity": Tolerance(0.01, relative=True, higher_is_better=False),
    "bytes": Tolerance(0.05, relative=True, higher_is_better=False),
    "parameters": Tolerance(0.05, relative=True, higher_is_better=False),
    "times_smaller": Tolerance(0.05, relative=True, higher_is_better=True),
    "accuracy": Tolerance(0.002, relative=False, higher_is_better=True),
    "neighbours_kept": Tolerance(0.005, relative=False, higher_is_better=True),
    "ndcg@10": Tolerance(0.02, relative=True, higher_is_better=True),
}
SLOWER = 3.0  # times: another class of waiting. Shown, never a failure: the machine may be busy


@dataclass(frozen=True)
class Claim:
    name: str
    table: str  # that shows it: the marker in README or in a guide
    command: str  # of antembed; {ml-1m/ratings.dat} is a file of the data folders, {out} a file or folder to be written
    record: str  # file in results/
    match: JSON  # fields of the record by their paths; the newest that has them is meant
    metrics: dict[str, str]  # metric → its path in the command's output
    recorded: dict[str, str]  # the same in the record, where it differs
    quick: bool

    def then(self, results: Path) -> JSON:
        """The record."""
        rows = [json.loads(line) for line in (results / self.record).read_text().splitlines()]
        found = [row for row in rows if all(at(row, path) == value for path, value in self.match.items())]
        if not found:
            raise LookupError(f"{self.name}: no record in results/{self.record} has {self.match}")
        return found[-1]


def read_claims(file: Path) -> list[Claim]:
    """One claim a seed; of several seeds, the first is quick."""
    claims = []
    for row in tomllib.loads(file.read_text())["claim"]:
        seeds = row.pop("seeds", [None])
        defaults = {"recorded": {}, "match": {}, "quick": False}
        for seed in seeds:
            claim = defaults | row
            if seed is not None:
                claim["name"] += f", seed {seed}"
                claim["command"] += f" --seed {seed}"
                claim["match"] = claim["match"] | {"seed": seed}
                claim["quick"] = claim["quick"] and seed == seeds[0]
            claims.append(Claim(**claim))
    return claims


def at(row: Any, path: str) -> Any:
    """The value at a path such as config.solver.budget; None if there is none."""
    for name in path.split("."):
        row = row.get(name) if isinstance(row, dict) else None
    return row


def resolved(command: str, folders: list[Path], out: Path) -> str:
    """The command with paths in place of names; FileNotFoundError if data are not there."""

    def path(match: re.Match[str]) -> str:
        name = match[1]
        if name == "out":
            return str(out)
        for folder in folders:
            if (folder / name).exists():
                return shlex.quote(str(folder / name))
        raise FileNotFoundError(name)

    return re.sub(r"\{([^}]+)\}", path, command)


def run(command: str, cache: Path) -> tuple[JSON, float]:
    """What the command prints with --json, and its seconds."""
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "antembed", "--quiet", *shlex.split(command), "--json"],
        env=os.environ | {"ANTEMBED_CACHE": str(cache)},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise RuntimeError(f"antembed {command}: exit {done.returncode}\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1]), time.monotonic() - started


@dataclass(frozen=True)
class Comparison:
    metric: str
    then: float
    now: float

    @property
    def failed(self) -> bool:
        tolerance = TOLERANCES[self.metric]
        return not tolerance.loss(self.then, self.now) <= tolerance.amount  # NaN fails

    def __str__(self) -> str:
        tolerance = TOLERANCES[self.metric]
        loss = tolerance.loss(self.then, self.now)
        change = f"{100 * abs(loss):.2f} {'%' if tolerance.relative else 'points'} {'worse' if loss > 0 else 'better'}"
        return f"  {self.metric:16} then {self.then:<12.6g} now {self.now:<12.6g} {change}{'  LOST' if self.failed else ''}"


def compare(claim: Claim, then: JSON, now: JSON) -> Iterator[Comparison]:
    for metric, path in claim.metrics.items():
        values = [at(then, claim.recorded.get(metric, path)), at(now, path)]
        if None in values:
            raise LookupError(f"{claim.name}: {path} is missing in the {'record' if values[0] is None else 'output'}")
        yield Comparison(metric, *map(float, values))


def check(claims: list[Claim], folders: list[Path], results: Path, show: Callable[[str], None] = print) -> tuple[int, int]:
    """→ claims that were checked, and those that failed."""
    checked = failed = 0
    for claim in claims:
        then = claim.then(results)
        with tempfile.TemporaryDirectory() as folder:
            try:
                command = resolved(claim.command, folders, Path(folder) / "out")
            except FileNotFoundError as missing:
                show(f"{claim.name}: not checked, {missing} is in no data folder")
                continue
            show(f"{claim.name} ({(then.get('commit') or '?')[:7]} …)\n  antembed {claim.command}")
            checked += 1
            try:
                now, seconds = run(command, Path(folder) / "cache")
                lines = list(compare(claim, then, now))
            except (RuntimeError, LookupError, ValueError) as error:
                show(f"  FAILED: {error}")
                failed += 1
                continue
        for line in lines:
            show(str(line))
        before = then.get("wall_seconds") or then.get("seconds") or 0.0
        show(f"  {'seconds':16} then {before:<12.3g} now {seconds:<12.3g}{'  slower' if seconds > SLOWER * before > 0 else ''}")
        failed += any(line.failed for line in lines)
    return checked, failed


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="claims", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the claims that take less than ten minutes in all")
    parser.add_argument("--data", action="append", type=Path, help="a folder of data sets (ANTEMBED_DATA, ../shared/data)")
    parser.add_argument("--only", default="", help="claims whose names contain this")
    parser.add_argument("--list", action="store_true", help="show names and commands, run nothing")
    options = parser.parse_args(words)
    results = ROOT / "results"
    claims = [
        claim
        for claim in read_claims(results / "claims.toml")
        if options.only in claim.name and (claim.quick or not options.quick)
    ]
    if options.list:
        print(*(f"{claim.name}{' (quick)' if claim.quick else ''}\n  antembed {claim.command}" for claim in claims), sep="\n")
        return 0
    folders = [*(options.data or []), Path(os.environ.get("ANTEMBED_DATA") or ROOT / "../shared/data")]
    checked, failed = check(claims, folders, results)
    print(f"{checked} claims checked, {failed} failed, {len(claims) - checked} not checked")
    if not checked:
        print("No claim could be checked: name the folder of the data with --data or ANTEMBED_DATA.")
    return int(failed > 0 or not checked)
