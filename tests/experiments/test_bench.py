"""The benchmarks at a small scale: they run, and their numbers are about what they say."""

import ast
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from experiments.bench import NAMES, main
from experiments.bench import factorization as bench
from experiments.race import parse

ROOT = Path(__file__).parents[2]
TYPED = re.compile(r"python -m experiments (\w+)(?: (\w+))?")


@pytest.mark.slow
def test_amazon_at_a_hundredth(tmp_path):
    record = tmp_path / "bench.jsonl"
    main(["factorization", "amazon", "--ratings", str(bench.AMAZON_RATINGS // 100), "--record", str(record)])
    result = json.loads(record.read_text())
    assert result["setting"].startswith("435,000 users, 152,000 items, d=16, K=15/10")
    assert result["ratings"] == 2_330_000
    assert 0.5 < result["train_mse"] < 1.2  # the first ratings are guessed from a wrong mean; the planted variance is 0.72
    for name in ("users", "items"):
        assert 0 < result["nnz"][name] < result["entries"][name]
    assert result["command"].startswith("python -m experiments")


def test_growth(monkeypatch, capsys):
    monkeypatch.setattr(bench, "GROWTH", ((4000, 8), (8000, 16)))
    main(["factorization", "growth", "--ratings", "5000", "--repeats", "1"])
    speeds = ast.literal_eval(capsys.readouterr().out)["million_ratings_a_second"]
    assert list(speeds) == ["4,000 rows, K=8", "8,000 rows, K=16"]
    assert min(speeds.values()) > 0


def test_busy_processes_go_with_one_benchmark():
    with pytest.raises(SystemExit, match="--busy goes with recommend"):
        main(["factorization", "growth", "--busy", "1"])


def test_no_such_benchmark(capsys):
    assert main(["luck"]) == 2
    assert "factorization" in capsys.readouterr().err
    assert pytest.approx(58.7e6) == bench.AMAZON_USERS + bench.AMAZON_ITEMS


@pytest.mark.parametrize("name", NAMES)
def test_each_says_how_it_is_called(name, capsys):
    with pytest.raises(SystemExit) as left:
        main([name, "--help"])
    assert left.value.code == 0
    text = capsys.readouterr().out
    assert f"python -m experiments bench {name}" in text
    assert "--record" in text


def test_documents_name_commands_that_there_are():
    """And every measurement is named by a document, a recipe or the Makefile."""
    files = [ROOT / "Makefile", ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "results" / "claims.toml"]
    files += [*(ROOT / "docs").rglob("*.md"), *(ROOT / "results").glob("*.md"), *(ROOT / "recipes").rglob("*.toml")]
    text = "".join(file.read_text() for file in files)
    assert "benchmarks/" not in text
    typed = set(TYPED.findall(text.replace("$(BIN)/python", "python")))
    assert {command for command, _ in typed} <= {"bench", "claims", "figures", "house", "recipe", "tables"}
    named = {name for command, name in typed if command == "bench"} | set(re.findall(r"command = \"bench (\w+)", text))
    assert named - {""} == set(NAMES)


def test_options_of_a_measurement():
    given = parse(
        ["a", "--sizes", "1", "2", "--fast", "--no-dense"],
        "",
        "data",
        "files*",
        sizes=[8],
        fast=False,
        no_dense=False,
        name=None,
    )
    assert (given.data, given.files, given.sizes, given.fast, given.no_dense) == ("a", [], [1, 2], True, True)
    assert (given.name, given.record) == (None, None)


def test_the_command_line_lists_its_commands():
    done = subprocess.run([sys.executable, "-m", "experiments"], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 2
    commands = ["bench", "claims", "figures", "house", "recipe", "sabotage", "tables"]
    assert re.findall(r"^  (\w+)", done.stderr, re.MULTILINE) == commands


def test_each_sabotage_changes_one_place(tmp_path):
    from experiments.sabotage import SABOTAGES, apply

    for sabotage in SABOTAGES:
        shutil.copytree(ROOT / "src" / "antembed", tmp_path / "src", dirs_exist_ok=True)
        apply(sabotage, tmp_path / "src")
