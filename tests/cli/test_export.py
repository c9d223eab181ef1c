"""What `antembed export` writes stands alone: it works wherever a run does, without the data and without the checkpoint."""

import json
import shutil
import subprocess
import sys

import numpy as np
import polars as pl
import pytest
import torch
from tests.command import QUICK, call, write_ratings
from typer.testing import CliRunner

import antembed as ant
from antembed.cli.app import app
from antembed.config.shared import VERSION
from antembed.data.topics import write_topics
from antembed.inference import folder as folder_format
from antembed.inference.text import light_predictor
from antembed.labels import pack_parquet
from antembed.runs import RunFolder, load_model, open_predictor

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
    exports = {name: exported(rated, tmp_path / name, "--values", name) for name in ("fp32", "fp16", "int8")}
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


def test_what_users_have_rated_is_compact_and_may_be_left_out(rated, small, tmp_path):
    ratings = pl.read_csv(rated.parent / "moved.csv")
    size = (small["int8"] / "seen.safetensors").stat().st_size
    assert size < 2 * len(ratings) + 8 * 201 + 300  # two bytes a rating
    private = exported(rated, tmp_path / "private", "--no-seen")
    assert not (private / "seen.safetensors").exists()
    with pytest.raises(ValueError, match="does not hold what users have rated; say --seen to rank all items"):
        call("recommend", private, "u3")
    assert call("recommend", private, "u3", "--seen") == call("recommend", rated, "u3", "--seen")


def test_a_stream_is_exported_with_what_its_file_says(tmp_path):
    data = write_ratings(tmp_path / "ratings.csv")
    online = ("--solver", "online", "--epochs", 2, "--anchors", 5, "--batch-size", 6000)
    call("train", "recommend", data, *online, "--out", tmp_path / "run")
    small = exported(tmp_path / "run", tmp_path / "small")
    assert call("recommend", small, "u3", "--json") == call("recommend", tmp_path / "run", "u3", "--json")
    data.unlink()
    with pytest.raises(
        ValueError, match=r"does not hold what users have rated, and .*ratings\.csv is no file; export with --no-seen"
    ):
        exported(tmp_path / "run", tmp_path / "again")


def test_partial_fit_goes_on_from_an_export(tmp_path):
    data = write_ratings(tmp_path / "ratings.csv")
    call("train", "recommend", data, "--solver", "coordinate_descent", "--epochs", 2, "--anchors", 5, "--out", tmp_path / "run")
    model = ant.Recommender.load(exported(tmp_path / "run", tmp_path / "small"))
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
    small = exported(rated, tmp_path / "small")
    for command in (("evaluate", small), ("export", small, tmp_path / "again")):
        with pytest.raises(ValueError, match=r"exported or saved model without a checkpoint; give the run it is from"):
            call(*command)
    with pytest.raises(ValueError, match="is the run itself; export it into another folder"):
        call("export", rated, rated)
    with pytest.raises(ValueError, match="small has a model already; choose another folder, or say --overwrite"):
        call("export", rated, small)
    call("export", rated, small, "--overwrite")
    labels = pl.read_parquet(small / "users.labels.parquet")
    (small / "users.labels.parquet").write_bytes(pack_parquet(labels[:-1]))
    with pytest.raises(ValueError, match=r"users\.ant has 200 rows, users\.labels\.parquet 199; export them together"):
        call("recommend", small, "u3")
    labels.write_parquet(small / "users.labels.parquet")
    with pytest.raises(ValueError, match=r"users\.labels\.parquet has no checksum"):
        call("recommend", small, "u3")
    (small / "users.labels.parquet").write_bytes(pack_parquet(labels))
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
    assert done.stderr == "user 'eve' has no ratings in this run: these are the best items on the whole\n"
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
