"""Tables that nobody tuned on, compressed: the file meets its budget and every reader finds the same, or one line says why not.

`make fuzz` tries 400, with kernels that check bounds, and records the counts; the suite tries some (tests/compression).
"""

import argparse
import json
import shlex
import sys
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
from tests.tables import plain_reader

import antembed as ant
from antembed.compression.goal import relative_error
from antembed.sweep.records import append_record
from antembed.tables.save import load_table

MOST_NUMBERS = 60_000  # of a table: a try takes about a second
SHAPES = ("normal", "falling axes", "heavy tails", "lengths over many orders", "few values", "copies", "zeros", "one outlier",
          "one direction", "large mean")  # fmt: skip


def odd_table(rng: np.random.Generator) -> tuple[str, np.ndarray]:
    """(its shape, (V, d)), in fp32, of any scale."""
    d = int(rng.choice([1, 2, 3, 7, 16, 50, 129, 300]))
    V = int((MOST_NUMBERS / d) ** rng.uniform(0.6, 1.0)) or 1
    shape = str(rng.choice(SHAPES))
    E = rng.standard_normal((V, d))
    match shape:
        case "falling axes":
            E *= 0.8 ** np.arange(d)
        case "heavy tails":
            E = rng.standard_t(1.5, (V, d))
        case "lengths over many orders":
            E *= 10 ** rng.uniform(-6, 6, (V, 1))
        case "few values":
            E = rng.integers(-1, 2, (V, d)).astype(float)
        case "copies":
            E = E[rng.integers(0, max(V // 20, 1), V)]
        case "zeros":
            E[rng.random(V) < 0.7] = 0
            E[:, rng.random(d) < 0.3] = 0
        case "one outlier":
            E[rng.integers(V), rng.integers(d)] = 1e6
        case "one direction":
            E = rng.standard_normal((V, 1)) * rng.standard_normal((1, d))
        case "large mean":
            E += 1e4 * rng.standard_normal(d)
    return shape, (E * 10.0 ** rng.choice([0, 0, 0, -20, -6, 6, 15])).astype(np.float32)


def attempt(rng: np.random.Generator, folder: Path) -> tuple[str, str]:
    """(shape, outcome)."""
    shape, E = odd_table(rng)
    V, d = E.shape
    budget = float(np.exp(rng.uniform(np.log(1.2), np.log(max(4 * E.size / 3000, 3)))))
    words = [f"word {n}" for n in range(V)] if rng.random() < 0.3 else None
    method = str(rng.choice(["auto", "auto", "transform", "sparse"]))
    try:
        table = ant.compress(E, budget=f"{budget:.2f}x", vocabulary=words, method=method, seed=int(rng.integers(1000)))
    except ValueError as error:
        return shape, "refused" if str(error) else "foreign: an error without a text"
    except BaseException as error:
        return shape, f"foreign: {type(error).__name__}: {str(error)[:150]} ({V}, {d}), {method}, {budget:.2f}x"
    about = f"({V}, {d}), {method}, {budget:.2f}x"
    F = table[:]
    if table.size - table.sizes()["words"] > 4 * E.size / budget + 2:
        return shape, f"too large: {table.size} bytes {about}"
    if not np.isfinite(F).all():
        return shape, f"not finite: {about}"
    if relative_error(E, F) > 1.001:
        return shape, f"worse than zeros: {relative_error(E, F):.3f} {about}"
    file = folder / "t.ant"
    table.save(file)
    again, scale = load_table(file), max(float(np.abs(E).max()), 1e-30)
    if (again[:] != F).any() or (again[rng.permutation(V)[:50]].shape != (min(V, 50), d)):
        return shape, f"other when read again: {about}"
    if V * d <= 5000 and np.abs(plain_reader.vectors(*plain_reader.read(file)) - F).max() > 1e-5 * scale:
        return shape, f"other by the plain reader: {about}"
    return shape, "kept"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--record", help="append the counts to this file")
    options = parser.parse_args()
    found = []
    with tempfile.TemporaryDirectory() as name:
        for number in range(options.count):
            found.append(attempt(np.random.default_rng([options.seed, number]), Path(name)))
            if found[-1][1] not in ("kept", "refused"):
                print(number, *found[-1], flush=True)
    kinds = {shape: dict(Counter(result.split(":")[0] for s, result in found if s == shape)) for shape in SHAPES}
    bad = sum(result not in ("kept", "refused") for _, result in found)
    row = {"attack": "odd tables, compressed", "tables": len(found), "seed": options.seed, "outcomes": kinds, "failures": bad,
           "command": shlex.join(["python", "-m", "tests.odd_tables", *sys.argv[1:]])}  # fmt: skip
    print(json.dumps(row, indent=1))
    if options.record:
        append_record(options.record, row)
    raise SystemExit(bool(bad))


if __name__ == "__main__":
    main()
