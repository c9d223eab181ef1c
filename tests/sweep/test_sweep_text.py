"""Sweeps over labelled text: the same promises as over ratings, with the options, the data and the error of text."""

import json
import shlex
from unittest import mock

import pytest
from tests.synthetic_text import write_topics
from typer.testing import CliRunner

from antembed.classify.config import _read
from antembed.classify.documents import read_documents
from antembed.classify.task import Text
from antembed.cli.app import app
from antembed.sweep import trials as job
from antembed.sweep.records import read_records
from antembed.sweep.space import grid, parse_axis
from antembed.train.run import train

TASK = Text()
FIXED = {"model": "mean", "embedding_dim": 4, "epochs": 1, "batch_size": 32, "lr": 0.01}
WORDS = tuple(word for name, value in FIXED.items() for word in ("--set", f"{name}={value}"))
ONE_WORD = ("--set", "ngrams=1")


def write(path, documents=200, seed=0):
    write_topics(path, documents, 60, classes=3, length=12, purity=0.6, seed=seed)
    return path


@pytest.fixture(scope="module")
def train_file(tmp_path_factory):
    return write(tmp_path_factory.mktemp("text") / "train.csv")


@pytest.fixture(scope="module")
def test_file(tmp_path_factory):
    return write(tmp_path_factory.mktemp("text") / "test.csv", 80, seed=1)


def call(*arguments, code=0):
    words = [str(a) for a in arguments]
    with mock.patch("sys.argv", ["antembed", *words]):
        result = CliRunner().invoke(app, words, env={"COLUMNS": "400"})
    if isinstance(result.exception, ValueError | OSError):
        raise result.exception
    assert result.exit_code == code, result.output + repr(result.exception)
    return result.stdout if code == 0 else result.output


def sweep(data, *more, code=0, task="classify"):
    return call("sweep", data, "--task", task, *more, code=code)


def timeless(row):
    """Without what may differ from one run to the next."""
    machine = {name: value for name, value in row["config"]["machine"].items() if name != "threads"}
    kept = {name: value for name, value in row.items() if name not in ("date", "seconds", "threads")}
    return kept | {"config": row["config"] | {"machine": machine}}


@pytest.fixture
def count_runs():
    with mock.patch.object(job, "train", side_effect=train) as counted:
        yield counted


def test_wrong_calls_are_told_before_the_data_are_read(tmp_path):
    nowhere = tmp_path / "nowhere.csv"
    told = sweep(nowhere, "--vary", "solver=coordinate_descent", code=2)
    assert "'solver' is no option of a run; there are: " in told
    assert "test, text, label" in told
    assert "model 'deep' is none of: cnn, mean" in sweep(nowhere, "--vary", "model=mean,deep", code=2)
    assert "2 numbers of anchors for 1 table" in sweep(nowhere, "--vary", "anchors=40/16", code=2)
    assert "label cannot be varied; the data are the same for all trials" in sweep(nowhere, "--vary", "label=1,2", code=2)
    twice = ("--set", "test=a.csv", "--set", "test=b.csv")
    assert "test is set twice, to a.csv and b.csv" in sweep(nowhere, "--vary", "l1-penalty=0", *twice, code=2)
    assert "the paper has no points for classify" in sweep(nowhere, "--vary", "l1-penalty=0", "--paper", code=2)
    told = sweep(nowhere, "--vary", "anchors=2", task="classify-ngrams", code=2)
    assert "'anchors' is no option of a run; there are: epochs, budget, tolerance, ngrams" in told
    told = call("sweep", nowhere, "--vary", "l1-penalty=0", "--set", "text=1", code=2)
    assert "'text' is no option of a run; there are: " in told
    told = sweep(nowhere, "--vary", "l1-penalty=0", task="vision", code=2)
    assert "'vision' is none of: recommend, recommend-events, classify, classify-ngrams, language" in told


def test_a_sweep_is_what_single_runs_would_be(train_file, test_file, tmp_path):
    records, test = tmp_path / "s.jsonl", ("--set", f"test={test_file}")
    more = ("--vary", "l1-penalty=1e-5,1e-2", "--vary", "anchors=2,4", "--out", records, "--plot", tmp_path / "front.svg")
    found = json.loads(sweep(train_file, *test, *WORDS, *more, "--json", "--keep", tmp_path / "runs"))
    rows = read_records(records)
    assert [row["settings"] for row in rows] == [{"l1_penalty": l1, "anchors": [K]} for l1 in (1e-5, 1e-2) for K in (2, 4)]
    assert {row["documents"] for row in rows} == {280}  # 200 to learn and to choose by, 80 to be tested on
    assert {row["test"]["examples"] for row in rows} == {80}
    assert {row["validation"]["examples"] for row in rows} == {20}
    typed = f"antembed train classify {train_file} --test {test_file} --model mean --embedding-dim 4 "
    assert rows[1]["command"].startswith(typed)
    alone = json.loads(call(*shlex.split(rows[1]["command"])[1:], "--out", tmp_path / "alone", "--json"))
    assert (alone["test"], alone["nnz"]) == (rows[1]["test"], rows[1]["nnz"])
    assert len(list((tmp_path / "runs").glob("*/words.ant"))) == 4

    points = [(row["validation"]["error"], row["parameters"], row["settings"]) for row in rows]
    best = [p for p in points if not any(q[0] <= p[0] and q[1] <= p[1] and q[:2] != p[:2] for q in points)]
    assert [row["settings"] for row in found["front"]] == [point[2] for point in sorted(best, key=lambda p: p[:2])]
    assert (found["metric"], found["error"], found["settings"]) == ("error", "validation", 4)
    assert found["front"][0]["error"] == min(points, key=lambda p: p[:2])[0]
    assert "paper" not in found
    assert "validation error rate" in (tmp_path / "front.svg").read_text()
    table = sweep(train_file, *test, *WORDS, *more)
    assert "validation error" in table
    assert "MSE" not in table


def test_a_stopped_sweep_goes_on_without_repeating(train_file, tmp_path, count_runs):
    records = tmp_path / "s.jsonl"
    points = grid([parse_axis("l1-penalty=1e-5,1e-4,1e-3", TASK)])
    trials = job.plan(TASK, str(train_file), points, FIXED, [0], 0)
    splits = TASK.load(trials[0].config)

    def stop(row):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        job.sweep(trials, records, splits, callback=stop)
    rows = job.sweep([*trials, trials[2]], records, splits)
    assert [row["settings"]["l1_penalty"] for row in rows] == [1e-5, 1e-4, 1e-3, 1e-3]
    job.sweep(trials, records, splits)
    assert count_runs.call_count == 3
    others = job.plan(TASK, str(train_file), [{"l1_penalty": 1e-5}], FIXED | {"label": "1"}, [0], 0)
    job.sweep(others, records, splits)
    assert count_runs.call_count == 4  # the files' bytes do not say which column is the class


def test_text_is_read_again_only_if_it_is_to_be_read_otherwise(train_file, tmp_path):
    _read.cache_clear()
    with mock.patch("antembed.classify.documents.read_documents", side_effect=read_documents) as read:
        words = ("--vary", "max_vocab=20,40", "--vary", "l1-penalty=1e-5,1e-4", *WORDS, "--out", tmp_path / "s.jsonl")
        sweep(train_file, *words)
    assert read.call_count == 2
    assert [row["words"] for row in read_records(tmp_path / "s.jsonl")] == [20, 20, 40, 40]


@pytest.mark.slow
def test_two_processes_give_the_same_records(train_file, test_file, tmp_path):
    words = ("--set", f"test={test_file}", "--vary", "l1-penalty=1e-4,1e-3", *WORDS)
    sweep(train_file, *words, "--out", tmp_path / "one.jsonl")
    sweep(train_file, *words, "--out", tmp_path / "two.jsonl", "--jobs", 2)
    one, two = ([timeless(row) for row in read_records(tmp_path / f"{name}.jsonl")] for name in ("one", "two"))
    assert sorted(two, key=lambda row: row["settings"]["l1_penalty"]) == one


def test_other_data_are_refused(train_file, test_file, tmp_path):
    records, words = tmp_path / "s.jsonl", ("--vary", "l1-penalty=1e-4", *WORDS, "--out")
    sweep(train_file, *words, records)
    (tmp_path / "copy.csv").write_bytes(train_file.read_bytes())
    sweep(tmp_path / "copy.csv", *words, records)  # wherever they are
    assert len(read_records(records)) == 1
    other = write(tmp_path / "other.csv", 150, seed=9)
    with pytest.raises(ValueError, match=r"has trials on other data: 200 documents with sha256 .* here 150 with"):
        sweep(other, *words, records)
    with pytest.raises(ValueError, match="has trials on other data"):  # another test is other data, too
        sweep(train_file, "--set", f"test={test_file}", *words, records)
    for place in ("a", "b"):  # and the same test is the same, wherever it is
        (tmp_path / f"{place}.csv").write_bytes(test_file.read_bytes())
        sweep(train_file, "--set", f"test={tmp_path}/{place}.csv", *words, tmp_path / "t.jsonl")
    assert len(read_records(tmp_path / "t.jsonl")) == 1
    with pytest.raises(ValueError, match="has trials of classify, these are of classify-ngrams; choose another file"):
        sweep(train_file, "--vary", "budget=1KB", "--out", records, task="classify-ngrams")
    (tmp_path / "ratings.csv").write_text("user,item,rating\n" + "".join(f"{n % 7},{n % 11},{n % 5}\n" for n in range(99)))
    with pytest.raises(ValueError, match=r"has trials of classify, these are of recommend; choose another file"):
        call("sweep", tmp_path / "ratings.csv", "--vary", "l1-penalty=1", "--out", records)


def test_a_trial_that_fails_by_its_settings_is_a_record(train_file, tmp_path, count_runs):
    words = ("--vary", "budget=3B,10KB", *WORDS, "--set", "anchors=4", "--out", tmp_path / "s.jsonl", "--json")
    found = json.loads(sweep(train_file, *words))  # an anchor alone has more
    assert (found["failed"], [row["settings"] for row in found["front"]]) == (1, [{"budget": "10KB"}])
    failed, good = read_records(tmp_path / "s.jsonl")
    assert "budget" in failed["failed"]
    assert (failed["task"], failed["documents"], failed["seed"]) == ("classify", 200, 0)
    assert "failed" not in good
    sweep(train_file, *words)
    assert count_runs.call_count == 2


@pytest.mark.parametrize(
    ("task", "words"),
    [("classify", ("--vary", "l1-penalty=1e-3", *WORDS)), ("classify-ngrams", ("--vary", "budget=1KB", *ONE_WORD))],
)
def test_kept_runs_are_gone_on_with(task, words, train_file, tmp_path, count_runs):
    for name in "st":  # killed after the run, before its record
        sweep(train_file, *words, "--keep", tmp_path / "runs", "--out", tmp_path / f"{name}.jsonl", task=task)
    assert [kept.kwargs["resume"] for kept in count_runs.call_args_list] == [False, True]
    first, second = ([timeless(row) for row in read_records(tmp_path / f"{name}.jsonl")] for name in "st")
    assert first == second
    assert len(first) == 1


def test_seeds_are_averaged(train_file, tmp_path):
    words = ("--vary", "l1-penalty=1e-4", "--seeds", "0,1", *WORDS, "--out", tmp_path / "s.jsonl", "--json")
    found = json.loads(sweep(train_file, *words))
    errors = [row["validation"]["error"] for row in read_records(tmp_path / "s.jsonl")]
    (row,) = found["front"]
    assert row["seeds"] == [0, 1]
    assert row["error"] == pytest.approx(sum(errors) / 2)


def test_ngram_classifiers_of_several_sizes(train_file, test_file, tmp_path):
    test, records = ("--set", f"test={test_file}"), tmp_path / "s.jsonl"
    words = ("--vary", "budget=0.3KB,2KB", *ONE_WORD, *test, "--out", records, "--json")
    found = json.loads(sweep(train_file, *words, task="classify-ngrams"))
    assert (found["metric"], found["error"], found["settings"]) == ("error", "validation", 2)
    small, large = read_records(records)
    assert small["bytes"] <= 400 < large["bytes"] <= 2000
    assert small["validation"]["examples"] == 20  # of 200: by documents that were not learned
    assert small["validation"]["accuracy"] < 1
    assert {row["config"]["solver"]["hold_out"] for row in (small, large)} == {True}
    best = min((small, large), key=lambda row: (row["validation"]["error"], row["parameters"]))
    assert found["front"][0]["settings"] == best["settings"]
    alone = json.loads(call(*shlex.split(small["command"])[1:], "--out", tmp_path / "alone", "--json"))
    assert (alone["test"], alone["validation"], alone["nnz"]) == (small["test"], small["validation"], small["nnz"])
    more = ("--budget", "0.4KB", "--ngrams", 1, "--test", test_file)
    alone = json.loads(call("train", "classify-ngrams", train_file, *more, "--out", tmp_path / "all", "--json"))
    assert alone["validation"] is None  # whoever does not choose learns all
    assert alone["test"]["examples"] == small["test"]["examples"] == 80


def test_a_sweep_of_ngrams_is_told_from_its_own_held_out_part(train_file, tmp_path):
    told = sweep(train_file, "--vary", "budget=1KB", "--set", "hold-out=false", "--out", tmp_path / "s.jsonl",
                 task="classify-ngrams")  # fmt: skip
    assert "test error rate" in told  # asked for: there is nothing else to choose by
    assert "validation" not in told


def test_optuna_goes_on_with_the_records(train_file, tmp_path, count_runs):
    pytest.importorskip("optuna")
    axes = ("--vary", "l1-penalty=1e-5..1e-3:log", "--vary", "anchors=2..4", "--vary", "text=2,2/3")
    words = (*axes, *WORDS, "--out", tmp_path / "s.jsonl", "--json", "--trials")
    sweep(train_file, *words, 2)
    found = json.loads(sweep(train_file, *words, 4, "--optuna"))
    assert count_runs.call_count == 4  # the two that were drawn count
    rows = read_records(tmp_path / "s.jsonl")
    assert found["settings"] == len({json.dumps(row["settings"]) for row in rows}) == 4
    assert all(2 <= row["settings"]["anchors"][0] <= 4 and row["settings"]["text"] in (["2"], ["2", "3"]) for row in rows)


def test_the_records_of_a_sweep_can_be_selected_among(train_file, tmp_path):
    sweep(train_file, "--vary", "anchors=2,6", *WORDS, "--out", tmp_path / "s.jsonl", "--keep", tmp_path / "runs")
    for sources in ([tmp_path / "s.jsonl"], sorted((tmp_path / "runs").iterdir())):
        cheap, dear = (
            json.loads(call("sweep", "--select", *sources, "--anchor-penalty", penalty, "--json"))["ranking"]
            for penalty in (1e-4, 10)
        )
        assert dear[0]["anchors"]["anchors"] < dear[1]["anchors"]["anchors"]
        assert cheap[0]["objective"] < dear[0]["objective"]


def test_ngram_classifiers_are_selected_among_by_a_penalty_that_is_given(train_file, tmp_path):
    sweep(train_file, "--vary", "budget=0.3KB,2KB", *ONE_WORD, "--out", tmp_path / "s.jsonl", task="classify-ngrams")
    words = ("sweep", "--select", tmp_path / "s.jsonl", "--anchor-penalty", 1)
    ranked = json.loads(call(*words, "--l0-penalty", 0.5, "--json"))["ranking"]
    small, large = read_records(tmp_path / "s.jsonl")
    assert ranked[0]["nnz"] == small["nnz"] < ranked[1]["nnz"] == large["nnz"]
    expected = small["validation"]["loss"] + 0.5 * small["nnz"] + 0.5 * small["anchors"]
    assert ranked[0]["objective"] == pytest.approx(expected)
    with pytest.raises(ValueError, match=r"s.jsonl:1 does not say its λ2 for a mean loss; give one for all with --l0-penalty"):
        call(*words)
