"""Labelled text → classifier: the whole way, and its command line."""

import json
from dataclasses import replace
from unittest import mock

import numpy as np
import pytest
import torch
from antembed.pipelines import classify
from antembed.pipelines.explain_words import explain_words
from antembed.pipelines.text import START, TextSettings, build_model
from antembed.training import RunFolder
from antembed.training.budget import BudgetError
from typer.testing import CliRunner

from antembed.anchors import INITIALIZERS, Initializer
from antembed.cli.app import app
from antembed.data.documents import documents_of, read_documents
from antembed.data.topics import write_topics
from antembed.embedding import EMBEDDINGS

QUICK = {"dimensions": 16, "epochs": 3, "batch_size": 32, "lr": 0.01, "word_dropout": 0.1, "dropout": 0.1}


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "train.csv"
    write_topics(path, 600, 300, classes=3, length=20, purity=0.6)
    return path


@pytest.fixture(scope="module")
def learned(file):
    return read_documents(file)


def call(*words, code=0):
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == code, result.output + str(result.exception)
    return result


@pytest.mark.parametrize("model", ["cnn", "bag"])
def test_planted_topics_are_learned(model, learned, tmp_path):
    result = classify.train(
        TextSettings(data="", model=model, l1=1e-4, **QUICK | {"epochs": 6}), tmp_path / "r", learned=learned
    )
    assert result["test"]["accuracy"] > 0.8
    assert result["parameters"] < 0.5 * result["words"] * 16
    assert result["bytes"] == (tmp_path / "r" / "words.ant").stat().st_size
    assert set(result["smaller_files"]) == {"fp16", "int8", "int8 packed"}
    assert abs(result["smaller_files"]["fp16"]["test_accuracy"] - result["test"]["accuracy"]) < 0.05


@pytest.mark.parametrize("embedding", sorted(set(EMBEDDINGS) - {"frequency", "tf-idf"}))  # most words of these share a row
def test_vectors_start_at_one_size_and_words_apart_from_each_other(embedding):
    table = build_model(TextSettings(data="", embedding=embedding), 2000, 4).embedding
    E = table(torch.arange(2, 2000)).detach()
    assert 0.5 * START < float(E.square().mean().sqrt()) < 2 * START
    assert float((E - E.mean(0)).square().mean().sqrt()) > 0.5 * START


@pytest.mark.parametrize("embedding", sorted(EMBEDDINGS))
def test_every_embedding_is_trained_saved_and_found_again(embedding, learned, tmp_path):
    settings = TextSettings(data="", model="bag", embedding=embedding, l1=1e-4, **QUICK | {"epochs": 1})
    result = classify.train(settings, tmp_path / "r", learned=learned)
    job = classify.prepare(settings, learned)
    model, vocabulary, _ = classify.reopen_model(tmp_path / "r")
    assert replace(job, model=model).judge("test") == result["test"]
    assert vocabulary.words == learned.vocabulary.words


def test_a_stopped_run_ends_in_the_same_bytes(learned, tmp_path, monkeypatch):
    settings = TextSettings(data="", l1=1e-4, choice="frequency", negative=0.1, orthogonal=0.01, **QUICK)
    classify.train(settings, tmp_path / "whole", learned=learned)

    def tell(tick):
        if tick.log.get("epoch") == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        classify.train(settings, tmp_path / "parts", learned=learned, tell=tell)
    assert len(RunFolder(tmp_path / "parts").rows()) == 1
    classify.train(settings, tmp_path / "parts", learned=learned, resume=True)
    assert (tmp_path / "parts" / "words.ant").read_bytes() == (tmp_path / "whole" / "words.ant").read_bytes()


def test_patience_ends_a_run_that_gets_no_better(learned, tmp_path):
    settings = TextSettings(data="", model="bag", patience=1, **QUICK | {"lr": 0.0, "epochs": 20})
    result = classify.train(settings, tmp_path / "r", learned=learned)
    assert result["epochs"] == 2


@pytest.mark.parametrize(("budget", "unit", "amount"), [("400", "parameters", 400), ("1.5KB", "bytes", 1500)])
def test_budgets_are_met(budget, unit, amount, learned, tmp_path):
    settings = TextSettings(data="", model="bag", budget=budget, l1=1e-4, anchors=4, **QUICK | {"epochs": 6})
    result = classify.train(settings, tmp_path / "r", learned=learned)
    assert 0.6 * amount < result[unit] <= amount


def test_a_budget_that_leaves_no_weights_is_an_error(learned, tmp_path):
    settings = TextSettings(data="", model="bag", budget="10", l1=1e-4, anchors=4, **QUICK)  # an anchor alone has 16 numbers
    with pytest.raises(BudgetError, match=r"leaves no weight|every weight was lost|cannot be met"):
        classify.train(settings, tmp_path / "r", learned=learned)


def test_the_number_of_anchors_is_found(learned, tmp_path):
    settings = TextSettings(
        data="", model="bag", anchors="auto", first_anchors=6, lambda1=0.1, l1=1e-5, **QUICK | {"epochs": 12, "lr": 0.05}
    )
    result = classify.train(settings, tmp_path / "r", learned=learned)
    rows = RunFolder(tmp_path / "r").rows()
    assert next(row["growth"]["decision"] for row in rows if row.get("growth")) == "add"
    assert result["anchors"] <= 6  # those of the epoch with the lowest objective, not of the last one, nor of the fewest errors


def test_related_entries_alone_survive_a_high_price(learned, tmp_path):
    words = learned.vocabulary.words
    pairs = tmp_path / "pairs.csv"
    pairs.write_text("".join(f"{words[2]},{words[n]}\n" for n in (10, 11, 12)))
    settings = TextSettings(
        data="", model="bag", choice="frequency", anchors=3, relations=(str(pairs),), l1=10.0, prune=0.0, **QUICK
    )
    classify.train(settings, tmp_path / "r", learned=learned)
    T = classify.reopen_model(tmp_path / "r")[0].embedding.transform
    kept = {tuple(entry) for entry in T.nonzero().tolist()}
    free = {(2, 0), (3, 1), (4, 2), (10, 0), (11, 0), (12, 0)}
    assert kept <= free  # a gradient may have brought one of them to zero, but no other entry can be left
    assert len(kept) >= 4


def test_a_new_initializer_is_one_entry(learned, tmp_path, monkeypatch):
    """One entry in the dict, and a run may ask for it; what it requires is gathered for it."""
    monkeypatch.setenv("ANTEMBED_CACHE", str(tmp_path / "cache"))
    seen = []

    def longest(statistics, K, seed):
        seen.append(statistics)
        return 2 + np.argsort(-np.linalg.norm(statistics.features[2:], axis=1))[:K]

    with mock.patch.dict(INITIALIZERS, longest=Initializer(longest, frozenset({"features"}))):
        settings = TextSettings(data="", model="bag", choice="longest", anchors=4, l1=1e-4, **QUICK | {"epochs": 1})
        classify.train(settings, tmp_path / "r", learned=learned)
    words = learned.vocabulary.words
    assert RunFolder(tmp_path / "r").config()["anchor_words"] == [words[i] for i in longest(seen[0], 4, 0)]
    assert seen[0].scores is None  # no model was trained for it


@pytest.mark.parametrize("choice", ["tf-idf", "kmeans", "frequency-kmeans", "coreset", "random", "group-lasso", "vvd"])
def test_anchors_are_chosen_among_the_words(choice, learned, tmp_path, monkeypatch):
    monkeypatch.setenv("ANTEMBED_CACHE", str(tmp_path / "cache"))
    settings = TextSettings(data="", model="bag", choice=choice, anchors=4, l1=1e-4, **QUICK | {"epochs": 1})
    classify.train(settings, tmp_path / "r", learned=learned)
    chosen = RunFolder(tmp_path / "r").config()["anchor_words"]
    assert len(set(chosen)) == 4
    assert set(chosen) <= set(learned.vocabulary.words[2:])


def test_words_are_left_out_by_chance():
    words, starts = torch.arange(1000), torch.tensor([0, 400, 400, 1000])
    torch.manual_seed(0)
    left, places = classify.without_some(words, starts, 0.3)
    assert 600 < len(left) < 800
    assert places[0] == 0
    assert places[1] == places[2] == int((left < 400).sum())
    assert places[3] == len(left)


def test_the_command_line_from_a_file_to_predictions(file, tmp_path):
    out = tmp_path / "run"
    options = ["--dimensions", 16, "--epochs", 5, "--batch-size", 32, "--lr", 0.01, "--choice", "frequency", "--threads", 1]
    told = call("train", "classify", file, "--test", file, "--out", out, *options, "--record", tmp_path / "r.jsonl", "--json")
    result = json.loads(told.stdout)
    assert result["task"] == "classify"
    assert result["test"]["accuracy"] > 0.8
    assert json.loads((tmp_path / "r.jsonl").read_text())["command"].startswith("antembed")
    again = json.loads(call("evaluate", out, "--json").stdout)
    assert again["test"] == result["test"]
    lines = call("predict", out, file).stdout.splitlines()
    right = [line.split("\t")[0] for line in lines] == np.array([row["class"] for row in json_rows(file)])
    assert np.mean(right) == pytest.approx(result["test"]["accuracy"])
    said = CliRunner().invoke(app, ["predict", str(out), "-", "--json"], input="a b c\n\n")
    rows = [json.loads(line) for line in said.stdout.splitlines()]
    assert len(rows) == 2
    assert sum(rows[0]["probabilities"].values()) == pytest.approx(1, abs=1e-4)
    assert "anchor 0 (" in call("explain", out).stdout
    call("export", out, tmp_path / "same.ant")
    assert (tmp_path / "same.ant").read_bytes() == (out / "words.ant").read_bytes()
    call("export", out, tmp_path / "small.ant", "--values", "int8")
    assert json.loads(call("inspect", tmp_path / "small.ant", "--json").stdout)["values"] == "int8"


def json_rows(file):
    return [{"class": line.split(",", 1)[0].strip('"')} for line in file.read_text().splitlines()]


@pytest.mark.parametrize(
    "wrong",
    [("--model", "x"), ("--embedding", "x"), ("--choice", "x"), ("--anchors", "0"), ("--anchors", "x"), ("--dropout", "1"),
     ("--word-dropout", "-1"), ("--epochs", "0"), ("--relations", "wordnet"), ("--eps", "0"), ("--budget", "x"),
     ("--embedding", "full", "--choice", "frequency"), ("--embedding", "full", "--anchors", "auto"), ("--l1", "-1"),
     ("--vectors", "x.npy"), ("--wordnet", "x"), ("--size", "1KB"),
     ("--model", "tiny", "--min-count", "3"), ("--embedding", "full", "--orthogonal", "1"), ("--keep", "5", "--budget", "9"),
     ("--device", "nowhere"), ("--schedule", "halving", "--halve-every", "0"), ("--l1-ramp", "nan")],
)  # fmt: skip
def test_wrong_calls_exit_with_2(file, wrong):
    call("train", "classify", file, *wrong, code=2)


def test_one_class_is_no_task(tmp_path):
    with pytest.raises(ValueError, match="1 classes"):
        classify.prepare(TextSettings(data=""), documents_of(["a b", "c"] * 10, ["x"] * 20))


def test_too_few_documents_are_said_to_be():
    with pytest.raises(ValueError, match="2 documents with a class are too few, 10 are enough"):
        classify.prepare(TextSettings(data=""), documents_of(["a b", "c"], ["x", "y"]))


def test_explain_names_anchors_words_and_rows_of_zeros(learned, tmp_path):
    settings = TextSettings(data="", model="bag", choice="frequency", anchors=3, l1=1e-2, **QUICK)
    classify.train(settings, tmp_path / "r", learned=learned)
    told = explain_words(tmp_path / "r", 4)
    assert [anchor["word"] for anchor in told["anchors"]] == [f" ({word})" for word in learned.vocabulary.words[2:5]]
    T = classify.reopen_model(tmp_path / "r")[0].embedding.transform[2:]
    assert told["zero_rows"]["words"] == int((T == 0).all(1).sum())
    assert told["largest"][0][2] >= told["largest"][-1][2]


def test_a_tiny_classifier_is_a_file_of_the_size_asked_for(file, tmp_path):
    out = tmp_path / "tiny"
    told = call("train", "classify", file, "--model", "tiny", "--size", "2KB", "--out", out, "--json")
    result = json.loads(told.stdout)
    assert result["bytes"] == (out / "classifier.bag").stat().st_size <= 2000
    assert result["test"]["accuracy"] > 0.8
    assert json.loads(call("evaluate", out, "--json").stdout)["test"] == result["test"]
    lines = call("predict", out, file).stdout.splitlines()
    assert np.mean([line.split("\t")[0] == row["class"] for line, row in zip(lines, json_rows(file), strict=True)]) > 0.8
    for wrong in (["--size", "x"], ["--size", "400k"], ["--embedding", "full"], ["--choice", "frequency"], ["--ngrams", "0"]):
        call("train", "classify", file, "--model", "tiny", *wrong, code=2)


def test_files_without_labels_are_predicted_too(file, tmp_path):
    out = tmp_path / "tiny"
    call("train", "classify", file, "--model", "tiny", "--size", "2KB", "--out", out, "--label", "1")
    texts = [line.split(",", 1)[1] for line in file.read_text().splitlines()]
    (tmp_path / "texts.csv").write_text("\n".join(texts))  # title and text, no class
    found = call("predict", out, tmp_path / "texts.csv")
    assert "there are no labels" in found.stderr
    assert found.stdout == call("predict", out, file).stdout  # both columns were read


def test_short_batches_have_unrelated_pairs_too(tmp_path):
    learned = documents_of([f"w{n} w{n + 1}" for n in range(90)], ["x", "y"] * 45)
    settings = TextSettings(data="", model="bag", choice="frequency", negative=1.0, **QUICK | {"epochs": 1})
    assert classify.train(settings, tmp_path / "r", learned=learned)["epochs"] == 1


def test_a_run_with_knowledge_is_judged_again(file, tmp_path):
    words = read_documents(file).vocabulary.words
    (tmp_path / "v.txt").write_text("".join(f"{word} {n % 7} {n % 5} 1\n" for n, word in enumerate(words[2:])))
    more = ["--choice", "kmeans", "--vectors", tmp_path / "v.txt", "--anchors", 4, "--negative", 0.1]
    quick = ["--model", "bag", "--dimensions", 8, "--epochs", 1, "--threads", 1]
    told = call("train", "classify", file, "--out", tmp_path / "r", *quick, *more, "--json")
    assert json.loads(call("evaluate", tmp_path / "r", "--json").stdout)["test"] == json.loads(told.stdout)["test"]


def test_anchors_are_selected_whatever_else_is_known(learned, tmp_path):
    settings = TextSettings(data="", model="bag", choice="group-lasso", anchors=4, orthogonal=0.1, **QUICK | {"epochs": 1})
    assert classify.train(settings, tmp_path / "r", learned=learned)["anchors"] > 0


def test_a_tiny_classifier_has_no_table(file, tmp_path):
    out = tmp_path / "tiny"
    call("train", "classify", file, "--model", "tiny", "--size", "2KB", "--out", out)
    for command in (["export", out, tmp_path / "x.ant"], ["explain", out]):
        assert "tiny classifier" in str(call(*command, code=1).exception)
