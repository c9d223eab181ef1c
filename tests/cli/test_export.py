"""What `antembed export` writes stands alone: it works wherever a run does, without the data and without the checkpoint."""

import json
import shutil
import subprocess
import sys

import numpy as np
import polars as pl
import pytest
import torch
from tests.command import QUICK, call, refusal, write_ratings
from tests.recommend.old_folder import as_old
from tests.synthetic_text import write_topics
from typer.testing import CliRunner

import antembed as ant
from antembed.classify.predictor import light_predictor
from antembed.classify.task import open_predictor
from antembed.cli.app import app
from antembed.tables import model_folder as folder_format
from antembed.tables.container import pack_arrays
from antembed.tables.row_labels import read_labels, write_labels
from antembed.train.config import VERSION
from antembed.train.run import load_model
from antembed.train.run_folder import RunFolder

TEXT = ("--embedding-dim", 8, "--epochs", 3, "--batch-size", 32, "--lr", 0.02, "--threads", 1, "--anchors", 5)
KINDS = {
    "cnn": ("classify", (*TEXT, "--model", "cnn")),
    "mean": ("classify", (*TEXT, "--model", "mean")),
    "full": ("classify", (*TEXT[:-2], "--model", "mean", "--embedding", "full")),
    "ngrams": ("classify-ngrams", ("--budget", "2KB")),
}
LOADERS = {
    "cnn": ant.TextClassifier,
    "mean": ant.TextClassifier,
    "full": ant.TextClassifier,
    "ngrams": ant.HashedNgramClassifier,
}


def exported(run, out, *more):
    call("export", run, out, *more)
    return out


@pytest.fixture(scope="module")
def rated(tmp_path_factory):
    home = tmp_path_factory.mktemp("rated")
    call("train", "recommend", write_ratings(home / "ratings.csv"), "--out", home / "run", *QUICK)
    return home / "run"


@pytest.fixture
def small(rated, tmp_path):
    """fp32, int8 and fp16; the run's checkpoint and data are somewhere else when they are used."""
    exports = {name: exported(rated, tmp_path / name, "--values", name, "--with-seen") for name in ("fp32", "fp16", "int8")}
    with_data = rated.parent / "ratings.csv"
    with_data.rename(rated.parent / "moved.csv")
    yield exports
    (rated.parent / "moved.csv").rename(with_data)


def test_an_exported_recommender_is_the_run(rated, small):
    words = ("u3", "u7", "nobody", "--items", 6, "--json")
    assert call("recommend", small["fp32"], *words) == call("recommend", rated, *words)
    assert call("similar", small["fp32"], 7, "--json") == call("similar", rated, 7, "--json")
    wanted, users = ant.Recommender.load(rated), [f"u{n}" for n in range(200)]
    items = np.arange(200) % 80
    for values, folder in small.items():
        found = ant.Recommender.load(folder)
        assert found.config.values == values
        error = np.abs(found.predict(users, items) - wanted.predict(users, items)).max()
        assert error <= {"fp32": 0.0, "fp16": 0.01, "int8": 0.1}[values]
        assert found.recommend(users).shape == wanted.recommend(users).shape
        assert "items without a vector" in call("explain", folder)


def test_nothing_of_this_machine_is_in_an_export(rated, small):
    config = (small["int8"] / "config.json").read_text()
    assert str(rated.parent) in (rated / "config.json").read_text()
    assert str(rated.parent) not in config
    assert json.loads(config)["config"]["input"]["data"] == ""


def test_what_users_have_rated_is_left_out_unless_asked_for_and_then_coded(rated, small, tmp_path):
    pairs = pl.read_csv(rated.parent / "moved.csv").select("user", "item")
    assert (small["int8"] / "seen.safetensors").stat().st_size < len(pairs) / 2 + 500  # less than four bits a pair
    assert not (small["int8"] / "ratings.safetensors").exists()
    private = exported(rated, tmp_path / "private")
    assert not (private / "seen.safetensors").exists()
    asked = CliRunner().invoke(app, ["recommend", str(private), "u3", "u7", "--items", "5"])
    assert asked.exit_code == 0
    assert asked.stderr == (
        "items that users have rated are not filtered: this folder does not hold them; "
        "write one that does: antembed export RUN FOLDER --with-seen\n"
    )
    assert asked.stdout == call("recommend", rated, "u3", "u7", "--items", 5, "--seen")
    assert CliRunner().invoke(app, ["recommend", str(private), "u3", "--seen"]).stderr == ""
    call("export", rated, small["int8"], "--overwrite")
    assert not (small["int8"] / "seen.safetensors").exists()  # of the export before
    assert "--with-seen goes with a folder" in refusal("export", rated, tmp_path / "x.ant", "--table", "items", "--with-seen")


def test_the_bytes_of_an_export_are_said_by_part(rated, tmp_path):
    done = CliRunner().invoke(app, ["export", str(rated), str(tmp_path / "small"), "--with-seen"])
    sizes = {file.name: file.stat().st_size for file in (tmp_path / "small").iterdir()}
    result = json.loads((rated / "result.json").read_text())
    assert result["seen_bytes"] == sizes.pop("seen.safetensors")
    parts = result["export_bytes"]
    assert parts == {
        "tables": sizes["users.ant"] + sizes["items.ant"],
        "labels": sizes["users.labels.safetensors"] + sizes["items.labels.safetensors"],
        "popularity": sizes["popularity.safetensors"],
        "config": sizes["config.json"],
        "total": sum(sizes.values()),
    }
    total = parts["total"] + result["seen_bytes"]
    assert done.stderr.splitlines()[-1] == (
        f"{tmp_path}/small: {total:,} bytes: tables {parts['tables']:,}, seen {result['seen_bytes']:,}, "
        f"popularity {parts['popularity']:,}, labels {parts['labels']:,}, config {parts['config']:,}"
    )


@pytest.mark.parametrize("index", [True, False])
def test_an_export_of_an_older_version_is_opened(rated, small, tmp_path, index):
    """Labels in Parquet (the oldest without an index of them), no popularity."""
    old = as_old(small["int8"], tmp_path / "old", index=index)
    for words in (("recommend", "u3", "u7", "--json"), ("recommend", "u3", "--seen", "--json"), ("similar", 7, "--json")):
        command, *rest = words
        assert call(command, old, *rest) == call(command, small["int8"], *rest)
    users = [f"u{n}" for n in range(50)]
    found, wanted = ant.Recommender.load(old), ant.Recommender.load(small["int8"])
    assert found.recommend(users).equals(wanted.recommend(users))
    assert call("explain", old) == call("explain", small["int8"])
    popular = CliRunner().invoke(app, ["recommend", str(old), "nobody"])
    assert popular.stderr == "user 'nobody' is unknown here: the list is by popularity\n"  # which the pairs say
    (old / "seen.safetensors").unlink()
    biases = CliRunner().invoke(app, ["recommend", str(old), "nobody", "--seen"])
    assert "by the items' biases, as this older folder has no popularity" in biases.stderr


def test_a_stream_is_exported_with_what_its_file_says(tmp_path):
    data = write_ratings(tmp_path / "ratings.csv")
    online = ("--solver", "online", "--epochs", 2, "--anchors", 5, "--batch-size", 6000, "--l0-penalty", 0.1, "--ridge", 1)
    call("train", "recommend", data, *online, "--out", tmp_path / "run")
    small = exported(tmp_path / "run", tmp_path / "small", "--with-seen")
    assert call("recommend", small, "u3", "--json") == call("recommend", tmp_path / "run", "u3", "--json")
    popular = call("recommend", small, "nobody", "--json")
    data.unlink()
    with pytest.raises(
        ValueError, match=r"does not hold what users have rated, and .*ratings\.csv is no file; export without --with-seen"
    ):
        exported(tmp_path / "run", tmp_path / "again", "--with-seen")
    assert call("recommend", exported(tmp_path / "run", tmp_path / "third"), "nobody", "--json") == popular


def test_partial_fit_goes_on_from_an_export(tmp_path):
    data = write_ratings(tmp_path / "ratings.csv")
    call("train", "recommend", data, "--solver", "coordinate_descent", "--epochs", 2, "--anchors", 5, "--out", tmp_path / "run")
    model = ant.Recommender.load(exported(tmp_path / "run", tmp_path / "small", "--with-seen"))
    assert model.partial_fit(["new", "new"], [3, 4], [4.0, 5.0]).recommend(["new"], k=2)["item"].is_in([3, 4]).sum() == 0


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "train.csv"
    write_topics(path, 500, 300, classes=3, length=20, purity=0.6)
    return path


@pytest.fixture(scope="module", params=KINDS)
def text_run(request, texts, tmp_path_factory):
    task, options = KINDS[request.param]
    out = tmp_path_factory.mktemp(request.param) / "run"
    call("train", task, texts, "--out", out, *options)
    return request.param, out


def test_an_exported_classifier_is_the_run(text_run, texts, tmp_path):
    kind, run = text_run
    small = exported(run, tmp_path / "small", "--values", "fp32")
    assert not (small / "checkpoint").exists()
    assert call("predict", small, texts, "--json") == call("predict", run, texts, "--json")
    found, wanted = LOADERS[kind].load(small), LOADERS[kind].load(run)
    some = ["", None, "no such words", *pl.read_csv(texts, has_header=False).to_series(1)[:50]]
    assert np.array_equal(found.predict_proba(some), wanted.predict_proba(some))
    assert found.classes_.tolist() == wanted.classes_.tolist()
    coarse = LOADERS[kind].load(exported(run, tmp_path / "coarse", "--values", "int8"))
    np.testing.assert_allclose(coarse.predict_proba(some), wanted.predict_proba(some), atol=0.05)
    if kind in ("cnn", "mean"):
        assert "anchor 0" in call("explain", small)


def test_the_bytes_of_an_exported_classifier_are_in_the_result(text_run, tmp_path):
    _, run = text_run
    sizes = {file.name: file.stat().st_size for file in exported(run, tmp_path / "small").iterdir()}
    counted = json.loads((run / "result.json").read_text())["export_bytes"]
    assert counted["total"] == sum(sizes.values())
    assert counted.get("vocabulary", 0) == sizes.get("vocabulary.parquet", 0)
    assert counted.get("weights", 0) == sizes.get("model.safetensors", 0)
    assert counted.get("explanation", 0) == sizes.get("ngrams.json", 0)


def test_what_an_estimator_saves_is_an_export(text_run, texts, tmp_path):
    kind, run = text_run
    LOADERS[kind].load(run).save(tmp_path / "saved")
    small = exported(run, tmp_path / "small")
    for file in small.iterdir():
        assert file.name == "config.json" or (tmp_path / "saved" / file.name).read_bytes() == file.read_bytes()
    assert call("predict", tmp_path / "saved", texts) == call("predict", run, texts)


def test_the_files_say_what_the_network_says(text_run, texts):
    """Two routes: the table's file with the other weights, and the model of the checkpoint."""
    kind, run = text_run
    if kind == "ngrams":
        return
    predictor = open_predictor(run)
    assert (light_predictor(run) is None) == (kind == "cnn")
    documents = predictor.read_file(str(texts), None, None)[0]
    with torch.no_grad():
        scores = load_model(run)(torch.from_numpy(documents.tokens), torch.from_numpy(documents.starts))
    wanted = torch.softmax(scores, 1).numpy()
    np.testing.assert_allclose(np.concatenate(list(predictor.probabilities(documents))), wanted, atol=1e-5)


def test_clear_errors(rated, tmp_path):
    small = exported(rated, tmp_path / "small", "--with-seen")
    for command in (("evaluate", small), ("export", small, tmp_path / "again")):
        with pytest.raises(ValueError, match=r"exported or saved model without a checkpoint; give the run it is from"):
            call(*command)
    with pytest.raises(ValueError, match="is the run itself; export it into another folder"):
        call("export", rated, rated)
    with pytest.raises(ValueError, match="small has a model already; choose another folder, or say --overwrite"):
        call("export", rated, small)
    call("export", rated, small, "--overwrite", "--with-seen")
    labels = read_labels(small)["users"]
    write_labels(small, {"users": labels[:-1]})
    with pytest.raises(ValueError, match=r"users\.ant has 200 rows, but there are 199 labels; export them together"):
        call("recommend", small, "u3")
    labels.to_frame().write_parquet(small / "users.labels.parquet")
    with pytest.raises(ValueError, match=r"users\.labels\.parquet has no checksum"):
        call("recommend", small, "u3")
    write_labels(small, {"users": labels})
    popularity = (small / "popularity.safetensors").read_bytes()
    (small / "popularity.safetensors").write_bytes(pack_arrays({"popularity": np.zeros(79, np.uint8)}))
    with pytest.raises(ValueError, match=r"popularity\.safetensors has 79 items, the table has 80; export them together"):
        call("recommend", small, "u3")
    (small / "popularity.safetensors").write_bytes(popularity)
    (small / "seen.safetensors").write_bytes(b"no")
    with pytest.raises(ValueError, match=r"seen\.safetensors is damaged"):
        call("recommend", small, "u3")


def test_a_run_that_has_not_finished_predicts_nothing(text_run, texts, tmp_path):
    _, run = text_run
    shutil.copytree(run, tmp_path / "run")
    for file in [*(tmp_path / "run").glob("*.ant"), *(tmp_path / "run").glob("*.ngrams")]:
        file.unlink()
    with pytest.raises(ValueError, match="the run is not finished; continue it with --resume"):
        call("predict", tmp_path / "run", texts)


def test_a_run_of_ratings_predicts_no_classes(rated, texts):
    with pytest.raises(ValueError, match="a run of recommend predicts no classes"):
        call("predict", rated, texts)


def test_the_version_of_the_format_is_that_of_the_configs(rated):
    assert folder_format.VERSION == VERSION == RunFolder(rated).raw()["version"]


def test_unknown_labels_are_told_in_one_line(rated, tmp_path):
    with pytest.raises(
        ValueError, match=r"^no item 'unknown' among the 80 that have been rated; labels are numbers here, from 0 to 79"
    ):
        call("similar", rated, "unknown")
    names = pl.DataFrame({"user": ["ann", "bob"] * 9, "item": ["Alien", "Aliens", "Heat"] * 6, "rating": [1.0, 4, 5] * 6})
    model = ant.Recommender(anchors=2, embedding_dim=2, epochs=1).fit(names)
    model.save(tmp_path / "films")
    with pytest.raises(ValueError, match=r"no item 'Alian' among the 3 .*; did you mean 'Alien' or 'Aliens'\?"):
        call("similar", tmp_path / "films", "Alian")
    done = CliRunner().invoke(app, ["recommend", str(tmp_path / "films"), "ann", "eve", "--seen"])
    assert "user 'eve' is unknown here: the list is by popularity\n" in done.stderr
    assert done.exit_code == 0


def test_an_unknown_item_is_one_line_and_exit_1(rated):
    words = [sys.executable, "-m", "antembed", "similar", str(rated), "unknown"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == "error: no item 'unknown' among the 80 that have been rated; labels are numbers here, from 0 to 79\n"


def test_answers_that_are_not_about_the_text_are_counted_once(text_run):
    kind, run = text_run
    done = CliRunner().invoke(app, ["predict", str(run), "-"], input="a b\n\nqqq www\nzzz\n\n\n\n")
    assert len(done.stdout.splitlines()) == 7
    empty = "4 of 7 lines (2, 5, 6, …) are empty (no words): the answer is the model's for no words at all"
    strange = "without a word that the model knows: the answer is not about the text"
    assert done.stderr.splitlines()[0] == empty
    assert kind == "ngrams" or strange in done.stderr.splitlines()[1]
    one = CliRunner().invoke(app, ["predict", str(run), "-"], input="\n")
    assert one.stderr.startswith("line 1 is empty")
