"""Progress on stderr: few lines in a pipe, none with --quiet, and errors by their names; completion in the shell."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from tests.command import QUICK, call, write_ratings
from typer.testing import CliRunner

import antembed.recommend.synthetic as demo
from antembed.cli import show
from antembed.cli.app import app
from antembed.train.run_folder import RunFolder


@dataclass
class Now:
    epoch: int
    loss: float = 0.25
    examples: int = 100
    seconds: float = 1.0
    record: dict = field(default_factory=dict)


def lines_of(capsys, epochs, done):
    with show.progress_bar("x", epochs, 100) as callback:
        for epoch in range(1, done + 1):
            callback(Now(epoch, record={"epoch": epoch - 1}))  # within an epoch
            callback(Now(epoch, record={"epoch": epoch}))
    return [int(line.split()[2].split("/")[0]) for line in capsys.readouterr().err.splitlines()]


@pytest.mark.parametrize(
    ("epochs", "done"), [(1, 1), (7, 7), (20, 20), (21, 21), (100, 100), (20_000, 20_000), (20_000, 777), (0, 5000)]
)
def test_a_pipe_gets_few_lines_the_first_and_the_last_among_them(capsys, epochs, done):
    printed = lines_of(capsys, epochs, done)
    assert printed == sorted(set(printed))
    assert printed[0] == 1
    assert printed[-1] == done
    assert len(printed) <= show.LINES
    assert len(printed) == done or len(printed) >= (show.LINES - 2 if epochs == done else 2)
    if epochs == done > show.LINES:
        gaps = [b - a for a, b in pairwise(printed[1:])]
        assert max(gaps) - min(gaps) <= 1


@pytest.mark.parametrize(
    ("record", "metric", "said"),
    [
        ({}, "MSE", "train MSE 0.5000 100/s"),
        ({}, "", "train loss 0.2500 100/s"),
        ({"validation": {"loss": 0.3, "mse": 0.6}}, "MSE", "validation MSE 0.6000 100/s"),
        ({"validation": {"loss": 0.3, "accuracy": 0.9, "error": 0.1}}, "", "validation accuracy 0.9000 100/s"),
        ({"validation": {"loss": 0.3, "links": 1}}, "", "validation loss 0.3000 100/s"),
        ({"mse_before": 0.7}, "MSE", "MSE before learning 0.7000 100/s"),
        ({"nnz": {"users": 1000, "items": 234}, "l1_penalty": 1e-4}, "MSE", "train MSE 0.5000 nnz 1.23K before pruning 100/s"),
        ({"nnz": {"users": 1000, "items": 234}, "l1_penalty": 0.0}, "MSE", "train MSE 0.5000 nnz 1.23K 100/s"),
    ],
)
def test_errors_have_names(record, metric, said):
    assert show.state(Now(1, record=record), metric) == said


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_ratings(tmp_path_factory.mktemp("data") / "ratings.csv")


def stderr_of(*words):
    done = CliRunner().invoke(app, [str(word) for word in words])
    assert done.exit_code == 0, done.output
    return done.stderr.splitlines(), done.stdout


def test_the_log_of_ratings_is_the_mse(data, tmp_path):
    for split, name in (("80/10/10", "validation MSE"), ("90/10", "train MSE")):
        out = tmp_path / name
        lines, _ = stderr_of("train", "recommend", data, "--out", out, *QUICK, "--split", split)
        last = RunFolder(out).rows()[-1]
        wanted = last["validation"]["mse"] if "validation" in last else 2 * last["train_loss"]
        assert "ratings repeat a user and item" in lines[0]
        assert f"epoch 4/4 {name} {wanted:.4f} nnz " in lines[4]
    weighted = (
        "--solver",
        "coordinate_descent",
        "--unobserved-weight",
        0.01,
        "--epochs",
        1,
        "--split",
        "90/10",
        "--anchors",
        3,
    )
    lines, _ = stderr_of("train", "recommend", data, "--out", tmp_path / "implicit", *weighted)
    assert "train loss" in lines[1]  # which is not about the ratings alone


def test_quiet_leaves_results(data, tmp_path):
    words = ("train", "recommend", data, *QUICK, "--json", "--out")
    for name, quiet in (("a", ("--quiet", *words, tmp_path / "a")), ("b", (*words, tmp_path / "b", "--quiet"))):
        lines, printed = stderr_of(*quiet)
        assert lines == []
        assert json.loads(printed)["test"]["mse"] > 0, name
    lines, printed = stderr_of(*words[:-2], "--quiet", "--out", tmp_path / "c")
    assert lines == []
    assert "test MSE" in printed
    lines, _ = stderr_of(*words, tmp_path / "d")
    assert len(lines) == 5  # it was for that call only


@pytest.mark.parametrize(
    ("typed", "wanted"),
    [
        ("antembed rec", {"recommend"}),
        ("antembed train class", {"classify", "classify-ngrams"}),
        ("antembed train recommend --tol", {"--tolerance"}),
        ("antembed export --with-s", {"--with-seen"}),
    ],
)
def test_the_shell_completes(typed, wanted):
    """Also the commands of `train`, which are made when somebody asks for them."""
    program = "import sys; sys.argv = ['antembed']; from antembed.cli import main; main()"
    place = {"_ANTEMBED_COMPLETE": "complete_bash", "COMP_WORDS": typed, "COMP_CWORD": str(typed.count(" "))}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, env=os.environ | place)
    assert set(done.stdout.split()) == wanted, done.stderr


def test_completion_can_be_installed():
    assert "--install-completion" in call("--help")


def test_the_demo_compiles_before_it_measures(monkeypatch, tmp_path):
    monkeypatch.setattr(demo, "RATINGS", 6000)
    trained = []
    train = demo.train
    monkeypatch.setattr(demo, "train", lambda config, out, **more: trained.append(out.name) or train(config, out, **more))
    anchored = json.loads(call("demo", "--json", "--out", tmp_path))[1]
    assert trained == ["warm-up-full", "warm-up-anchor", "full", "anchor"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["anchor", "full"]
    last = RunFolder(tmp_path / "anchor").rows()[-1]
    assert anchored["nnz_before_pruning"] == sum(last["nnz"].values()) >= sum(anchored["nnz"].values())
    shown = " ".join(call("demo", "--out", tmp_path).split())
    left = f"of {anchored['nnz_before_pruning']:,} weights (nnz in the last epoch) {sum(anchored['nnz'].values()):,} are left"
    assert left in shown
