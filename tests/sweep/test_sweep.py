"""Sweeps: what is asked is what is run, each trial once, whatever stops it; and the front is the front."""

import json
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from antembed.cli.app import app
from antembed.recommend.config import RatingsConfig, _read
from antembed.recommend.dataset import cut
from antembed.recommend.read_ratings import read_ratings
from antembed.recommend.synthetic import planted, ratings
from antembed.recommend.task import MOVIELENS_1M, Ratings
from antembed.sweep import trials as job
from antembed.sweep.front import pareto
from antembed.sweep.records import read_records
from antembed.sweep.space import grid, parse_axis
from antembed.train.options import from_options
from antembed.train.run import train

TASK = Ratings()
FIXED = {"solver": "coordinate_descent", "embedding_dim": 3, "epochs": 1, "anchors": (2, 2)}
BARE = ("--set", "solver=coordinate_descent", "--set", "embedding-dim=3", "--set", "epochs=1")
WORDS = (*BARE, "--set", "anchors=2")


def write(file: Path, seed: int) -> Path:
    users, items = planted(60, 3, anchors=3, seed=seed), planted(30, 3, anchors=3, seed=seed + 1)
    r = ratings(users, items, 1500, seed=seed + 2)
    rows = (f"u{u},{i},{v:.4f}" for u, i, v in zip(r.users, r.items, r.values, strict=True))
    file.write_text("user,item,rating\n" + "\n".join(rows))
    return file


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return write(tmp_path_factory.mktemp("data") / "ratings.csv", 0)


def call(*arguments, code=0):
    words = [str(a) for a in arguments]
    with mock.patch("sys.argv", ["antembed", *words]):
        result = CliRunner().invoke(app, words, env={"COLUMNS": "300"})
    if isinstance(result.exception, ValueError | OSError):
        raise result.exception
    assert result.exit_code == code, result.output + repr(result.exception)
    return result.stdout if code == 0 else result.output


def timeless(row):
    """Without what may differ from one run to the next."""
    return {name: value for name, value in row.items() if name not in ("date", "seconds", "threads")} | {
        "config": row["config"] | {"machine": row["config"]["machine"] | {"threads": 0}}
    }


@pytest.fixture
def count_runs():
    with mock.patch.object(job, "train", side_effect=train) as counted:
        yield counted


def test_a_sweep_is_what_single_runs_would_be(data, tmp_path):
    records, words = tmp_path / "s.jsonl", ("--vary", "l0-penalty=0.1,1", "--vary", "anchors=2,3/2", *BARE)
    found = json.loads(call("sweep", data, *words, "--out", records, "--json", "--keep", tmp_path / "runs"))
    rows = read_records(records)
    assert [row["settings"] for row in rows] == [
        {"l0_penalty": penalty, "anchors": anchors} for penalty in (0.1, 1) for anchors in ([2], [3, 2])
    ]
    alone = json.loads(call(*rows[1]["command"].split()[1:], "--out", tmp_path / "alone", "--json"))
    assert alone["test"] == rows[1]["test"]
    assert alone["nnz"] == rows[1]["nnz"]
    assert len(list((tmp_path / "runs").glob("*/items.ant"))) == 4
    assert found["error"] == "validation"
    assert found["settings"] == 4
    best = min(rows, key=lambda row: row["validation"]["mse"])
    assert found["front"][0]["settings"] == best["settings"]
    assert found["front"][0]["error"] == best["validation"]["mse"]


def test_a_stopped_sweep_goes_on_without_repeating(data, tmp_path, count_runs):
    splits, records = cut(read_ratings(data), "80/10/10", 0), tmp_path / "s.jsonl"
    points = grid([parse_axis("l0_penalty=0.1,0.3,1", TASK)])
    trials = job.plan(TASK, str(data), points, FIXED, [0], splits.count)

    def stop(row):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        job.sweep(trials, records, splits, callback=stop)
    assert len(read_records(records)) == 1
    with records.open("a") as file:
        file.write('{"task": "reco')  # torn by a kill
    rows = job.sweep(trials, records, splits)
    assert count_runs.call_count == 3
    assert [row["settings"]["l0_penalty"] for row in rows] == [0.1, 0.3, 1]
    assert rows == read_records(records)
    job.sweep(trials, records, splits)
    assert count_runs.call_count == 3
    others = job.plan(TASK, str(data), points, FIXED | {"embedding_dim": 2}, [0], splits.count)
    job.sweep(others[:1], records, splits)
    assert count_runs.call_count == 4  # what is set counts as well as what is varied


def test_data_are_read_once(data, tmp_path):
    _read.cache_clear()
    with mock.patch("antembed.recommend.config.read_ratings", side_effect=read_ratings) as read:
        call("sweep", data, "--vary", "l0-penalty=0.1,0.3,1", *WORDS, "--out", tmp_path / "s.jsonl")
    assert read.call_count == 1


def test_equal_settings_are_equal_wherever_the_data_lie_and_however_many_threads():
    def key(**options):
        config = from_options(RatingsConfig, {"data": "r.csv"} | options).model_dump(mode="json")
        assert job.key_of(config) == job.key_of(json.loads(json.dumps(config)))
        return job.key_of(config)

    assert key() == key(data="elsewhere/r.csv") == key(threads=2) == key(l1_penalty=1e-4)
    assert key() == key(columns="u,i,r") == key(on_error="skip")  # the ratings that were read are in the digest
    assert len({key(), key(seed=1), key(l1_penalty=1e-3), key(solver="coordinate_descent"), key(split="90/10")}) == 5


def test_records_from_before_an_option_existed_count_as_its_default(data, tmp_path, count_runs):
    splits, records = cut(read_ratings(data), "80/10/10", 0), tmp_path / "s.jsonl"
    trials = job.plan(TASK, str(data), [{"l0_penalty": 1.0}], FIXED, [0], splits.count)
    job.sweep(trials, records, splits)
    (row,) = read_records(records)
    del row["config"]["solver"]["unobserved_weight"], row["config"]["export"]
    records.write_text(json.dumps(row) + "\n")
    job.sweep(trials, records, splits)
    assert count_runs.call_count == 1
    row["config"]["solver"]["unobserved_weight"] = 0.1
    records.write_text(json.dumps(row) + "\n")
    job.sweep(trials, records, splits)
    assert count_runs.call_count == 2
    row["config"]["solver"]["gone"] = 1  # an option that there is no more: none of today's trials
    records.write_text(json.dumps(row) + "\n")
    job.sweep(trials, records, splits)
    assert count_runs.call_count == 3


def test_two_processes_give_the_same_records(data, tmp_path):
    words = ("sweep", data, "--vary", "l0-penalty=0.1,1", *WORDS)
    call(*words, "--out", tmp_path / "one.jsonl")
    call(*words, "--out", tmp_path / "two.jsonl", "--jobs", 2)
    one, two = ([timeless(row) for row in read_records(tmp_path / f"{name}.jsonl")] for name in ("one", "two"))
    assert sorted(two, key=lambda row: row["settings"]["l0_penalty"]) == one


def test_seeds_are_averaged(data, tmp_path):
    records, words = tmp_path / "s.jsonl", ("--vary", "l0-penalty=0.3", "--seeds", "0,1", *WORDS)
    found = json.loads(call("sweep", data, *words, "--out", records, "--json"))
    errors = [row["validation"]["mse"] for row in read_records(records)]
    (row,) = found["front"]
    assert row["seeds"] == [0, 1]
    assert row["error"] == pytest.approx(sum(errors) / 2)
    assert row["spread"] == pytest.approx(abs(errors[0] - errors[1]) / 2)
    assert "l0_penalty=0.3" in call("sweep", data, *words, "--out", records)


def test_a_trial_that_diverges_is_a_record_and_not_the_end(data, tmp_path, count_runs):
    words = ("sweep", data, "--vary", "l0-penalty=0.1,1", *WORDS, "--out", tmp_path / "s.jsonl", "--json")

    def diverging(config, *rest, **more):
        if config.solver.penalties.l0_penalty == 1:
            return train(config, *rest, **more)
        raise ValueError("the loss is nan")

    count_runs.side_effect = diverging
    found = json.loads(call(*words))
    assert found["failed"] == 1
    assert [row["settings"] for row in found["front"]] == [{"l0_penalty": 1.0}]
    assert [row.get("failed") for row in read_records(tmp_path / "s.jsonl")] == ["the loss is nan", None]
    call(*words)
    assert count_runs.call_count == 2
    with pytest.raises(ValueError, match="all 1 trials failed; the first: the loss is nan"):
        call("sweep", data, "--vary", "l0-penalty=0.1", *WORDS, "--out", tmp_path / "s.jsonl")


def test_records_of_other_data_are_left_alone(data, tmp_path):
    records, words = tmp_path / "s.jsonl", ("--vary", "l0-penalty=1", *WORDS)
    call("sweep", data, *words, "--out", records)
    other = write(tmp_path / "other.csv", 9)
    with pytest.raises(ValueError, match=r"has trials on other data: 1500 ratings with sha256 .* here 1500 with"):
        call("sweep", other, *words, "--out", records)
    (tmp_path / "copy.csv").write_bytes(data.read_bytes())
    call("sweep", tmp_path / "copy.csv", *words, "--out", records)  # the same, wherever they are
    assert len(read_records(records)) == 1
    (tmp_path / "x.jsonl").write_text('{"benchmark": "step"}\n')
    with pytest.raises(ValueError, match="line 1 is no trial of a sweep; choose another file with --out"):
        call("sweep", data, *words, "--out", tmp_path / "x.jsonl")


def test_wrong_calls_say_what_is_known(data, tmp_path):
    nowhere = tmp_path / "nowhere.csv"  # said before the data are read
    told = call("sweep", nowhere, "--vary", "speed=1,2", code=2)
    assert "'speed' is no option of a run; there are: " in told
    assert "columns" in told
    assert "is both set (to 3) and varied" in call("sweep", nowhere, "--vary", "epochs=1,2", "--set", "epochs=3", code=2)
    told = call("sweep", nowhere, "--vary", "solver=stochastic,magic", code=2)
    assert "solver 'magic' is none of: stochastic, coordinate_descent, online" in told
    told = call("sweep", nowhere, "--vary", "lr=0.1,0.2", "--set", "solver=coordinate_descent", code=2)
    assert "--lr is an option of --solver stochastic" in told
    told = call("sweep", nowhere, "--vary", "anchors=5/6/7", code=2)
    assert "3 numbers of anchors for 2 tables; give one, or one for each" in told
    assert "--task" in call("sweep", nowhere, "--vary", "l1-penalty=0", "--task", "vision", code=2)
    with pytest.raises(ValueError, match="a sweep of 0 trials"):
        job.sweep([], "s.jsonl", cut(read_ratings(data), "80/10/10", 0))


def test_a_stream_is_not_swept_over(data, tmp_path):
    told = call("sweep", data, "--vary", "l0-penalty=1,2", "--set", "solver=online", "--out", tmp_path / "s.jsonl", code=2)
    assert "a stream has no validation data to compare settings by" in told
    assert not (tmp_path / "s.jsonl").exists()


def test_a_kept_run_is_gone_on_with(data, tmp_path, count_runs):
    words = ("sweep", data, "--vary", "l0-penalty=1", *WORDS, "--keep", tmp_path / "runs", "--out")
    call(*words, tmp_path / "s.jsonl")
    call(*words, tmp_path / "t.jsonl")  # killed after the run, before its record
    assert [kept.kwargs["resume"] for kept in count_runs.call_args_list] == [False, True]
    first, second = (read_records(tmp_path / f"{name}.jsonl") for name in "st")
    assert [timeless(row) for row in first] == [timeless(row) for row in second]


def test_optuna_goes_on_with_the_records_and_keeps_to_the_space(data, tmp_path, count_runs):
    pytest.importorskip("optuna")
    axes = ("--vary", "l0-penalty=0.1..1:log", "--vary", "anchors=2..4", "--vary", "biases=true,false")
    words = ("sweep", data, *axes, *BARE, "--optuna", "--out", tmp_path / "s.jsonl", "--json", "--trials")
    call(*words, 3)
    assert count_runs.call_count == 3
    found = json.loads(call(*words, 5))
    assert count_runs.call_count == 5
    rows = read_records(tmp_path / "s.jsonl")
    assert found["settings"] == len({json.dumps(row["settings"]) for row in rows}) == 5
    assert all(0.1 <= row["settings"]["l0_penalty"] <= 1 and 2 <= row["settings"]["anchors"][0] <= 4 for row in rows)
    assert "--trials 16" in call("sweep", data, *axes, "--optuna", code=2)


def test_what_is_missing_is_said_before_the_first_trial(data, tmp_path):
    with mock.patch("importlib.util.find_spec", return_value=None):
        for option, remedy in ((("--optuna",), r"\.\[sweep\]"), (("--plot", "f.svg"), r"\.\[plot\]")):
            with pytest.raises(ValueError, match=remedy):
                call("sweep", data, "--vary", "l0-penalty=1", *option, "--out", tmp_path / "s.jsonl")
    assert not (tmp_path / "s.jsonl").exists()


# the front

POINTS = st.lists(st.tuples(*[st.sampled_from([0.0, 1.0, 2.0, 3.0, float("nan")])] * 2), max_size=12)


def beats(a, b):
    return a[0] <= b[0] and a[1] <= b[1] and a != b


@given(POINTS)
def test_the_front_is_what_nothing_beats_and_beats_all_else(points):
    front = pareto(points)
    finite = {n for n, point in enumerate(points) if point[0] == point[0] and point[1] == point[1]}
    assert set(front) <= finite
    assert not any(beats(points[m], points[n]) for n in front for m in finite)
    assert all(any(beats(points[m], points[n]) for m in front) for n in finite - set(front))
    assert [points[n][0] for n in front] == sorted(points[n][0] for n in front)


def test_the_front_is_drawn_with_the_papers_points_if_asked(data, tmp_path):
    words = ("sweep", data, "--vary", "l0-penalty=0.1,1", *WORDS, "--out", tmp_path / "s.jsonl")
    assert "paper: nbANT" not in call(*words, "--plot", tmp_path / "ours.svg")
    assert "paper: nbANT" in call(*words, "--plot", tmp_path / "docs" / "both.svg", "--paper")
    assert "paper: nbANT (test)" not in (tmp_path / "ours.svg").read_text()
    assert "paper: nbANT (test)" in (tmp_path / "docs" / "both.svg").read_text()


@pytest.mark.shared_data
def test_movielens_1m_is_known(shared_data):
    ratings_of_movielens = read_ratings(shared_data / "ml-1m" / "ratings.dat")
    assert ratings_of_movielens.digest == MOVIELENS_1M
    assert TASK.is_published(cut(ratings_of_movielens, "80/10/10", 0))
