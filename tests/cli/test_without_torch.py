"""Commands that look something up do not wait for torch."""

import subprocess
import sys

import pytest
from tests.command import QUICK, call, write_ratings
from tests.recommend.old_folder import as_old
from tests.synthetic_text import write_topics

# Tells which heavy modules a command has imported.
PROGRAM = """
import sys
{before}
from antembed.cli.app import app
app(sys.argv[1:], standalone_mode=False)
heavy = ("torch", "numba", "polars", "rich", "antembed.train.config")
print("imported:", *(name for name in heavy if name in sys.modules))
"""


def imported(*words, before=""):
    """The heavy modules, and what was printed before."""
    program = [sys.executable, "-c", PROGRAM.format(before=before), *map(str, words)]
    done = subprocess.run(program, capture_output=True, text=True, check=False, input="a b c\n")
    assert done.returncode == 0, done.stderr
    *lines, last = done.stdout.splitlines()
    assert last.startswith("imported:")
    return set(last.split()[1:]), lines


@pytest.fixture(scope="module")
def rated(tmp_path_factory):
    home = tmp_path_factory.mktemp("rated")
    call("train", "recommend", write_ratings(home / "ratings.csv"), "--out", home / "run", *QUICK)
    call("export", home / "run", home / "small", "--values", "int8")
    return home


@pytest.mark.parametrize("folder", ["run", "small"])
@pytest.mark.parametrize("words", [("recommend", "u3", "u7"), ("similar", 7), ("inspect",)], ids=lambda words: words[0])
def test_looking_up_ratings(rated, folder, words):
    command, *rest = words
    place = rated / folder / "items.ant" if command == "inspect" else rated / folder
    modules, lines = imported(command, place, *rest)
    assert modules == set()
    assert len(lines) > 5


@pytest.mark.parametrize("folder", ["run", "small"])
def test_explaining_ratings(rated, folder):
    modules, lines = imported("explain", rated / folder)
    assert "torch" not in modules
    assert lines == call("explain", rated / folder).splitlines()


def test_labels_that_are_in_parquet_alone_need_polars(rated, tmp_path):
    """Those of the oldest folders; tests/cli/test_export.py compares what they answer."""
    assert "polars" in imported("similar", as_old(rated / "small", tmp_path / "old", index=False), 7)[0]


@pytest.mark.parametrize(
    ("task", "options"),
    [
        pytest.param("classify", ("--model", "mean", "--embedding-dim", 8, "--epochs", 1), id="mean"),
        pytest.param("classify-ngrams", ("--budget", "2KB"), id="ngrams", marks=pytest.mark.slow),
    ],
)
def test_predicting_classes(task, options, tmp_path):
    write_topics(tmp_path / "train.csv", 300, 100, classes=2, length=10, purity=0.6)
    call("train", task, tmp_path / "train.csv", "--out", tmp_path / "run", *options)
    call("export", tmp_path / "run", tmp_path / "small")
    for folder in ("run", "small"):
        if task == "classify":
            assert "torch" not in imported("explain", tmp_path / folder)[0]
        modules, lines = imported("predict", tmp_path / folder, "-")
        assert "torch" not in modules
        assert lines == call("predict", tmp_path / folder, "-", stdin="a b c\n").splitlines()
