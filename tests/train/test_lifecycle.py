"""The life of a run: made, killed, continued to the same bytes, evaluated; and what is said when a folder is no run."""

import json
import shutil
import socket
import subprocess
import sys
import time

import pytest
from tests.command import QUICK, call, write_ratings
from typer.testing import CliRunner

from antembed.cli.app import app
from antembed.files import TEMPORARY
from antembed.train.run_folder import RunFolder


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_ratings(tmp_path_factory.mktemp("data") / "ratings.csv")


@pytest.fixture(scope="module")
def run(data, tmp_path_factory):
    out = tmp_path_factory.mktemp("run") / "r"
    record = out.parent / "records.jsonl"
    result = json.loads(call("train", "recommend", data, "--out", out, *QUICK, "--json", "--record", record))
    return out, result, record


def test_the_folder_is_a_run(run):
    out, result, _ = run
    assert {p.name for p in out.iterdir()} >= {"config.json", "metrics.jsonl", "checkpoint", "users.ant", "items.ant"}
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [row["epoch"] for row in rows] == [1, 2, 3, 4]
    assert rows[0]["l1_penalty"] < rows[3]["l1_penalty"] == 1e-4  # what is logged is what was in force
    best = min(rows, key=lambda row: row["objective"])
    assert result["validation"]["mse"] == pytest.approx(best["validation"]["mse"], rel=0.01)  # and then pruned
    assert sum(result["nnz"].values()) < sum(best["nnz"].values())


def test_evaluate_says_the_same(run):
    out, result, _ = run
    again = json.loads(call("evaluate", out, "--json"))
    assert again["test"] == result["test"]
    assert again["parameters"] == result["parameters"]
    assert "test MSE" in call("evaluate", out)


def test_evaluate_leaves_the_run_alone(run):
    out, _, _ = run
    before = {p: p.read_bytes() for p in out.rglob("*") if p.is_file()}
    call("evaluate", out)
    assert {p: p.read_bytes() for p in out.rglob("*") if p.is_file()} == before


def test_the_same_seed_gives_the_same_bytes(run, data, tmp_path):
    out, _, _ = run
    call("train", "recommend", data, "--out", tmp_path / "r", *QUICK)
    for name in ("users.ant", "items.ant", "checkpoint/last.safetensors"):
        assert (tmp_path / "r" / name).read_bytes() == (out / name).read_bytes()
    call("train", "recommend", data, "--out", tmp_path / "s", *QUICK, "--seed", 1)
    assert (tmp_path / "s" / "users.ant").read_bytes() != (out / "users.ant").read_bytes()


@pytest.mark.parametrize(("engine", "epochs"), [pytest.param("torch", 6, marks=pytest.mark.slow), ("fused", 40)])
def test_killed_again_and_again_a_run_ends_in_the_same_bytes(data, tmp_path, engine, epochs):
    settings = [*map(str, QUICK), "--engine", engine, "--epochs", str(epochs)]
    call("train", "recommend", data, "--out", tmp_path / "whole", *settings)
    words = ["train", "recommend", str(data), "--out", str(tmp_path / "r"), *settings, "--resume"]
    last, kills = tmp_path / "r" / "checkpoint" / "last.safetensors", 0
    for delay in (0.0, 0.13, 0.31):  # after the run's next checkpoint: anywhere in an epoch, or while one is written
        before = last.stat().st_mtime_ns if last.exists() else 0
        process = subprocess.Popen([sys.executable, "-m", "antembed", *words], stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 120
        while process.poll() is None and time.monotonic() < deadline:
            if last.exists() and last.stat().st_mtime_ns != before:
                break
            time.sleep(0.002)
        time.sleep(delay)
        process.kill()
        kills += process.wait() != 0
    assert kills
    call(*words)
    for name in ("users.ant", "items.ant", "checkpoint/last.safetensors", "checkpoint/final.safetensors"):
        assert (tmp_path / "r" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    rows = [json.loads(line)["epoch"] for line in (tmp_path / "r" / "metrics.jsonl").read_text().splitlines()]
    assert rows == list(range(1, epochs + 1))


def test_a_run_is_not_overwritten_by_accident(run, data):
    out, _, _ = run
    with pytest.raises(
        ValueError, match="exists; continue it with --resume, replace it with --overwrite, or choose another --out"
    ):
        call("train", "recommend", data, "--out", out, *QUICK)
    with pytest.raises(ValueError, match="was started with seed=0, not 5"):
        call("train", "recommend", data, "--out", out, *QUICK, "--resume", "--seed", 5)


def test_overwrite_replaces_a_run(data, tmp_path):
    for seed in (0, 1):
        call("train", "recommend", data, "--out", tmp_path / "r", *QUICK, "--epochs", 1, "--seed", seed, "--overwrite")
    assert json.loads((tmp_path / "r" / "config.json").read_text())["config"]["machine"]["seed"] == 1


def test_what_no_run_has_written_is_never_removed(data, tmp_path):
    mine = {".env.local": "secret", "notes.txt": "thesis", "mine.ant": "x", "checkpoint/mine.safetensors": "y"}
    train = ("train", "recommend", data, "--out", tmp_path / "r", *QUICK, "--epochs", 1)
    call(*train)
    for name, text in mine.items():
        (tmp_path / "r" / name).write_text(text)
    call(*train, "--resume")
    call(*train, "--overwrite", "--seed", 1)
    assert {name: (tmp_path / "r" / name).read_text() for name in mine} == mine
    described = json.loads((tmp_path / "r" / "config.json").read_text())
    described["files"] = ["../outside.txt", "users.ant", 3]
    (tmp_path / "r" / "config.json").write_text(json.dumps(described))
    (tmp_path / "outside.txt").write_text("mine")
    call(*train, "--overwrite")
    assert (tmp_path / "outside.txt").read_text() == "mine"


@pytest.mark.parametrize("text", ['{"version": 2, "dependencies": {}}', "{}", "[1]", "half {", '{"version": 2, "config": []}'])
def test_the_config_of_another_program_is_left_alone(run, data, tmp_path, text):
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "config.json").write_text(text)
    for more in ("--overwrite", "--resume", "--quiet"):
        with pytest.raises(ValueError, match=r"was not written by antembed, and is left alone|config\.json is damaged"):
            call("train", "recommend", data, "--out", tmp_path / "project", *QUICK, more)
    with pytest.raises(ValueError, match=r"config\.json"):
        call("export", run[0], tmp_path / "project")
    assert [(file.name, file.read_text()) for file in (tmp_path / "project").iterdir()] == [("config.json", text)]


def test_a_kill_while_a_run_is_replaced_is_no_dead_end(data, tmp_path):
    train = ("train", "recommend", data, "--out", tmp_path / "r", *QUICK, "--epochs", 1)
    call(*train)
    for file in (tmp_path / "r" / "checkpoint").iterdir():
        file.unlink()  # killed there
    call(*train, "--seed", 1, "--overwrite", "--resume")
    assert json.loads((tmp_path / "r" / "config.json").read_text())["config"]["machine"]["seed"] == 1
    assert (tmp_path / "r" / "users.ant").is_file()


def test_two_processes_do_not_train_in_one_folder(data, tmp_path):
    call("train", "recommend", data, "--out", tmp_path / "r", *QUICK, "--epochs", 1)
    before = {file: file.read_bytes() for file in (tmp_path / "r").rglob("*") if file.is_file()}
    for more in ("--resume", "--overwrite"):
        with RunFolder(tmp_path / "r").locked(), pytest.raises(ValueError, match="is in use by process"):
            call("train", "recommend", data, "--out", tmp_path / "r", *QUICK, "--epochs", 1, more)
    assert {file: file.read_bytes() for file in (tmp_path / "r").rglob("*") if file.is_file()} == before


def test_resume_wins_over_overwrite(data, tmp_path):
    call("train", "recommend", data, "--out", tmp_path / "r", *QUICK)
    written = (tmp_path / "r" / "checkpoint" / "last.safetensors").stat().st_mtime_ns
    call("train", "recommend", data, "--out", tmp_path / "r", *QUICK, "--overwrite", "--resume")
    assert (tmp_path / "r" / "checkpoint" / "last.safetensors").stat().st_mtime_ns == written


def test_an_unfinished_run_says_so(run, tmp_path):
    out, _, _ = run
    shutil.copytree(out, tmp_path / "r")
    (tmp_path / "r" / "checkpoint" / "final.safetensors").unlink()
    for command in (("evaluate", tmp_path / "r"), ("export", tmp_path / "r", tmp_path / "x")):
        with pytest.raises(ValueError, match="not finished: 4 of 4 epochs; continue it with --resume"):
            call(*command)


def test_divergence_stops_the_run(data, tmp_path):
    with pytest.raises(ValueError, match="diverged; start anew with a lower --lr"):
        call("train", "recommend", data, "--out", tmp_path / "r", *QUICK, "--optimizer", "sgd", "--lr", 1e9)


def test_a_refused_engine_leaves_no_folder(data, tmp_path):
    with pytest.raises(ValueError, match="use --engine torch"):
        call("train", "recommend", data, "--out", tmp_path / "r", *QUICK, "--optimizer", "adam", "--engine", "fused")
    assert not (tmp_path / "r").exists()


def test_no_run_there(tmp_path):
    with pytest.raises(ValueError, match=r"is no run: it has no config\.json"):
        call("evaluate", tmp_path)


def test_a_damaged_checkpoint(run, tmp_path):
    out, _, _ = run
    shutil.copytree(out, tmp_path / "r")
    final = tmp_path / "r" / "checkpoint" / "final.safetensors"
    final.write_bytes(final.read_bytes()[:100])
    with pytest.raises(ValueError, match="is no checkpoint of antembed"):
        call("evaluate", tmp_path / "r")


def test_a_kill_before_the_first_checkpoint_is_no_dead_end(run, data, tmp_path):
    out, _, _ = run
    (tmp_path / "r" / "checkpoint").mkdir(parents=True)  # killed before the settings were written
    (tmp_path / "r" / "checkpoint" / f".last.safetensors.x7{TEMPORARY}").write_bytes(b"half")
    (tmp_path / "r" / f".config.json.x7{TEMPORARY}").write_bytes(b"half")
    (tmp_path / "r" / ".lock").write_text(json.dumps({"pid": 1, "host": socket.gethostname()}))
    call("train", "recommend", data, "--out", tmp_path / "r", *QUICK)
    assert not [path for path in (tmp_path / "r").rglob("*") if path.name.startswith(".")]
    assert (tmp_path / "r" / "users.ant").read_bytes() == (out / "users.ant").read_bytes()
    assert not list((tmp_path / "r" / "checkpoint").glob(".*"))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").touch()
    with pytest.raises(ValueError, match=r"is no run, but has thesis\.tex in it"):
        call("train", "recommend", data, "--out", tmp_path / "other", *QUICK)


def test_other_data_are_refused(run, data, tmp_path):
    out, _, _ = run
    lines = data.read_text().splitlines()
    (tmp_path / "other.csv").write_text("\n".join([*lines[:-1], "u1,1,9.0"]))
    with pytest.raises(ValueError, match="is not what the run was trained on"):
        call("evaluate", out, "--data", tmp_path / "other.csv")


def test_tables_beyond_fp16_are_written_in_fp32_without_training_again(tmp_path):
    data = tmp_path / "large.csv"
    data.write_text("user,item,rating\n" + "".join(f"u{n % 17},i{n % 23},{1e6 * (n % 5)}\n" for n in range(300)))
    train = ("train", "recommend", data, "--solver", "coordinate_descent", "--embedding-dim", 2, "--anchors", 2, "--epochs", 1,
             "--out", tmp_path / "r")  # fmt: skip
    with pytest.raises(ValueError, match=r"is trained, but .*beyond fp16.*--resume and --values fp32"):
        call(*train, "--values", "fp16")
    last = (tmp_path / "r" / "checkpoint" / "last.safetensors").stat().st_mtime_ns
    call(*train, "--values", "fp32", "--resume")
    assert (tmp_path / "r" / "checkpoint" / "last.safetensors").stat().st_mtime_ns == last


def test_ctrl_c_says_how_to_go_on(data, tmp_path, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("antembed.train.stochastic.Stochastic.fit", interrupted)
    result = CliRunner().invoke(app, ["train", "recommend", str(data), "--epochs", "2", "--out", str(tmp_path / "r")])
    assert result.exit_code == 1
    assert "--resume" in result.stderr
