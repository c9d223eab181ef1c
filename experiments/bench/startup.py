"""How long commands take that compute little: what is measured is Python, imports and opening files, with all files in memory.
Seconds are those of the processor, which other processes hardly touch; on an idle machine the clock says the same.

    python -m experiments bench startup [--repeats 9] [--record results/startup.jsonl]
    python -m experiments bench startup --first-train ml-1m/ratings.dat [--record results/startup.jsonl]

The second measures what the first `antembed train recommend` on a new machine waits for: the same command with an empty folder
of machine code and then with a full one, in turns; the difference is compilation.
"""

import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np

from experiments.race import antembed, counted, parse, processor_time_of_children, publish, take_turns

USERS, ITEMS, RATINGS = 6040, 3706, 200_000  # the tables have MovieLens 1M's shape
WORDS, DIMENSIONS = 50_000, 50
TRAIN = "--solver coordinate_descent --embedding-dim 16 --anchors 48 --epochs 1 --l0-penalty 1e-5"


def make_files(folder: Path) -> None:
    """A run of each kind of labels, numbers and text; and a file of words."""
    rng = np.random.default_rng(0)
    pairs = np.unique(np.stack([rng.integers(0, USERS, RATINGS), rng.integers(0, ITEMS, RATINGS)], axis=1), axis=0)
    stars = 1 + (pairs.sum(axis=1) % 5)
    for name, prefix in (("numbers", ""), ("text", "x-")):
        lines = [f"{prefix}{u},{prefix}{i},{r}" for (u, i), r in zip(pairs.tolist(), stars.tolist(), strict=True)]
        (folder / f"{name}.csv").write_text("\n".join(["user,item,rating", *lines]) + "\n")
        run(["train", "recommend", str(folder / f"{name}.csv"), *TRAIN.split(), "--out", str(folder / name)])
    vectors = rng.standard_normal((WORDS, DIMENSIONS)).astype(np.float32)
    np.save(folder / "vectors.npy", vectors)
    (folder / "words.txt").write_text("\n".join(f"w{n}" for n in range(WORDS)))
    run(["compress", str(folder / "vectors.npy"), str(folder / "words.ant"), "--words", str(folder / "words.txt")])


def run(words: list[str], **environment: str) -> None:
    """With Python's bytecode, as pip leaves it, whatever this process was told."""
    antembed(words, PYTHONDONTWRITEBYTECODE="", **environment)


def warm(folder: Path, repeats: int) -> dict[str, float]:
    """Median seconds of each command."""
    tables, text = folder / "numbers", folder / "text"
    commands = {
        "--version": ["--version"],
        "--help": ["--help"],
        "similar RUN ITEM": ["similar", str(tables), "260"],
        "similar RUN ITEM (text labels)": ["similar", str(text), "x-260"],
        "recommend RUN USER": ["recommend", str(tables), "42"],
        "recommend RUN USER (text labels)": ["recommend", str(text), "x-42"],
        "inspect FILE": ["inspect", str(tables / "items.ant")],
        "neighbours FILE WORD": ["neighbours", str(folder / "words.ant"), "w7"],
    }

    contestants = {name: counted(partial(run, words)) for name, words in commands.items()}
    bare = counted(lambda: subprocess.run([sys.executable, "-c", "import numpy, safetensors"], check=True))
    contestants = {"python, import numpy": bare, **contestants}
    times = take_turns(contestants, repeats, processor_time_of_children)
    return {name: median(found) for name, found in times.items()}


def first_train(data: str, repeats: int) -> dict[str, float]:
    """Median processor seconds of the whole command, with and without compiling."""
    times: dict[str, list[float]] = {"empty": [], "full": []}
    with tempfile.TemporaryDirectory() as name:
        for turn in range(repeats):
            for state in times:
                started = processor_time_of_children()
                run(
                    ["train", "recommend", data, "--out", f"{name}/{state}{turn}"],
                    NUMBA_CACHE_DIR=f"{name}/code{turn}",
                    ANTEMBED_CACHE=f"{name}/cache{state}{turn}",
                )
                times[state].append(processor_time_of_children() - started)
    return {state: median(found) for state, found in times.items()}


def main(words: list[str]) -> None:
    options = parse(words, __doc__, repeats=9, first_train=None)
    if options.first_train:
        found = first_train(options.first_train, options.repeats)
        setting = f"{Path(options.first_train).parent.name}, no options; compilation is the difference"
        found["compilation"] = found["empty"] - found["full"]
        row = {"benchmark": "first train", "setting": setting}
    else:
        with tempfile.TemporaryDirectory() as name:
            make_files(Path(name))
            found = warm(Path(name), options.repeats)
        row = {"benchmark": "start-up", "setting": f"{USERS} users, {ITEMS} items; {WORDS:,} words"}
    publish(
        options.record,
        row | {"repeats": options.repeats, "processor_seconds": {what: round(s, 3) for what, s in found.items()}},
    )
