"""How long commands take that compute little: what is measured is Python, imports and opening files, with all files in memory.
Seconds are those of the processor, which other processes hardly touch; on an idle machine the clock says the same.

    python -m experiments bench startup [--repeats 9] [--record results/startup.jsonl]
    python -m experiments bench startup --cold [--repeats 3] [--record results/startup.jsonl]

The second measures what a first use on a new machine waits for: the same with an empty folder of machine code and then with a
full one, in turns, both without what searches found before; the difference is compilation.
"""

import os
import subprocess
import sys
import tempfile
import time
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


def cold_uses(folder: Path) -> dict[str, list[str]]:
    """What people begin with, as words behind `python`; small, so that it is compilation that is seen."""
    rng, ids, train = np.random.default_rng(0), np.arange(60_000), "-m antembed --quiet train"
    rows = [f"{u},{i},{1 + (u + i) % 5}" for u, i in zip(ids % 600, rng.integers(0, 400, len(ids)), strict=True)]
    (folder / "ratings.csv").write_text("\n".join(["user,item,rating", *rows]) + "\n")
    texts = [f"{n % 3},{' '.join(f'w{10 * (n % 3) + w}' for w in rng.integers(0, 20, 12))}" for n in range(3000)]
    (folder / "texts.csv").write_text("\n".join(["label,text", *texts]) + "\n")
    np.save(folder / "vectors.npy", rng.standard_normal((20_000, 50)).astype(np.float32))
    run(["compress", str(folder / "vectors.npy"), str(folder / "v.ant"), "--method", "transform"])
    layer = (
        "import antembed as a, torch; t = a.AnchorEmbedding(5000, 8, num_anchors=6, sparse=True); o = a.ProximalYogi("
        "a.param_groups(t, l1_penalty=1e-4)); t(torch.arange(640)).sum().backward(); o.step()"
    )
    return {
        "compress": f"-m antembed --quiet compress {folder}/vectors.npy {folder}/out.ant --overwrite".split(),
        "look-up": ["-c", f"import antembed as a, numpy as n; a.load_table('{folder}/v.ant')[n.arange(5000)]"],
        "train recommend": f"{train} recommend {folder}/ratings.csv --overwrite --out {folder}/r".split(),
        "train recommend --solver stochastic": (
            f"{train} recommend {folder}/ratings.csv --solver stochastic --epochs 4 --overwrite --out {folder}/s".split()
        ),
        "train classify": f"{train} classify {folder}/texts.csv --overwrite --out {folder}/c".split(),
        "layer": ["-c", layer],
    }


def cold(repeats: int) -> dict[str, float]:
    """Median seconds by the clock: of a first use, and how much of them a second one does without."""
    times: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        uses = cold_uses(folder)
        for turn in range(repeats):
            for use, words in uses.items():
                code, seconds = f"{name}/code-{turn}-{use}", []
                for state in ("first", "again"):
                    own = {"NUMBA_CACHE_DIR": code, "ANTEMBED_CACHE": f"{name}/{state}-{turn}-{use}"}
                    started = time.perf_counter()
                    subprocess.run([sys.executable, *words], check=True, capture_output=True, env=os.environ | own)
                    seconds.append(time.perf_counter() - started)
                times.setdefault(f"{use}, first", []).append(seconds[0])
                times.setdefault(f"{use}, compilation", []).append(seconds[0] - seconds[1])
    return {what: median(found) for what, found in times.items()}


def main(words: list[str]) -> None:
    options = parse(words, __doc__, repeats=9, cold=False)
    if options.cold:
        seconds = {what: round(s, 2) for what, s in cold(options.repeats).items()}
        publish(options.record, {"benchmark": "first use", "repeats": options.repeats, "seconds": seconds})
        return
    with tempfile.TemporaryDirectory() as name:
        make_files(Path(name))
        found = {what: round(s, 3) for what, s in warm(Path(name), options.repeats).items()}
    row = {"benchmark": "start-up", "setting": f"{USERS} users, {ITEMS} items; {WORDS:,} words"}
    publish(options.record, row | {"repeats": options.repeats, "processor_seconds": found})
