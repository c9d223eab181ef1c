"""Small runs whose results must not change unless somebody means to: `python -m tests.golden.cases [CASE …]` writes golden.json
anew.

Each case is a command line on synthetic data. What is kept of it: the SHA-256 of every exported file, the sizes and metrics.
Bytes are compared only where golden.json was written (same processor and versions); metrics and sizes everywhere, each within a
tolerance of its own (test_golden.py).
"""

import hashlib
import json
import os
import platform
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from unittest import mock

import numpy as np
import torch
from tests.synthetic_text import write_topics
from typer.testing import CliRunner

from antembed.cli.app import app
from antembed.recommend.synthetic import planted, ratings

FILE = Path(__file__).with_name("golden.json")
RATINGS = ("--embedding-dim", "8", "--seed", "3")
STEPS = (*RATINGS, "--epochs", "5", "--batch-size", "128", "--anchors", "6,5", "--lr", "0.03", "--l1-penalty", "1e-4")
DESCENT = (*RATINGS, "--solver", "coordinate_descent", "--epochs", "6", "--anchors", "6,5", "--l0-penalty", "0.5")
ONLINE = ("--solver", "online", "--epochs", "6", "--anchors", "auto", "--batch-size", "2000", "--l0-penalty", "0.5")
TEXT = ("--embedding-dim", "16", "--epochs", "3", "--batch-size", "32", "--lr", "0.01", "--seed", "3", "--threads", "1")
MEAN = (*TEXT, "--model", "mean")
WORDS = (
    *("--anchor-init", "frequency", "--relations", "cooccurrence"),
    *("--unrelated-penalty", "0.1", "--orthogonality-penalty", "0.01"),
)
RECODED = ("--solver", "stochastic", "--budget", "900", "--anchors", "6,5", "--batch-size", "256")
WRITTEN = (
    *("--embedding-dim", "16", "--epochs", "4", "--anchors", "8", "--batch-size", "140", "--sequence-length", "14"),
    *("--lr", "0.03", "--seed", "3", "--threads", "1"),
)
GROWN = ("--anchors", "auto", "--epochs", "12", "--initial-anchors", "2")

# What is found by a search or an event may be another choice on another processor: there, only its metrics are compared.
CHOSEN = {"automatic", "classify-automatic", "descent-auto", "recode", "prune", "bag-recode", "language-budget"}

# Left out by -m "not slow": each has a quicker twin.
SLOW = {"prune", "fused-polish", "fused-bytes", "fused-trend", "hashed", "descent-full", "descent-unobserved", "bag-auto",
        "bag-kmeans", "bag-vvd-init", "bag-sparse-code", "language-transformer", "classify-automatic"}  # fmt: skip

# name → task, options
CASES: dict[str, tuple[str, tuple[str, ...]]] = {
    "fused": ("recommend", STEPS),
    "fused-full": ("recommend", (*STEPS, "--embedding", "full", "--weight-decay", "0.1", "--schedule", "cosine")),
    "fused-polish": ("recommend", (*STEPS, "--polish", "0.4")),
    "fused-budget": ("recommend", (*STEPS, "--budget", "900")),
    "fused-bytes": ("recommend", (*STEPS, "--budget", "2KB")),
    "fused-dense-init": ("recommend", (*STEPS, "--init", "dense")),
    "fused-auto": ("recommend", (*STEPS, *GROWN, "--anchor-penalty", "1e-3")),
    "fused-trend": ("recommend", (*STEPS, *GROWN, "--anchor-penalty", "1e-3", "--growth", "trend")),
    "recode": ("recommend", (*RATINGS, *RECODED, "--sparsify", "recode", "--epochs", "10")),
    "prune": ("recommend", (*RATINGS, *RECODED, "--sparsify", "prune", "--epochs", "10")),
    "torch-adam": ("recommend", (*STEPS, "--engine", "torch", "--optimizer", "adam")),
    "hashed": ("recommend", (*STEPS, "--embedding", "hashed", "--anchors", "40,20")),
    "mixture": ("recommend", (*STEPS, "--embedding", "mixture", "--max-nonzeros", "300")),
    "descent": ("recommend", DESCENT),
    "descent-full": ("recommend", (*DESCENT, "--embedding", "full", "--split", "90/10")),
    "descent-budget": ("recommend", (*DESCENT[:-2], "--budget", "900", "--epochs", "9")),
    "descent-auto": ("recommend", (*DESCENT, "--anchors", "auto")),
    "descent-unobserved": ("recommend", (*DESCENT, "--unobserved-weight", "0.01")),
    "automatic": ("recommend", ("--seed", "3")),
    "axes": (
        "recommend",
        (*RATINGS, "--solver", "coordinate_descent", "--tolerance", "5%", "--basis", "axes", "--anchors", "16"),
    ),
    "online": ("recommend", (*RATINGS, *ONLINE)),
    "cnn": ("classify", TEXT),
    "cnn-words": ("classify", (*TEXT, *WORDS)),
    "bag": ("classify", MEAN),
    "bag-budget": ("classify", (*MEAN, "--budget", "3KB")),
    "bag-recode": ("classify", (*MEAN, "--sparsify", "recode", "--budget", "600", "--epochs", "7", "--events", "3")),
    "bag-auto": ("classify", (*MEAN, *GROWN)),
    "bag-kmeans": ("classify", (*MEAN, "--anchor-init", "kmeans")),
    "bag-vvd-init": ("classify", (*MEAN, "--anchor-init", "vvd")),
    "bag-vvd": ("classify", (*MEAN, "--embedding", "vvd")),
    "bag-sparse-code": ("classify", (*MEAN, "--embedding", "sparse-code")),
    "ngrams": ("classify-ngrams", ("--budget", "2KB", "--seed", "3")),
    "classify-automatic": ("classify", ("--seed", "3")),
    "language": ("language", WRITTEN),
    "language-budget": ("language", (*WRITTEN, "--softmax", "full", "--budget", "400")),
    "language-transformer": ("language", (*WRITTEN, "--model", "transformer", "--heads", "2", "--lr", "0.005")),
}


def write_data(folder: Path) -> dict[str, Path]:
    """Ratings, labelled text and a corpus with a known answer, the same everywhere."""
    users, items = planted(200, 8, anchors=4, exponent=0.3, seed=0), planted(80, 8, anchors=4, exponent=0.3, seed=1)
    r = ratings(users, items, 8000, noise=0.2, seed=2)
    rows = (f"u{u},{i},{v:.2f}" for u, i, v in zip(r.users, r.items, r.values, strict=True))
    (folder / "ratings.csv").write_text("user,item,rating\n" + "\n".join(rows))
    write_topics(folder / "text.csv", 600, 300, classes=3, length=20, purity=0.6)
    words, at = [], 0
    for step in np.random.default_rng(0).integers(0, 3, 6000):
        at = (at * 7 + int(step) * 11 + 1) % 30  # three words may follow each
        words.append(f"w{at}")
    (folder / "corpus.txt").write_text("\n".join(" ".join(words[n : n + 20]) for n in range(0, 6000, 20)) + "\n")
    own = {"recommend": folder / "ratings.csv", "language": folder / "corpus.txt"}
    return own | dict.fromkeys(("classify", "classify-ngrams"), folder / "text.csv")


def run_case(name: str, data: dict[str, Path], out: Path) -> dict[str, object]:
    """What a case comes to now."""
    task, options = CASES[name]
    words = ["train", task, str(data[task]), *options, "--out", str(out), "--json"]
    torch.set_num_threads(2)
    with mock.patch("sys.argv", ["antembed", *words]):
        done = CliRunner().invoke(app, words)
    if done.exit_code != 0:
        raise AssertionError(f"{name}: {done.output} {done.exception!r}")
    result = json.loads(done.stdout)
    files = sorted(file for file in out.iterdir() if file.suffix in (".ant", ".ngrams"))
    return {
        "files": {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files},
        **{key: result[key] for key in ("anchors", "nnz", "parameters", "bytes", "validation", "test")},
    }


def machine() -> dict[str, str]:
    """What may change the bytes of a result beside our code."""
    model = platform.machine()
    if Path("/proc/cpuinfo").is_file():
        named = (line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith(("model", "cpu family")))
        model = "; ".join(sorted(set(named))).replace("\t", "")
    switches = (
        "OPENBLAS_CORETYPE",
        "ATEN_CPU_CAPABILITY",
        "NUMBA_CPU_NAME",
        "OMP_NUM_THREADS",
        "NUMBA_CPU_FEATURES",
        "MKL_CBWR",
    )
    return {
        "processor": model,
        **{package: version(package) for package in ("torch", "numpy", "scipy", "numba", "scikit-learn")},
        **{name: os.environ.get(name, "") for name in switches},
    }


def main() -> None:
    """All cases, or those named: the others stay as they are."""
    wanted = sys.argv[1:] or list(CASES)
    with tempfile.TemporaryDirectory() as name:
        os.environ["ANTEMBED_CACHE"] = str(Path(name) / "cache")
        data = write_data(Path(name))
        kept = json.loads(FILE.read_text())["cases"] if sys.argv[1:] else {}
        found = kept | {case: run_case(case, data, Path(name) / case) for case in wanted}
    cases = {case: found[case] for case in CASES}
    FILE.write_text(json.dumps({"machine": machine(), "cases": cases}, indent=1) + "\n")


if __name__ == "__main__":
    main()
