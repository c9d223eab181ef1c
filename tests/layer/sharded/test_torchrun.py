"""`torchrun -m antembed train`: a rank that is killed with -9, restarts, and other numbers of processes."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file
from tests.command import QUICK, call, write_ratings

KILLED = Path(__file__).with_name("killed_rank.py")
OPTIONS = (*map(str, QUICK), "--batch-size", "2000")


def torchrun(n: int, *words: object, restarts: int = 0) -> subprocess.CompletedProcess:
    begin = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(n)]
    words = [*begin, "--max-restarts", str(restarts), *map(str, words)]
    return subprocess.run(words, capture_output=True, text=True, check=False)  # what hangs ends by ANTEMBED_TIMEOUT


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_ratings(tmp_path_factory.mktemp("data") / "ratings.csv")


@pytest.fixture(scope="module")
def whole(data, tmp_path_factory):
    """A run of two processes that nobody disturbs."""
    out = tmp_path_factory.mktemp("whole") / "run"
    done = torchrun(2, KILLED, 0, "sync 0", "train", "recommend", data, "--out", out, *OPTIONS, "--json")  # nobody is killed
    assert done.returncode == 0, done.stderr[-3000:]
    return out, json.loads(done.stdout), done.stderr


def contents(run: Path) -> dict[str, bytes]:
    return {name: (run / name).read_bytes() for name in ("users.ant", "items.ant", "checkpoint/final.safetensors")}


def epochs(run: Path) -> list[dict]:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in row.items() if name != "seconds"} for row in rows]


def test_rank_0_alone_prints_and_the_run_is_like_any_other(whole, data):
    out, result, said = whole
    assert said.count("epoch 1/4") == 1
    assert result["engine"] == "torch"
    assert json.loads((out / "config.json").read_text())["config"]["solver"]["train"]["pieces"] == 8
    assert json.loads(call("evaluate", out, "--data", data, "--json"))["test"] == result["test"]


@pytest.mark.parametrize(("rank", "moment"), [pytest.param(1, "sync 3", marks=pytest.mark.slow)])
def test_a_killed_rank_restarts_and_the_end_is_the_same(rank, moment, whole, data, tmp_path):
    words = [KILLED, rank, moment, "train", "recommend", data, "--out", tmp_path / "run", *OPTIONS]
    done = torchrun(2, *words, restarts=1)
    assert done.returncode == 0, done.stderr[-3000:]
    assert f"killed at {moment}" in done.stderr, done.stderr[-3000:]
    assert contents(tmp_path / "run") == contents(whole[0])
    assert epochs(tmp_path / "run") == epochs(whole[0])


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sync", "exchange"])
def test_a_rank_killed_at_any_time_changes_nothing(kind, whole, data, tmp_path):
    """Five moments of each kind, of all that there are in a run."""
    exchanges = {int(number) for number in re.findall(r"exchanges of rank \d: (\d+)", whole[2])}
    assert len(exchanges) == 1, exchanges
    last = 12 if kind == "sync" else exchanges.pop()
    random = np.random.default_rng(0)
    for number in range(5):
        rank, moment = int(random.integers(2)), int(random.integers(1, last))
        words, out = [KILLED, rank, f"{kind} {moment}", "train", "recommend", data], tmp_path / str(number)
        done = torchrun(2, *words, "--out", out, *OPTIONS, restarts=1)
        assert done.returncode == 0, f"rank {rank}, {kind} {moment}: {done.stderr[-6000:]}"
        assert f"killed at {kind} {moment}" in done.stderr, done.stderr[-6000:]
        assert contents(out) == contents(whole[0]), (rank, moment)
        assert epochs(out) == epochs(whole[0]), (rank, moment)


@pytest.mark.slow
def test_a_run_continues_with_other_numbers_of_processes(whole, data, tmp_path):
    out = tmp_path / "run"
    words = ["train", "recommend", data, "--out", out, *OPTIONS]
    for n, moment in ((2, "sync 3"), (4, "sync 2")):
        assert torchrun(n, KILLED, 1, moment, *words, "--resume").returncode != 0
    done = torchrun(1, "-m", "antembed", *words, "--resume")
    assert done.returncode == 0, done.stderr[-3000:]
    one, two = (load_file(run / "checkpoint" / "final.safetensors") for run in (out, whole[0]))
    for name, tensor in two.items():
        if name != "random":
            assert float((one[name] - tensor).abs().max()) < 1e-5, name
