"""`antembed train classify` and `train classify-ngrams`: from a file to predictions, and wrong calls."""

import json
import re
import shutil
from unittest import mock

import numpy as np
import pytest
from tests.synthetic_text import write_topics
from typer.testing import CliRunner

from antembed.classify.classifier import TextClassifier
from antembed.classify.documents import read_documents
from antembed.cli.app import app
from antembed.layer.anchors.initializers import INITIALIZERS, Initializer
from antembed.tables.save import load_table
from antembed.train.run_folder import RunFolder

QUICK = ("--model", "mean", "--embedding-dim", 8, "--epochs", 1, "--threads", 1)


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "train.csv"
    write_topics(path, 600, 300, classes=3, length=20, purity=0.6)
    return path


def call(*words, code=0):
    result = CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "300"})
    assert result.exit_code == code, result.output + str(result.exception)
    return result


def classes_of(file):
    return [line.split(",", 1)[0].strip('"') for line in file.read_text().splitlines()]


def predicted(run, file):
    return [line.split("\t")[0] for line in call("predict", run, file).stdout.splitlines()]


def test_the_command_line_from_a_file_to_predictions(file, tmp_path):
    out = tmp_path / "run"
    quick = ["--embedding-dim", 16, "--epochs", 5, "--batch-size", 32, "--lr", 0.01, "--threads", 1]
    options = [*quick, "--anchor-init", "frequency", "--record", tmp_path / "r.jsonl", "--json"]
    result = json.loads(call("train", "classify", file, "--test", file, "--out", out, *options).stdout)
    assert result["task"] == "classify"
    assert result["test"]["accuracy"] > 0.8
    assert json.loads((tmp_path / "r.jsonl").read_text())["command"].startswith("antembed")
    again = json.loads(call("evaluate", out, "--json").stdout)
    assert again["test"] == result["test"]
    right = np.array(predicted(out, file)) == np.array(classes_of(file))
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


@pytest.mark.parametrize("task", [("classify", *QUICK), ("classify-ngrams", "--budget", "1KB")])
def test_the_columns_that_are_taken_are_said_and_kept(tmp_path, task):
    rows = (f"{n},{'cats purr' if n % 2 else 'dogs bark'},{'ab'[n % 2]}\n" for n in range(40))
    (tmp_path / "a.csv").write_text("id,headline,topic\n" + "".join(rows))
    told = call("train", task[0], tmp_path / "a.csv", *task[1:], "--out", tmp_path / "r").stderr
    assert told.count("columns: text from headline, the class from topic; others with --text, --label\n") == 1
    kept = json.loads((tmp_path / "r" / "config.json").read_text())["data"]["columns"]
    assert kept == {"text": ["headline"], "label": "topic"}


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (("--model", "x"), "model 'x' is none of: cnn, mean"),
        (("--model", "tiny"), "model 'tiny' is none of: cnn, mean"),
        (("--embedding", "x"), "embedding 'x' is none of: anchor"),
        (("--anchor-init", "x"), "anchor_init 'x' is none of: none, frequency"),
        (("--anchors", "0"), "anchors must be ≥ 1, got 0; start with 10"),
        (("--anchors", "x"), "anchors 'x' is not a number of anchors; say 15"),
        (("--dropout", "1"), "dropout must be < 1, got 1"),
        (("--word-dropout", "-1"), "word_dropout must be ≥ 0, got -1"),
        (("--epochs", "0"), "epochs must be ≥ 1, got 0"),
        (("--relations", "wordnet"), "choose them with --anchor-init frequency"),
        (("--eps", "0"), "eps must be > 0, got 0"),
        (("--budget", "x"), "'x' is no budget; say 40x"),
        (("--embedding", "full", "--anchor-init", "frequency"), "anchor_init is for --embedding anchor, not full"),
        (("--embedding", "full", "--unrelated-penalty", "1"), "unrelated_penalty is for --embedding anchor, not full"),
        (("--embedding", "full", "--budget", "40x"), "a budget is for --embedding anchor, not full"),
        (("--embedding", "full", "--anchors", "auto"), "anchors auto is for --embedding anchor, not full"),
        (("--l1-penalty", "-1"), "l1_penalty must be ≥ 0, got -1"),
        (("--vectors", "x.npy"), "vectors are for anchors that are words"),
        (("--wordnet", "x"), "a folder of WordNet goes with --relations wordnet"),
        (("--size", "1KB"), "No such option"),
        (("--ngrams", "1"), "No such option"),
        (("--embedding", "full", "--orthogonality-penalty", "1"), "orthogonality_penalty is for tables with anchors, not full"),
        (("--max-nonzeros", "5", "--budget", "900"), "a budget and max_nonzeros=5 both say"),
        (("--device", "nowhere"), "device 'nowhere' cannot be used here; leave it at cpu"),
        (("--schedule", "halving", "--halve-every", "0"), "halve_every must be ≥ 1, got 0"),
        (("--halve-every", "5"), "halve_every is for --schedule halving, not cosine"),
        (("--optimizer", "sgd", "--eps", "1e-3"), "eps is for --optimizer yogi or adam, not sgd"),
        (("--anchor-penalty", "1"), "anchor_penalty is for --anchors auto"),
        (("--anchors", "auto", "--anchor-init", "frequency"), "anchors auto goes with --anchor-init none"),
        (("--anchors", "auto", "--anchor-penalty", "0"), "but λ1 (anchor_penalty) is 0"),
        (("--l1-warmup", "nan"), "l1_warmup must be"),
        (("--l1-penalty", "inf"), "l1_penalty must be finite, got inf"),
        (("--split", "90/10"), "No such option"),
    ],
)
def test_wrong_calls_exit_with_2(file, wrong, told):
    output = " ".join(re.sub(r"[│╭╮╰╯─]", " ", call("train", "classify", file, *wrong, code=2).output).split())
    assert told in output


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (("--budget", "x"), "'x' is no budget"),
        (("--budget", "400k"), "budget is the size of a file: 50KB or 1MB, not '400k'"),
        (("--budget", "40x"), "budget is the size of a file: 50KB or 1MB, not '40x'"),
        (("--ngrams", "0"), "ngrams must be ≥ 1, got 0"),
        (("--embedding", "full"), "No such option"),
        (("--anchor-init", "frequency"), "No such option"),
        (("--min-count", "3"), "No such option"),
    ],
)
def test_wrong_calls_of_ngrams_exit_with_2(file, wrong, told):
    output = " ".join(re.sub(r"[│╭╮╰╯─]", " ", call("train", "classify-ngrams", file, *wrong, code=2).output).split())
    assert told in output


def test_an_ngram_classifier_is_a_file_of_the_size_asked_for(file, tmp_path):
    out = tmp_path / "ngrams"
    result = json.loads(call("train", "classify-ngrams", file, "--budget", "2KB", "--out", out, "--json").stdout)
    assert result["bytes"] == (out / "classifier.ngrams").stat().st_size <= 2000
    assert result["test"]["accuracy"] > 0.8
    assert json.loads(call("evaluate", out, "--json").stdout)["test"] == result["test"]
    assert np.mean(np.array(predicted(out, file)) == np.array(classes_of(file))) > 0.8


def test_files_without_labels_are_predicted_too(file, tmp_path):
    out = tmp_path / "ngrams"
    call("train", "classify-ngrams", file, "--budget", "2KB", "--out", out, "--label", "1")
    texts = [line.split(",", 1)[1] for line in file.read_text().splitlines()]
    (tmp_path / "texts.csv").write_text("\n".join(texts))  # title and text, no class
    found = call("predict", out, tmp_path / "texts.csv")
    assert "there are no labels" in found.stderr
    assert found.stdout == call("predict", out, file).stdout  # both columns were read


def test_an_ngram_classifier_has_no_table(file, tmp_path):
    out = tmp_path / "ngrams"
    call("train", "classify-ngrams", file, "--budget", "2KB", "--out", out)
    assert "has no tables: classifier.ngrams is all of it" in str(call("export", out, tmp_path / "x.ant", code=1).exception)
    call("export", out, tmp_path / "copy")
    assert (tmp_path / "copy" / "classifier.ngrams").read_bytes() == (out / "classifier.ngrams").read_bytes()


@pytest.fixture(scope="module")
def spoken(tmp_path_factory):
    """Cats purr and dogs bark; the rest says nothing."""
    folder = tmp_path_factory.mktemp("spoken")
    rng = np.random.default_rng(0)
    rows = []
    for n in range(200):
        noise = " ".join(f"w{k}" for k in rng.integers(0, 20, 4))
        rows.append(f"cat,cats purr {noise}\n" if n % 2 else f"dog,dogs bark {noise}\n")
    (folder / "a.csv").write_text("".join(rows))
    call("train", "classify-ngrams", folder / "a.csv", "--budget", "1KB", "--out", folder / "run")
    return folder / "run"


def test_ngrams_that_speak_for_each_class_are_explained(spoken, tmp_path):
    found = json.loads(call("explain", spoken, "--top", 3, "--json").stdout)["classes"]
    assert [one["class"] for one in found] == ["cat", "dog"]
    for one, words in zip(found, ({"cats", "purr", "cats purr"}, {"dogs", "bark", "dogs bark"}), strict=True):
        assert {text for text, score, count in one["ngrams"]} == words
        assert all(score > 0 and 80 <= count <= 100 for _, score, count in one["ngrams"])
    shown = call("explain", spoken, "--top", 3).stdout.splitlines()
    assert (shown[0], len(shown)) == ("cat", 4)
    assert "cats purr +" in shown[1]
    call("export", spoken, tmp_path / "copy")
    assert call("explain", tmp_path / "copy").stdout == call("explain", spoken).stdout
    TextClassifier.load(spoken).save(tmp_path / "saved")
    assert call("explain", tmp_path / "saved").stdout == call("explain", spoken).stdout


def test_ngrams_of_one_text_are_explained(spoken):
    found = json.loads(call("explain", spoken, "--text", "Cats purr, dogs sleep, cats purr", "--json").stdout)["classes"]
    assert [one["class"] for one in found] == ["cat", "dog"]
    assert sum(one["probability"] for one in found) == pytest.approx(1)
    assert {"cats", "purr", "cats purr"} <= {text for text, _ in found[0]["ngrams"]}
    assert "dogs" in {text for text, _ in found[1]["ngrams"]}
    shown = call("explain", spoken, "--text", "zebra").stdout
    assert shown.count("no n-gram speaks for it") == 2
    assert "without a word that the model knows" in shown


def test_ngrams_beside_the_classifier_are_not_counted_and_go_with_the_run(spoken, tmp_path):
    result = json.loads((spoken / "result.json").read_text())
    assert result["files"] == {"classifier.ngrams": (spoken / "classifier.ngrams").stat().st_size}
    shutil.copytree(spoken, tmp_path / "run")
    RunFolder(tmp_path / "run").remove()
    assert not (tmp_path / "run" / "ngrams.json").exists()


def test_what_cannot_be_explained_says_so(spoken, file, tmp_path):
    assert "a run keeps the 50 n-grams" in str(call("explain", spoken, "--top", 51, code=1).exception)
    assert "is a model of text; leave out --items" in str(call("explain", spoken, "--items", file, code=1).exception)
    call("explain", spoken, "--items", file, "--text", "x", code=2)
    call("train", "classify", file, *QUICK, "--out", tmp_path / "mean")
    assert "this is another model; leave out --text" in str(call("explain", tmp_path / "mean", "--text", "x", code=1).exception)
    shutil.copytree(spoken, tmp_path / "run")
    (tmp_path / "run" / "ngrams.json").write_text('{"classes": [{"class": "cat"}]}')
    assert "ngrams.json is damaged (KeyError: 'ngrams'); copy it" in str(call("explain", tmp_path / "run", code=1).exception)
    (tmp_path / "run" / "ngrams.json").unlink()
    assert "has no ngrams.json: it was trained before" in str(call("explain", tmp_path / "run", code=1).exception)
    (tmp_path / "run" / "classifier.ngrams").unlink()
    assert "the run is not finished; continue it with --resume" in str(call("explain", tmp_path / "run", code=1).exception)


def test_a_run_with_knowledge_is_evaluated_again(file, tmp_path):
    words = read_documents(file).vocabulary.words
    (tmp_path / "v.txt").write_text("".join(f"{word} {n % 7} {n % 5} 1\n" for n, word in enumerate(words[2:])))
    more = ["--anchor-init", "kmeans", "--vectors", tmp_path / "v.txt", "--anchors", 4, "--unrelated-penalty", 0.1]
    trained = call("train", "classify", file, "--out", tmp_path / "r", *QUICK, *more, "--json")
    (tmp_path / "v.txt").unlink()  # was for the start alone
    assert json.loads(call("evaluate", tmp_path / "r", "--json").stdout)["test"] == json.loads(trained.stdout)["test"]


def test_a_new_initializer_is_trained_with_by_its_name(file, tmp_path):
    """One entry in INITIALIZERS; no list of names elsewhere."""

    def last(statistics, K, seed):
        return len(statistics.counts) - 1 - np.arange(K)

    words = ("train", "classify", file, *QUICK, "--anchor-init", "last", "--anchors", 3, "--json")
    with mock.patch.dict(INITIALIZERS, last=Initializer(last, frozenset({"counts"}))):
        result = json.loads(call(*words, "--out", tmp_path / "r").stdout)
        assert json.loads(call("evaluate", tmp_path / "r", "--json").stdout)["test"] == result["test"]
        call(*words, "--out", tmp_path / "r", "--resume")
        assert "last" in call("train", "classify", file, "--anchor-init", "x", code=2).output
    facts = json.loads((tmp_path / "r" / "config.json").read_text())
    assert facts["config"]["anchors"]["anchor_init"] == "last"
    assert facts["data"]["anchor_words"] == read_documents(file).vocabulary.words[:-4:-1]
    assert result["anchors"] == 3
    assert "'last' is none of" in call(*words, "--out", tmp_path / "s", code=2).output  # it is gone again


@pytest.mark.parametrize("encoding", ["auto", "csr"])
def test_a_budget_of_bytes_means_packed_files_unless_another_is_asked_for(file, encoding, tmp_path):
    more = ("--budget", "4KB", "--encoding", encoding, "--epochs", 6)
    result = json.loads(call("train", "classify", file, *QUICK, *more, "--out", tmp_path / "r", "--json").stdout)
    table = load_table(tmp_path / "r" / "words.ant")
    assert table.encoding == ("packed" if encoding == "auto" else encoding)
    assert table.values == "int8"
    assert result["bytes"] == table.size == (tmp_path / "r" / "words.ant").stat().st_size <= 4000


def test_a_budget_of_bytes_means_packed_files_for_ratings_too(tmp_path):
    rng = np.random.default_rng(0)
    users, items = rng.integers(0, 200, 4000), rng.integers(0, 80, 4000)
    values = 3 + (users % 3 == items % 3) + 0.1 * rng.standard_normal(4000)
    rows = "\n".join(f"u{u},{i},{v:.2f}" for u, i, v in zip(users, items, values, strict=True))
    (tmp_path / "r.csv").write_text("user,item,rating\n" + rows)
    for solver in ("stochastic", "coordinate_descent"):
        more = ("--solver", solver, "--budget", "2KB", "--embedding-dim", 8, "--anchors", 6, "--epochs", 8)
        out = tmp_path / solver
        result = json.loads(call("train", "recommend", tmp_path / "r.csv", *more, "--out", out, "--json").stdout)
        tables = [load_table(out / f"{side}.ant") for side in ("users", "items")]
        assert [table.encoding for table in tables] == ["packed", "packed"]
        assert [table.values for table in tables] == ["int8", "int8"]
        assert result["bytes"] == sum(table.size for table in tables) <= 2000
