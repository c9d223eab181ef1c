"""The first job from end to end, through the command line as a user would."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from unittest import mock

import numpy as np
import polars as pl
import pytest
import torch
from antembed.pipelines.recommend import reopen_model, train
from antembed.pipelines.settings import TEXT_ONLY, Settings, build_model
from antembed.reporting import read_records
from typer.testing import CliRunner

import antembed as ant
import killed
from antembed.cli.app import app
from antembed.data.synthetic import planted, ratings
from antembed.embedding import EMBEDDINGS

KEYS = {"task", "embedding", "anchors", "metric", "validation", "test", "parameters", "nnz", "bytes", "seconds", "epochs",
        "seed", "command"}  # fmt: skip


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    users, items = planted(200, 8, anchors=4, exponent=0.3, seed=0), planted(80, 8, anchors=4, exponent=0.3, seed=1)
    r = ratings(users, items, 12_000, noise=0.2, seed=2)
    file = tmp_path_factory.mktemp("data") / "ratings.csv"
    rows = (f"u{u},{i},{v:.4f}" for u, i, v in zip(r.users, r.items, r.values, strict=True))
    file.write_text("user,item,rating\n" + "\n".join(rows))
    return file


def call(*arguments, code=0):
    words = [str(a) for a in arguments]
    with mock.patch("sys.argv", ["antembed", *words]):
        result = CliRunner().invoke(app, words)
    if isinstance(result.exception, ValueError | OSError):
        raise result.exception
    assert result.exit_code == code, result.output
    return result.stdout


QUICK = ("--epochs", 4, "--batch-size", 128, "--dimensions", 8, "--anchors", "6,5", "--lr", 0.03, "--l1", 1e-4)


@pytest.fixture(scope="module")
def run(data, tmp_path_factory):
    out = tmp_path_factory.mktemp("run") / "r"
    record = out.parent / "records.jsonl"
    told = json.loads(call("train", "recommend", data, "--out", out, *QUICK, "--json", "--record", record))
    return out, told, record


def test_json_has_the_promised_keys(run):
    _, told, _ = run
    assert told.keys() >= KEYS
    assert told["anchors"].keys() == told["nnz"].keys() == {"users", "items"}
    assert told["metric"] == "mse"


def test_it_learns(run, data):
    _, told, _ = run
    values = np.loadtxt(data, delimiter=",", skiprows=1, usecols=2)
    assert told["test"]["mse"] < 0.6 * values.var()
    assert told["test"]["rmse"] == pytest.approx(told["test"]["mse"] ** 0.5)
    assert told["test"]["examples"] == 1200


def test_the_folder_is_a_run(run):
    out, told, _ = run
    assert {p.name for p in out.iterdir()} >= {"config.json", "metrics.jsonl", "checkpoint", "users.ant", "items.ant"}
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [row["epoch"] for row in rows] == [1, 2, 3, 4]
    assert rows[0]["l1"] < rows[3]["l1"] == 1e-4  # what is logged is what was in force
    best = min(rows, key=lambda row: row["objective"])
    assert told["validation"]["mse"] == pytest.approx(best["validation"]["mse"], rel=0.01)  # and then pruned
    assert sum(told["nnz"].values()) < sum(best["nnz"].values())


def test_bytes_are_the_files(run):
    out, told, _ = run
    assert told["bytes"] == sum((out / name).stat().st_size for name in ("users.ant", "items.ant"))


def test_parameters_are_counted_with_the_biases(run):
    out, told, _ = run
    tables = [ant.load_table(out / name) for name in ("users.ant", "items.ant")]
    assert told["parameters"] == sum(table.parameters for table in tables)  # the global bias is the items' offset
    assert told["nnz"] == {"users": tables[0].nnz, "items": tables[1].nnz}


def test_the_files_predict_what_the_model_predicts(run, data):
    """NumPy on the exported tables gives the recorded test error: the second route."""
    from antembed.data import read_ratings, split

    out, told, _ = run
    users, items = ant.load_table(out / "users.ant"), ant.load_table(out / "items.ant")
    r = read_ratings(data)
    test = split(len(r), "80/10/10", 0)["test"]
    u, i = r.users[test], r.items[test]
    predicted = (users[u] * items[i]).sum(axis=1) + users.bias_of(u) + items.bias_of(i)
    assert np.square(predicted - r.values[test]).mean() == pytest.approx(told["test"]["mse"], rel=1e-4)


def test_records_say_how_to_make_them_again(run, data):
    _, told, record = run
    (row,) = read_records(record)
    assert row["test"] == told["test"]
    assert row["command"].startswith(f"antembed train recommend {data} --out")
    assert row.keys() >= {"commit", "versions", "threads", "date", "seed"}


def test_evaluate_says_the_same(run):
    out, told, _ = run
    again = json.loads(call("evaluate", out, "--json"))
    assert again["test"] == told["test"]
    assert again["parameters"] == told["parameters"]
    assert "test MSE" in call("evaluate", out)


def test_evaluate_leaves_the_run_alone(run):
    out, _, _ = run
    before = {p: p.read_bytes() for p in out.rglob("*") if p.is_file()}
    call("evaluate", out)
    assert {p: p.read_bytes() for p in out.rglob("*") if p.is_file()} == before


def test_export_and_inspect(run, tmp_path):
    out, told, _ = run
    call("export", out, tmp_path / "items.ant", "--table", "items", "--values", "fp16", "--encoding", "csr")
    about = json.loads(call("inspect", tmp_path / "items.ant", "--json"))
    assert (about["objects"], about["dimensions"], about["encoding"], about["values"]) == (80, 8, "csr", "fp16")
    assert about["nnz"] == told["nnz"]["items"]
    assert about["bytes"] == (tmp_path / "items.ant").stat().st_size
    assert "times smaller" in call("inspect", tmp_path / "items.ant")
    call("export", out, tmp_path / "all")
    written = sorted((tmp_path / "all").iterdir())
    assert [p.name for p in written] == ["items.ant", "items.labels.parquet", "users.ant", "users.labels.parquet"]
    assert all(p.read_bytes() == (out / p.name).read_bytes() for p in written)
    call("export", out, tmp_path / "x.ant", code=2)
    call("export", out, tmp_path / "x.ant", "--table", "films", code=2)


@pytest.mark.parametrize(
    "more",
    [
        ("--embedding", "full", "--no-biases"),
        ("--embedding", "softmax-mixture"),
        ("--split", "90/10", "--optimizer", "sgd", "--lr", 0.5),
        ("--optimizer", "adam", "--schedule", "cosine", "--values", "fp16"),
    ],
)
def test_other_settings_work(data, tmp_path, more):
    told = json.loads(call("train", "recommend", data, "--out", tmp_path / "r", *QUICK, *more, "--epochs", 1, "--json"))
    assert np.isfinite(told["test"]["mse"])
    assert (told["validation"] is None) == ("90/10" in more)


@pytest.mark.parametrize("embedding", [name for name in EMBEDDINGS if name not in TEXT_ONLY])
def test_every_embedding_learns_and_is_opened_again(data, tmp_path, embedding):
    """Files and checkpoint, opened without the data (so without counts of users and items), say the same."""
    settings = Settings(
        str(data),
        embedding=embedding,
        anchors=(60, 40) if embedding in ("frequency", "hashed") else (6, 5),
        dimensions=8,
        l1=1e-6,
        prune=0,
        biases=False,
        lr=0.2,
        batch_size=128,
        epochs=3,
        engine="torch",
    )
    torch.set_num_threads(1)  # batches this small are faster so, on a busy machine many times
    told = train(settings, tmp_path / "r")
    rows = [json.loads(line) for line in (tmp_path / "r" / "metrics.jsonl").read_text().splitlines()]
    assert min(row["train_loss"] for row in rows[1:]) < 0.93 * rows[0]["train_loss"]
    tables = {name: ant.load_table(tmp_path / "r" / f"{name}.ant") for name in ("users", "items")}
    for name, layer in reopen_model(tmp_path / "r").tables.items():
        np.testing.assert_allclose(tables[name][:], layer.to_dense().detach().numpy(), atol=1e-5)
    if embedding != "softmax-mixture":  # whose files have one more column
        assert told["parameters"] == sum(table.parameters for table in tables.values())


def test_tables_for_text_are_not_offered_for_ratings():
    for name in TEXT_ONLY:
        assert name in EMBEDDINGS
        with pytest.raises(ValueError, match=f"embedding '{name}' is none of: anchor, frequency, full"):
            Settings(data="", embedding=name)


@pytest.mark.parametrize("embedding", ["slimming", "slimming-transform", "anchor"])
def test_keep_says_how_many_non_zeros_are_left(data, tmp_path, embedding):
    more = ("--embedding", embedding, "--epochs", 1, "--keep", 300, "--threads", 1)
    told = json.loads(call("train", "recommend", data, "--out", tmp_path / "r", *QUICK, *more, "--json"))
    assert sum(told["nnz"].values()) == 300


def test_keep_is_not_silently_ignored():
    with pytest.raises(ValueError, match="keep=300 is for --solver prox; coordinate descent keeps what is worth its --price"):
        Settings(data="", solver="cd", keep=300)


def test_int8_and_packed_files_predict_nearly_the_same(run, tmp_path):
    out, told, _ = run
    call("export", out, tmp_path / "small", "--values", "int8", "--encoding", "packed")
    sizes = []
    for name in ("users", "items"):
        table, small = ant.load_table(out / f"{name}.ant"), ant.load_table(tmp_path / "small" / f"{name}.ant")
        everybody = np.arange(len(table))
        assert (small.nnz, small.parameters) == (table.nnz, table.parameters)
        assert np.abs(small[:] - table[:]).max() < 0.03 * np.abs(table[:]).max()
        np.testing.assert_allclose(small.bias_of(everybody), table.bias_of(everybody), atol=0.02)
        sizes.append(small.size)
    assert sum(sizes) < told["bytes"] / 2


def test_the_same_seed_gives_the_same_bytes(run, data, tmp_path):
    out, _, _ = run
    call("train", "recommend", data, "--out", tmp_path / "r", *QUICK)
    for name in ("users.ant", "items.ant", "checkpoint/last.safetensors"):
        assert (tmp_path / "r" / name).read_bytes() == (out / name).read_bytes()
    call("train", "recommend", data, "--out", tmp_path / "s", *QUICK, "--seed", 1)
    assert (tmp_path / "s" / "users.ant").read_bytes() != (out / "users.ant").read_bytes()


@pytest.mark.parametrize(("engine", "epochs"), [("torch", 6), ("fused", 40)])
def test_killed_again_and_again_a_run_ends_in_the_same_bytes(data, tmp_path, engine, epochs):
    settings = [*map(str, QUICK), "--engine", engine, "--epochs", str(epochs)]
    call("train", "recommend", data, "--out", tmp_path / "whole", *settings)
    words = ["train", "recommend", str(data), "--out", str(tmp_path / "r"), *settings, "--resume"]
    for sync in (15, 16, 17):  # while a checkpoint is written, when it is there, when an epoch's line is in the log
        done = subprocess.run(
            [sys.executable, killed.__file__, str(sync), *words], stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
        )
        assert done.returncode == killed.KILLED
        assert (tmp_path / "r" / "checkpoint" / "last.safetensors").exists()
    call(*words)
    for name in ("users.ant", "items.ant", "checkpoint/last.safetensors", "checkpoint/final.safetensors"):
        assert (tmp_path / "r" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    rows = [json.loads(line)["epoch"] for line in (tmp_path / "r" / "metrics.jsonl").read_text().splitlines()]
    assert rows == list(range(1, epochs + 1))


def test_a_run_is_not_overwritten_by_accident(run, data):
    out, _, _ = run
    with pytest.raises(ValueError, match="exists; add --resume to go on with it or --overwrite"):
        call("train", "recommend", data, "--out", out, *QUICK)
    with pytest.raises(ValueError, match="was started with seed=0, not 5"):
        call("train", "recommend", data, "--out", out, *QUICK, "--resume", "--seed", 5)


def test_overwrite_replaces_a_run(data, tmp_path):
    for seed in (0, 1):
        call("train", "recommend", data, "--out", tmp_path / "r", *QUICK, "--epochs", 1, "--seed", seed, "--overwrite")
    assert json.loads((tmp_path / "r" / "config.json").read_text())["seed"] == 1


@pytest.mark.parametrize("embedding", [name for name in EMBEDDINGS if name not in TEXT_ONLY])
@pytest.mark.parametrize("objects", [(30, 20), (6040, 3706), (400_000, 50_000)])
def test_every_model_starts_near_the_mean_but_not_at_nothing(embedding, objects):
    model = build_model(Settings(data="", embedding=embedding), objects, mean=3.0)
    rng = torch.Generator().manual_seed(0)
    users, items = (torch.randint(0, V, (2000,), generator=rng) for V in objects)
    spread = (model(users, items) - 3.0).square().mean().sqrt()
    assert 1e-5 < spread < 0.5


def test_resume_wins_over_overwrite(data, tmp_path):
    call("train", "recommend", data, "--out", tmp_path / "r", *QUICK)
    written = (tmp_path / "r" / "checkpoint" / "last.safetensors").stat().st_mtime_ns
    call("train", "recommend", data, "--out", tmp_path / "r", *QUICK, "--overwrite", "--resume")
    assert (tmp_path / "r" / "checkpoint" / "last.safetensors").stat().st_mtime_ns == written


def test_a_price_is_not_charged_where_there_is_none(data, tmp_path):
    call("train", "recommend", data, "--out", tmp_path / "r", *QUICK, "--embedding", "low-rank-nonnegative", "--epochs", 1)
    row = json.loads((tmp_path / "r" / "metrics.jsonl").read_text())
    assert row["penalty"] == 0


def test_labels_say_which_row_is_who(run):
    out, _, _ = run
    users = pl.read_parquet(out / "users.labels.parquet")["label"].to_list()
    assert users == sorted(users)
    assert "u7" in users
    assert pl.read_parquet(out / "items.labels.parquet")["label"].to_list() == list(range(80))


def test_an_unfinished_run_says_so(run, tmp_path):
    out, _, _ = run
    shutil.copytree(out, tmp_path / "r")
    (tmp_path / "r" / "checkpoint" / "final.safetensors").unlink()
    for command in (("evaluate", tmp_path / "r"), ("export", tmp_path / "r", tmp_path / "x")):
        with pytest.raises(ValueError, match="not finished: 4 of 4 epochs; go on with it by --resume"):
            call(*command)


def test_divergence_stops_the_run(data, tmp_path):
    with pytest.raises(ValueError, match="diverged; start anew with a lower lr"):
        call("train", "recommend", data, "--out", tmp_path / "r", *QUICK, "--optimizer", "sgd", "--lr", 1e9)


def test_a_refused_engine_leaves_no_folder(data, tmp_path):
    with pytest.raises(ValueError, match="use --engine torch"):
        call("train", "recommend", data, "--out", tmp_path / "r", *QUICK, "--optimizer", "adam", "--engine", "fused")
    assert not (tmp_path / "r").exists()


def test_few_objects_start_near_the_mean(tmp_path):
    (tmp_path / "few.csv").write_text("user,item,rating\n" + "".join(f"{n % 7},{n % 11},3\n" for n in range(60)))
    told = json.loads(call("train", "recommend", tmp_path / "few.csv", "--out", tmp_path / "r", "--epochs", 3, "--json"))
    assert told["test"]["mse"] < 0.05


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
    (tmp_path / "r" / "checkpoint" / ".last.safetensors.x7").write_bytes(b"half")
    call("train", "recommend", data, "--out", tmp_path / "r", *QUICK)
    assert (tmp_path / "r" / "users.ant").read_bytes() == (out / "users.ant").read_bytes()
    assert not list((tmp_path / "r" / "checkpoint").glob(".*"))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").touch()
    with pytest.raises(ValueError, match=r"is no run, but has thesis\.tex in it"):
        call("train", "recommend", data, "--out", tmp_path / "other", *QUICK)


def test_epochs_are_compared_at_the_full_price(data, tmp_path):
    """Early in the ramp a non-zero is cheap; that must not make an early epoch the best one."""
    call("train", "recommend", data, "--out", tmp_path / "r", *QUICK, "--l1-ramp", 1, "--prune", 0)
    rows = [json.loads(line) for line in (tmp_path / "r" / "metrics.jsonl").read_text().splitlines()]
    assert rows[0]["l1"] == pytest.approx(0.25e-4, rel=0.02)
    for row in rows:
        assert row["objective"] == pytest.approx(row["validation"]["loss"] + row["penalty"])
    model = reopen_model(tmp_path / "r")
    mass = sum(float(table.transform.detach().sum()) for table in model.tables.values())
    best = min(rows, key=lambda row: row["objective"])
    assert best["penalty"] == pytest.approx(1e-4 * mass, rel=1e-5)


def test_other_data_are_refused(run, data, tmp_path):
    out, _, _ = run
    lines = data.read_text().splitlines()
    (tmp_path / "other.csv").write_text("\n".join([*lines[:-1], "u1,1,9.0"]))
    with pytest.raises(ValueError, match="is not what the run was trained on"):
        call("evaluate", out, "--data", tmp_path / "other.csv")


def test_ctrl_c_says_how_to_go_on(data, tmp_path, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("antembed.pipelines.steps.fit", interrupted)
    result = CliRunner().invoke(app, ["train", "recommend", str(data), "--out", str(tmp_path / "r")])
    assert result.exit_code == 1
    assert "--resume" in result.stderr


@pytest.mark.parametrize(
    "wrong",
    [("--anchors", "0"), ("--anchors", "a,b"), ("--embedding", "none"), ("--split", "x"), ("--schedule", "x"),
     ("--optimizer", "x"), ("--engine", "x"), ("--values", "int3"), ("--batch-size", "0"), ("--epochs", "0"), ("--l1", "-1"),
     ("--threads", "0"), ("--seed", "-1"), ("--keep", "-1"), ("--alpha", "-1"), ("--l1-ramp", "2"), ("--device", "nowhere"),
     ("--device", "cuda")],
)  # fmt: skip
def test_wrong_calls_exit_with_2(data, wrong):
    call("train", "recommend", data, *wrong, code=2)


def test_errors_are_one_line_and_exit_1(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "antembed", "inspect", str(tmp_path / "none.ant")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "command", [(), ("train", "recommend"), ("evaluate",), ("export",), ("inspect",), ("demo",), ("bench",), ("run",)]
)
def test_every_command_has_help_with_an_example(command):
    text = call(*command, "--help")
    assert "antembed demo" in text if not command else "Example:" in text


def test_the_demo_compares(monkeypatch, tmp_path):
    monkeypatch.setattr("antembed.pipelines.demo.RATINGS", 6000)
    full, anchored = json.loads(call("demo", "--json", "--out", tmp_path))
    assert (full["embedding"], anchored["embedding"]) == ("full", "anchor")
    assert anchored["bytes"] < full["bytes"]
    assert (tmp_path / "anchor" / "users.ant").exists()
