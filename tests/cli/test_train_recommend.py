"""Training on ratings from end to end, through the command line as a user would."""

import json
import subprocess
import sys

import numpy as np
import pytest
from tests.command import QUICK, call, refusal, write_ratings

import antembed as ant
from antembed.recommend.dataset import cut
from antembed.recommend.read_ratings import read_ratings
from antembed.sweep.records import read_records
from antembed.tables.row_labels import read_labels

KEYS = {"task", "embedding", "anchors", "metric", "validation", "test", "parameters", "nnz", "bytes", "seconds", "epochs",
        "seed", "command"}  # fmt: skip


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_ratings(tmp_path_factory.mktemp("data") / "ratings.csv")


@pytest.fixture(scope="module")
def run(data, tmp_path_factory):
    out = tmp_path_factory.mktemp("run") / "r"
    record = out.parent / "records.jsonl"
    result = json.loads(call("train", "recommend", data, "--out", out, *QUICK, "--json", "--record", record))
    return out, result, record


def test_json_has_the_promised_keys(run):
    _, result, _ = run
    assert result.keys() >= KEYS
    assert result["anchors"].keys() == result["nnz"].keys() == {"users", "items"}
    assert result["metric"] == "mse"


def test_it_learns(run, data):
    _, result, _ = run
    test = cut(read_ratings(data), "80/10/10", 0).test
    values = np.loadtxt(data, delimiter=",", skiprows=1, usecols=2)
    assert result["test"]["mse"] < 0.6 * values.var()
    assert result["test"]["rmse"] == pytest.approx(result["test"]["mse"] ** 0.5)
    assert result["test"]["examples"] == len(test)


def test_bytes_are_the_files(run):
    out, result, _ = run
    assert result["bytes"] == sum((out / name).stat().st_size for name in ("users.ant", "items.ant"))


def test_parameters_are_counted_with_the_biases(run):
    out, result, _ = run
    tables = [ant.load_table(out / name) for name in ("users.ant", "items.ant")]
    assert result["parameters"] == sum(table.parameters for table in tables)  # the global bias is the items' offset
    assert result["nnz"] == {"users": tables[0].nnz, "items": tables[1].nnz}


def test_the_files_predict_what_the_model_predicts(run, data):
    """NumPy on the exported tables gives the recorded test error: the second route."""
    out, result, _ = run
    users, items = ant.load_table(out / "users.ant"), ant.load_table(out / "items.ant")
    r = read_ratings(data)
    test = cut(r, "80/10/10", 0).test.rows
    u, i = r.users[test], r.items[test]
    predicted = (users[u] * items[i]).sum(axis=1) + users.bias_of(u) + items.bias_of(i)
    assert np.square(predicted - r.values[test]).mean() == pytest.approx(result["test"]["mse"], rel=1e-4)


def test_records_say_how_to_make_them_again(run, data):
    _, result, record = run
    (row,) = read_records(record)
    assert row["test"] == result["test"]
    assert row["command"].startswith(f"antembed train recommend {data} --out")
    assert row.keys() >= {"commit", "versions", "threads", "date", "seed"}


def test_labels_say_which_row_is_who(run):
    out, _, _ = run
    labels = read_labels(out)
    users = labels["users"].to_list()
    assert users == sorted(users)
    assert "u7" in users
    assert labels["items"].to_list() == list(range(80))


def test_export_and_inspect(run, tmp_path):
    out, result, _ = run
    call("export", out, tmp_path / "items.ant", "--table", "items", "--values", "fp16", "--encoding", "csr")
    about = json.loads(call("inspect", tmp_path / "items.ant", "--json"))
    assert (about["num_embeddings"], about["embedding_dim"], about["encoding"], about["values"]) == (80, 8, "csr", "fp16")
    assert about["nnz"] == result["nnz"]["items"]
    assert about["bytes"] == (tmp_path / "items.ant").stat().st_size
    assert "times smaller" in call("inspect", tmp_path / "items.ant")
    call("export", out, tmp_path / "all")
    written = sorted((tmp_path / "all").iterdir())
    names = ["config.json", "items.ant", "items.labels.safetensors", "popularity.safetensors", "users.ant"]
    names += ["users.labels.safetensors"]
    assert [p.name for p in written] == names
    assert all(p.read_bytes() == (out / p.name).read_bytes() for p in written if p.name != "config.json")
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
    result = json.loads(call("train", "recommend", data, "--out", tmp_path / "r", *QUICK, *more, "--epochs", 1, "--json"))
    assert np.isfinite(result["test"]["mse"])
    assert (result["validation"] is None) == ("90/10" in more)


def test_int8_and_packed_files_predict_nearly_the_same(run, tmp_path):
    out, result, _ = run
    call("export", out, tmp_path / "small", "--values", "int8", "--encoding", "packed")
    sizes = []
    for name in ("users", "items"):
        table, small = ant.load_table(out / f"{name}.ant"), ant.load_table(tmp_path / "small" / f"{name}.ant")
        everybody = np.arange(len(table))
        assert (small.nnz, small.parameters) == (table.nnz, table.parameters)
        assert np.abs(small[:] - table[:]).max() < 0.03 * np.abs(table[:]).max()
        np.testing.assert_allclose(small.bias_of(everybody), table.bias_of(everybody), atol=0.02)
        sizes.append(small.size)
    assert sum(sizes) < result["bytes"] / 2


@pytest.mark.parametrize(
    "wrong",
    [("--anchors", "0"), ("--anchors", "a,b"), ("--embedding", "none"), ("--split", "x"), ("--schedule", "x"),
     ("--optimizer", "x"), ("--engine", "x"), ("--values", "int3"), ("--batch-size", "0"), ("--epochs", "0"),
     ("--l1-penalty", "-1"), ("--threads", "0"), ("--threads", "-1"), ("--seed", "-1"), ("--max-nonzeros", "-1"),
     ("--alpha", "-1"), ("--solver", "x"), ("--l1-warmup", "2"), ("--device", "nowhere"), ("--device", "cuda")],
)  # fmt: skip
def test_wrong_calls_exit_with_2(data, wrong):
    call("train", "recommend", data, *wrong, code=2)


STOCHASTIC, CD = ("--solver", "stochastic"), ("--solver", "coordinate_descent")


@pytest.mark.parametrize(
    ("words", "owner"),
    [
        ((*CD, "--l1-penalty", 1e-3), "--solver stochastic"),
        ((*CD, "--lr", 0.1), "--solver stochastic"),
        ((*CD, "--optimizer", "yogi"), "--solver stochastic"),
        ((*CD, "--engine", "auto"), "--solver stochastic"),
        ((*CD, "--device", "cpu"), "--solver stochastic"),
        ((*CD, "--init", "signed"), "--solver stochastic"),
        ((*CD, "--max-nonzeros", 300), "--solver stochastic"),
        ((*CD, "--polish", 0.1), "--solver stochastic"),
        ((*CD, "--test", "t.csv"), "--solver online"),
        ((*STOCHASTIC, "--ridge", 1), "--solver coordinate_descent and --solver online"),
        ((*STOCHASTIC, "--unobserved-weight", 0.1), "--solver coordinate_descent"),
        ((*STOCHASTIC, "--penalize-biases"), "--solver coordinate_descent and --solver online"),
        (("--test", "t.csv"), "--solver online"),
    ],
)
def test_an_option_of_another_solver_names_its_owner(data, tmp_path, words, owner):
    name = words[2] if words[0] == "--solver" else words[0]
    solver = words[1] if words[0] == "--solver" else "stochastic"
    said = refusal("train", "recommend", data, "--out", tmp_path / "r", *words)
    assert f"{name} is an option of {owner}; this run has --solver {solver}" in said
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--solver", "stochastic", "--anchors", 9, "--l0-penalty", 1), "l0_penalty is for --anchors auto, not 9"),
        (("--anchor-penalty", 0.1), "anchor_penalty is for --anchors auto, not 15; leave --anchor-penalty out"),
        (("--growth", "trend"), "growth is for --anchors auto, not 15; leave --growth out"),
        (("--schedule", "cosine", "--halve-every", 9), "halve_every is for --schedule halving, not cosine"),
        (("--alpha", 0.5), "alpha is for --embedding mixed, not anchor; leave --alpha out"),
        (("--optimizer", "sgd", "--eps", 0.1), "eps is for --optimizer yogi or adam, not sgd"),
    ],
)
def test_an_option_without_effect_is_an_error(data, words, said):
    assert said in refusal("train", "recommend", data, *words)


def test_errors_are_one_line_and_exit_1(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "antembed", "inspect", str(tmp_path / "none.ant")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "command", [(), ("train", "recommend"), ("evaluate",), ("export",), ("inspect",), ("demo",), ("sweep",), ("warmup",)]
)
def test_every_command_has_help_with_an_example(command):
    text = call(*command, "--help")
    assert "antembed demo" in text if not command else "Example:" in text


@pytest.mark.slow
def test_the_demo_compares(monkeypatch, tmp_path):
    monkeypatch.setattr("antembed.recommend.synthetic.RATINGS", 6000)
    full, anchored = json.loads(call("demo", "--json", "--out", tmp_path))
    assert (full["embedding"], anchored["embedding"]) == ("full", "anchor")
    assert anchored["bytes"] < full["bytes"]
    assert (tmp_path / "anchor" / "users.ant").exists()
