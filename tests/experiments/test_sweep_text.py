"""Sweeps over labelled text: the same promises as over ratings, with the options, the data and the error of text."""

import json
import shlex
from unittest import mock

import pytest
import typer
from antembed.pipelines import classify, task
from antembed.pipelines import sweep as job
from antembed.pipelines.space import Choices, draws, grid, parse_axes, parse_axis, parse_fixed
from antembed.pipelines.task import CLASSIFY, Texts
from antembed.pipelines.text import TextSettings
from antembed.reporting import read_records
from typer.testing import CliRunner

from antembed.cli.app import app
from antembed.data.topics import write_topics

FIXED = {"model": "bag", "dimensions": 4, "epochs": 1, "batch_size": 32, "lr": 0.01}
WORDS = tuple(word for name, value in FIXED.items() for word in ("--set", f"{name}={value}"))
TINY = ("--set", "model=tiny", "--set", "ngrams=1")


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
        result = CliRunner().invoke(app, words, env={"COLUMNS": "300"})
    if isinstance(result.exception, ValueError | OSError):
        raise result.exception
    assert result.exit_code == code, result.output
    return result.stdout if code == 0 else result.output


def sweep(data, *more, code=0):
    return call("sweep", data, "--task", "classify", *more, code=code)


def timeless(row):
    return {name: value for name, value in row.items() if name not in ("date", "seconds", "threads")}


@pytest.fixture
def count_runs():
    with mock.patch.object(classify, "train", side_effect=classify.train) as counted:
        yield counted


# the space


def test_values_are_read_by_the_type_of_the_option(tmp_path):
    assert parse_axis("anchors=5,20,auto", CLASSIFY) == Choices("anchors", (5, 20, "auto"))
    assert parse_axis("text=title,title/text", CLASSIFY) == Choices("text", (("title",), ("title", "text")))
    (tmp_path / "pairs.csv").write_text("a,b")
    axis = parse_axis(f"relations=wordnet/cooccurrence,{tmp_path}/pairs.csv", CLASSIFY)
    assert axis == Choices("relations", (("wordnet", "cooccurrence"), (f"{tmp_path}/pairs.csv",)))
    assert parse_fixed(["text=title,text", "label=1", "relations=", "word-dropout=0"], CLASSIFY) == {
        "text": ("title", "text"), "label": "1", "relations": (), "word_dropout": 0.0}  # fmt: skip
    points = draws(parse_axes(["l1=1e-5..3e-4:log", "anchors=2..4"], CLASSIFY), 32, seed=0)
    assert {point["anchors"] for point in points} == {2, 3, 4}
    assert all(1e-5 <= point["l1"] <= 3e-4 for point in points)


def test_wrong_calls_are_told_before_the_data_are_read(tmp_path):
    nowhere = tmp_path / "nowhere.csv"
    assert "'solver' is no option of a run; there are: test, text, label" in sweep(nowhere, "--vary", "solver=cd", code=2)
    assert "model 'deep' is none of: cnn, bag, tiny" in sweep(nowhere, "--vary", "model=bag,deep", code=2)
    assert "anchors are a number, or auto, not '40/16'" in sweep(nowhere, "--vary", "anchors=40/16", code=2)
    assert "label cannot be varied; the data are read once" in sweep(nowhere, "--vary", "label=1,2", code=2)
    assert "test is set twice, to a.csv and b.csv" in sweep(
        nowhere, "--vary", "l1=0", "--test", "a.csv", "--set", "test=b.csv", code=2
    )
    assert "points are of ratings, not of classify" in sweep(nowhere, "--vary", "l1=0", "--paper", code=2)
    assert "'test' is no option of a run; there are: columns" in call(
        "sweep", nowhere, "--vary", "l1=0", "--test", "t.csv", code=2
    )
    told = call("sweep", nowhere, "--vary", "l1=0", "--task", "language", code=2)
    assert "task 'language' is none of: recommend, classify" in told


def test_every_option_of_a_trial_can_be_typed():
    options = {
        name
        for command in typer.main.get_command(app).commands["train"].commands["classify"].params
        for name in (*command.opts, *command.secondary_opts)
    }
    given = {name: getattr(TextSettings("t.csv"), name) for name in (*CLASSIFY.defaults, "test", "threads")}
    words = job.command_of("t.csv", given, CLASSIFY).split()
    assert {word for word in words if word.startswith("--")} <= options
    assert "--text title,text" in job.command_of("t.csv", {"text": ("title", "text")}, CLASSIFY)


# running it


def test_a_sweep_is_what_single_runs_would_be(train_file, test_file, tmp_path):
    records = tmp_path / "s.jsonl"
    more = ("--vary", "l1=1e-5,1e-2", "--vary", "anchors=2,4", "--out", records, "--plot", tmp_path / "front.svg")
    told = json.loads(sweep(train_file, "--test", test_file, *WORDS, *more, "--json", "--keep", tmp_path / "runs"))
    rows = read_records(records)
    assert [row["settings"] for row in rows] == [{"l1": l1, "anchors": K} for l1 in (1e-5, 1e-2) for K in (2, 4)]
    assert {row["documents"] for row in rows} == {200}
    assert {row["test"]["examples"] for row in rows} == {80}
    typed = f"antembed train classify {train_file} --test {test_file} --model bag --dimensions 4 "
    assert rows[1]["command"].startswith(typed)
    alone = json.loads(call(*shlex.split(rows[1]["command"])[1:], "--out", tmp_path / "alone", "--json"))
    assert (alone["test"], alone["nnz"]) == (rows[1]["test"], rows[1]["nnz"])
    assert len(list((tmp_path / "runs").glob("*/words.ant"))) == 4

    points = [(row["validation"]["error"], row["parameters"], row["settings"]) for row in rows]
    best = [p for p in points if not any(q[0] <= p[0] and q[1] <= p[1] and q[:2] != p[:2] for q in points)]
    assert [row["settings"] for row in told["front"]] == [point[2] for point in sorted(best, key=lambda p: p[:2])]
    assert (told["metric"], told["error"], told["settings"]) == ("error", "validation", 4)
    assert told["front"][0]["error"] == min(points, key=lambda p: p[:2])[0]
    assert "paper" not in told
    assert "validation error rate" in (tmp_path / "front.svg").read_text()
    assert "parameters of the words" in (tmp_path / "front.svg").read_text()
    table = sweep(train_file, "--test", test_file, *WORDS, *more)
    assert "validation error rate" in table
    assert "MSE" not in table


def test_a_stopped_sweep_goes_on_without_repeating(train_file, tmp_path, count_runs):
    records = tmp_path / "s.jsonl"
    trials = job.plan(str(train_file), grid([parse_axis("l1=1e-5,1e-4,1e-3", CLASSIFY)]), FIXED, [0], 0, task=CLASSIFY)
    texts = CLASSIFY.read(trials[0].settings)

    def stop(row):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        job.sweep(trials, records, texts, tell=stop)
    rows = job.sweep([*trials, trials[2]], records, texts)
    assert [row["settings"]["l1"] for row in rows] == [1e-5, 1e-4, 1e-3, 1e-3]
    job.sweep(trials, records, texts)
    assert count_runs.call_count == 3
    others = job.plan(str(train_file), [{"l1": 1e-5}], FIXED | {"label": "1"}, [0], 0, task=CLASSIFY)
    job.sweep(others, records, texts)
    assert count_runs.call_count == 4  # the files' bytes do not say which column is the class


def test_text_is_read_again_only_if_it_is_to_be_read_otherwise(train_file, tmp_path):
    with mock.patch.object(classify, "read", side_effect=classify.read) as read:
        words = ("--vary", "max_vocab=20,40", "--vary", "l1=1e-5,1e-4", *WORDS, "--out", tmp_path / "s.jsonl")
        sweep(train_file, *words)
    assert read.call_count == 2
    assert [row["words"] for row in read_records(tmp_path / "s.jsonl")] == [20, 20, 40, 40]


def test_two_processes_give_the_same_records(train_file, test_file, tmp_path):
    words = ("--test", test_file, "--vary", "l1=1e-4,1e-3", *WORDS)
    sweep(train_file, *words, "--out", tmp_path / "one.jsonl")
    sweep(train_file, *words, "--out", tmp_path / "two.jsonl", "--jobs", 2)
    one, two = ([timeless(row) for row in read_records(tmp_path / f"{name}.jsonl")] for name in ("one", "two"))
    assert sorted(two, key=lambda row: row["settings"]["l1"]) == one


def test_other_data_are_refused(train_file, test_file, tmp_path):
    records, words = tmp_path / "s.jsonl", ("--vary", "l1=1e-4", *WORDS, "--out")
    sweep(train_file, *words, records)
    (tmp_path / "copy.csv").write_bytes(train_file.read_bytes())
    sweep(tmp_path / "copy.csv", *words, records)  # wherever they are
    assert len(read_records(records)) == 1
    other = write(tmp_path / "other.csv", 150, seed=9)
    with pytest.raises(ValueError, match=r"has trials on other data: 200 documents with sha256 .* here 150 with"):
        sweep(other, *words, records)
    with pytest.raises(ValueError, match="has trials on other data"):  # another test is other data, too
        sweep(train_file, "--test", test_file, *words, records)
    (tmp_path / "ratings.csv").write_text("user,item,rating\n" + "".join(f"{n % 7},{n % 11},{n % 5}\n" for n in range(99)))
    with pytest.raises(ValueError, match=r"has trials of classify, these are of recommend; choose another file"):
        call("sweep", tmp_path / "ratings.csv", "--vary", "price=1", "--set", "solver=cd", "--out", records)


def test_which_file_is_learned_is_part_of_what_the_data_are(train_file, test_file):
    a, b = Texts(TextSettings(str(train_file), str(test_file))), Texts(TextSettings(str(test_file), str(train_file)))
    assert a.digest != b.digest
    assert (len(a), len(b)) == (200, 80)


def test_a_trial_that_fails_by_its_settings_is_a_record(train_file, tmp_path, count_runs):
    words = ("--vary", "budget=3,10KB", *WORDS, "--set", "anchors=4", "--out", tmp_path / "s.jsonl", "--json")
    told = json.loads(sweep(train_file, *words))  # an anchor alone has 4 numbers
    assert (told["failed"], [row["settings"] for row in told["front"]]) == (1, [{"budget": "10KB"}])
    failed, good = read_records(tmp_path / "s.jsonl")
    assert "budget" in failed["failed"]
    assert (failed["task"], failed["documents"], failed["seed"]) == ("classify", 200, 0)
    assert "failed" not in good
    sweep(train_file, *words)
    assert count_runs.call_count == 2


def test_kept_runs_are_gone_on_with(train_file, tmp_path, count_runs):
    for words in (("--vary", "l1=1e-3", *WORDS), ("--vary", "size=1KB", *TINY)):
        for name in "st":  # killed after the run, before its record
            sweep(train_file, *words, "--keep", tmp_path / "runs", "--out", tmp_path / f"{name}.jsonl")
    assert [kept.kwargs["resume"] for kept in count_runs.call_args_list] == [False, True]
    first, second = ([timeless(row) for row in read_records(tmp_path / f"{name}.jsonl")] for name in "st")
    assert first == second
    assert len(first) == 2


def test_seeds_are_averaged(train_file, tmp_path):
    told = json.loads(sweep(train_file, "--vary", "l1=1e-4", "--seeds", "0,1", *WORDS, "--out", tmp_path / "s.jsonl", "--json"))
    errors = [row["validation"]["error"] for row in read_records(tmp_path / "s.jsonl")]
    (row,) = told["front"]
    assert row["seeds"] == [0, 1]
    assert row["error"] == pytest.approx(sum(errors) / 2)


def test_tiny_classifiers_of_several_sizes_beside_a_bag(train_file, test_file, tmp_path):
    out = ("--test", test_file, "--out", tmp_path / "s.jsonl")
    told = json.loads(sweep(train_file, "--vary", "size=0.4KB,2KB", *TINY, *out, "--json"))
    assert told["error"] == "validation"
    small, large = rows = read_records(tmp_path / "s.jsonl")
    assert small["bytes"] <= 400 < large["bytes"] <= 2000
    assert small["validation"]["examples"] == 20  # of 200: by documents that were not learned
    assert small["validation"]["accuracy"] < 1
    alone = json.loads(call(*shlex.split(small["command"])[1:], "--out", tmp_path / "alone", "--json"))
    assert (alone["test"], alone["validation"]) == (small["test"], None)  # whoever does not choose learns all
    with pytest.raises(ValueError, match="alone is a tiny classifier, of which eq"):
        call("select", tmp_path / "alone", "--lambda1", 1)
    with mock.patch.object(task.tiny, "read", side_effect=task.tiny.read) as read:
        sweep(train_file, "--vary", "model=bag,tiny", *out)
    assert read.call_count == 1  # it has no vocabulary, so it does not take what the bag has read
    *_, bag, tiny = read_records(tmp_path / "s.jsonl")
    assert [row["model"] for row in (*rows, bag, tiny)] == ["tiny", "tiny", "bag", "tiny"]
    alone = json.loads(call(*shlex.split(tiny["command"])[1:], "--out", tmp_path / "other", "--json"))
    assert (alone["test"], alone["nnz"]) == (tiny["test"], tiny["nnz"])


def test_optuna_goes_on_with_the_records(train_file, tmp_path, count_runs):
    pytest.importorskip("optuna")
    axes = ("--vary", "l1=1e-5..1e-3:log", "--vary", "anchors=2..4", "--vary", "text=2,2/3")
    words = (*axes, *WORDS, "--out", tmp_path / "s.jsonl", "--json", "--trials")
    sweep(train_file, *words, 2)
    told = json.loads(sweep(train_file, *words, 4, "--optuna"))
    assert count_runs.call_count == 4  # the two that were drawn count
    rows = read_records(tmp_path / "s.jsonl")
    assert told["settings"] == len({json.dumps(row["settings"]) for row in rows}) == 4
    assert all(2 <= row["settings"]["anchors"] <= 4 and row["settings"]["text"] in (["2"], ["2", "3"]) for row in rows)


def test_the_records_of_a_sweep_can_be_selected_among(train_file, tmp_path):
    sweep(train_file, "--vary", "anchors=2,6", *WORDS, "--out", tmp_path / "s.jsonl", "--keep", tmp_path / "runs")
    for sources in ([tmp_path / "s.jsonl"], sorted((tmp_path / "runs").iterdir())):
        cheap, dear = (json.loads(call("select", *sources, "--lambda1", price, "--json"))["ranking"] for price in (1e-4, 10))
        assert dear[0]["words"] < dear[1]["words"]
        assert cheap[0]["objective"] < dear[0]["objective"]


def test_tasks_have_what_their_settings_have():
    for known in task.TASKS.values():
        assert {*known.once, *known.hashed, "threads", "seed"} <= set(known.kinds)
