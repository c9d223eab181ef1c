"""Sweeps: what is asked is what is run, each trial once, whatever stops it; and the front is the front."""

import json
from pathlib import Path
from unittest import mock

import pytest
import typer
from antembed.pipelines import recommend
from antembed.pipelines import sweep as job
from antembed.pipelines.recommend import train
from antembed.pipelines.settings import Settings
from antembed.pipelines.space import Choices, Range, draws, grid, parse_axes, parse_axis, parse_fixed, parse_seeds
from antembed.reporting import read_records
from antembed.reporting.front import MOVIELENS_1M, pareto
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from antembed.cli.app import app
from antembed.data import read_ratings
from antembed.data.synthetic import planted, ratings

FIXED = {"solver": "cd", "dimensions": 3, "epochs": 1, "anchors": (2, 2)}
BARE = ("--set", "solver=cd", "--set", "dimensions=3", "--set", "epochs=1")
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
        result = CliRunner().invoke(app, words, env={"COLUMNS": "200"})
    if isinstance(result.exception, ValueError | OSError):
        raise result.exception
    assert result.exit_code == code, result.output
    return result.stdout if code == 0 else result.output


def timeless(row):
    return {name: value for name, value in row.items() if name not in ("date", "seconds", "threads")}


@pytest.fixture
def count_runs():
    with mock.patch.object(recommend, "train", side_effect=train) as counted:
        yield counted


# the space


def test_lists_and_ranges_are_read_by_the_type_of_the_option():
    assert parse_axis("l1=1e-5,3e-5") == Choices("l1", (1e-5, 3e-5))
    assert parse_axis("anchors=5,40/16") == Choices("anchors", ((5, 5), (40, 16)))
    assert parse_axis("biases=true,false") == Choices("biases", (True, False))
    assert parse_axis("ridge-each=0.1,1") == Choices("ridge_each", (0.1, 1.0))
    assert parse_axis("lr=0.003..0.03:log") == Range("lr", 0.003, 0.03, log=True)
    assert parse_axis("anchors=5..40") == Range("anchors", 5, 40, log=False)
    assert parse_fixed(["columns=u,i,r", "anchors=40,16", "epochs=3"]) == {
        "columns": ("u", "i", "r"), "anchors": (40, 16), "epochs": 3}  # fmt: skip


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("rigde=1,2", "'rigde' is no option of a run; there are: columns, on_error, split, .*ridge"),
        ("l1", r"lists no values; say --vary l1=VALUE,VALUE"),
        ("l1=1,x", "l1 'x' is not a number"),
        ("epochs=1.5", "epochs '1.5' is not a whole number"),
        ("biases=maybe", "biases 'maybe' is not true or false"),
        ("anchors=5/6/7", "anchors '5/6/7' is not a number of anchors: 15, or 40/16"),
        ("l1=1,1.0", "has 2 values, 1 of them different"),
        ("solver=a..b", "solver is no number"),
        ("lr=1..2..3", "lr=1..2..3 is no range"),
        ("lr=1..2:cubic", "the scale 'cubic' is not log"),
        ("lr=2..1", "2.0 is not below 1.0"),
        ("lr=0..1:log", "a log scale starts above 0, not at 0.0"),
        ("seed=0,1", "--seeds 0,1,2"),
        ("threads=1,2", "it changes no result"),
        ("columns=a,b", "the data are read once"),
    ],
)
def test_what_cannot_be_varied(text, told):
    with pytest.raises(ValueError, match=told):
        parse_axis(text)


def test_what_else_is_wrong():
    with pytest.raises(ValueError, match="l1 is varied 2 times"):
        parse_axes(["l1=1,2", "l1=3"])
    with pytest.raises(ValueError, match="epochs is set twice, to 3 and 4"):
        parse_fixed(["epochs=3", "epochs=4"])
    with pytest.raises(ValueError, match="say --seeds 7"):
        parse_fixed(["seed=7"])
    with pytest.raises(ValueError, match="gives no value; say --set epochs=VALUE"):
        parse_fixed(["epochs"])
    with pytest.raises(ValueError, match="'0,0' is no list of different seeds"):
        parse_seeds("0,0")
    with pytest.raises(ValueError, match="l1 is a range; say how many points to draw with --trials"):
        grid([parse_axis("l1=1..2")])
    with pytest.raises(ValueError, match=r"l1 is both set \(to 3\) and varied"):
        job.plan("r.csv", [{"l1": 1}], {"l1": 3}, [0], 100)


def test_the_grid_has_every_combination():
    points = grid(parse_axes(["l1=1,2,3", "biases=true,false"]))
    assert len(points) == 6
    assert points[:2] == [{"l1": 1.0, "biases": True}, {"l1": 1.0, "biases": False}]


def test_draws_keep_their_bounds_are_different_and_go_on_where_fewer_ended():
    axes = parse_axes(["lr=0.001..1:log", "anchors=2..4", "dimensions=1..100:log", "biases=true,false"])
    points = draws(axes, 64, seed=0)
    assert len({tuple(point.values()) for point in points}) == 64
    assert points[:10] == draws(axes, 10, seed=0) != draws(axes, 10, seed=1)
    assert all(0.001 <= point["lr"] <= 1 and float(f"{point['lr']:.4g}") == point["lr"] for point in points)
    assert {point["anchors"] for point in points} == {(2, 2), (3, 3), (4, 4)}
    assert 0.25 < sum(point["lr"] < 0.0316 for point in points) / 64 < 0.75  # half of a log scale
    assert all(1 <= point["dimensions"] <= 100 for point in points)
    assert sorted(point["anchors"] for point in draws([axes[1]], 9, seed=0)) == [(2, 2), (3, 3), (4, 4)]  # there are no more


@given(share=st.floats(0, 1, exclude_max=True), log=st.booleans(), low=st.integers(1, 50), more=st.integers(1, 50))
def test_any_share_of_a_range_is_in_it(share, log, low, more):
    assert low <= Range("epochs", low, low + more, log).at(share) <= low + more
    assert low / 7 <= Range("lr", low / 7, low / 7 + more, log).at(share) <= low / 7 + more


def test_every_option_of_a_trial_can_be_typed():
    options = {
        name
        for command in typer.main.get_command(app).commands["train"].commands["recommend"].params
        for name in (*command.opts, *command.secondary_opts)
    }
    given = {name: getattr(Settings("r.csv"), name) for name in job.RECOMMEND.defaults}
    for biases in (True, False):
        words = job.command_of("r.csv", given | {"biases": biases}).split()
        assert {word for word in words if word.startswith("--")} <= options
    assert "--anchors 40,16 --no-biases" in job.command_of("r.csv", {"anchors": (40, 16), "biases": False})


# running it


def test_a_sweep_is_what_single_runs_would_be(data, tmp_path):
    records, words = tmp_path / "s.jsonl", ("--vary", "price=0.1,1", "--vary", "anchors=2,3/2", *BARE)
    told = json.loads(call("sweep", data, *words, "--out", records, "--json", "--keep", tmp_path / "runs"))
    rows = read_records(records)
    assert [row["settings"] for row in rows] == [
        {"price": price, "anchors": anchors} for price in (0.1, 1) for anchors in ([2, 2], [3, 2])
    ]
    alone = json.loads(call(*rows[1]["command"].split()[1:], "--out", tmp_path / "alone", "--json"))
    assert alone["test"] == rows[1]["test"]
    assert alone["nnz"] == rows[1]["nnz"]
    assert len(list((tmp_path / "runs").glob("*/items.ant"))) == 4
    assert told["error"] == "validation"
    assert told["settings"] == 4
    best = min(rows, key=lambda row: row["validation"]["mse"])
    assert told["front"][0]["settings"] == best["settings"]
    assert told["front"][0]["error"] == best["validation"]["mse"]


def test_a_stopped_sweep_goes_on_without_repeating(data, tmp_path, count_runs):
    read, records = read_ratings(data), tmp_path / "s.jsonl"
    trials = job.plan(str(data), grid([parse_axis("price=0.1,0.3,1")]), FIXED, [0], len(read))

    def stop(row):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        job.sweep(trials, records, read, tell=stop)
    assert len(read_records(records)) == 1
    with records.open("a") as file:
        file.write('{"task": "reco')  # torn by a kill
    rows = job.sweep(trials, records, read)
    assert count_runs.call_count == 3
    assert [row["settings"]["price"] for row in rows] == [0.1, 0.3, 1]
    assert rows == read_records(records)
    job.sweep(trials, records, read)
    assert count_runs.call_count == 3
    others = job.plan(str(data), grid([parse_axis("price=0.1,0.3,1")]), FIXED | {"dimensions": 2}, [0], len(read))
    job.sweep(others[:1], records, read)
    assert count_runs.call_count == 4  # what is set counts as well as what is varied


def test_records_from_before_an_option_existed_count_as_its_default():
    config = job.Trial({}, Settings("r.csv"), "").config
    assert job.key_of(config) == job.key_of({name: value for name, value in config.items() if name != "unseen"})
    assert job.key_of(config) == job.key_of(json.loads(json.dumps(config)))
    assert job.key_of(config) != job.key_of(config | {"unseen": 0.1})


def test_two_processes_give_the_same_records(data, tmp_path):
    words = ("sweep", data, "--vary", "price=0.1,1", *WORDS)
    call(*words, "--out", tmp_path / "one.jsonl")
    call(*words, "--out", tmp_path / "two.jsonl", "--jobs", 2)
    one, two = ([timeless(row) for row in read_records(tmp_path / f"{name}.jsonl")] for name in ("one", "two"))
    assert sorted(two, key=lambda row: row["settings"]["price"]) == one


def test_seeds_are_averaged(data, tmp_path):
    records = tmp_path / "s.jsonl"
    told = json.loads(call("sweep", data, "--vary", "price=0.3", "--seeds", "0,1", *WORDS, "--out", records, "--json"))
    errors = [row["validation"]["mse"] for row in read_records(records)]
    (row,) = told["front"]
    assert row["seeds"] == [0, 1]
    assert row["error"] == pytest.approx(sum(errors) / 2)
    assert row["spread"] == pytest.approx(abs(errors[0] - errors[1]) / 2)
    assert "price=0.3" in call("sweep", data, "--vary", "price=0.3", "--seeds", "0,1", *WORDS, "--out", records)


def test_a_trial_that_diverges_is_a_record_and_not_the_end(data, tmp_path, count_runs):
    words = ("sweep", data, "--vary", "price=0.1,1", *WORDS, "--out", tmp_path / "s.jsonl", "--json")
    count_runs.side_effect = lambda settings, *rest, **more: (
        train(settings, *rest, **more) if settings.price == 1 else (_ for _ in ()).throw(ValueError("the loss is nan"))
    )
    told = json.loads(call(*words))
    assert told["failed"] == 1
    assert [row["settings"] for row in told["front"]] == [{"price": 1.0}]
    assert [row.get("failed") for row in read_records(tmp_path / "s.jsonl")] == ["the loss is nan", None]
    call(*words)
    assert count_runs.call_count == 2
    with pytest.raises(ValueError, match="all 1 trials failed; the first: the loss is nan"):
        call("sweep", data, "--vary", "price=0.1", *WORDS, "--out", tmp_path / "s.jsonl")


def test_records_of_other_data_are_left_alone(data, tmp_path):
    records, words = tmp_path / "s.jsonl", ("--vary", "price=1", *WORDS)
    call("sweep", data, *words, "--out", records)
    other = write(tmp_path / "other.csv", 9)
    with pytest.raises(ValueError, match=r"has trials on other data: 1500 ratings with sha256 .* here 1500 with"):
        call("sweep", other, *words, "--out", records)
    (tmp_path / "x.jsonl").write_text('{"benchmark": "step"}\n')
    with pytest.raises(ValueError, match="line 1 is no trial of a sweep; choose another file with --out"):
        call("sweep", data, *words, "--out", tmp_path / "x.jsonl")


def test_wrong_calls_say_what_is_known(data):
    assert "there are: columns" in call("sweep", data, "--vary", "speed=1,2", code=2)
    assert "is none of: prox, cd" in call("sweep", data, "--vary", "solver=prox,magic", code=2)
    with pytest.raises(ValueError, match="a sweep of 0 trials"):
        job.sweep([], "s.jsonl", read_ratings(data))


def test_a_kept_run_is_gone_on_with(data, tmp_path, count_runs):
    words = ("sweep", data, "--vary", "price=1", *WORDS, "--keep", tmp_path / "runs", "--out")
    call(*words, tmp_path / "s.jsonl")
    call(*words, tmp_path / "t.jsonl")  # killed after the run, before its record
    assert [kept.kwargs["resume"] for kept in count_runs.call_args_list] == [False, True]
    first, second = (read_records(tmp_path / f"{name}.jsonl") for name in "st")
    assert [timeless(row) for row in first] == [timeless(row) for row in second]


def test_optuna_goes_on_with_the_records_and_keeps_to_the_space(data, tmp_path, count_runs):
    pytest.importorskip("optuna")
    axes = ("--vary", "price=0.1..1:log", "--vary", "anchors=2..4", "--vary", "biases=true,false")
    words = ("sweep", data, *axes, *BARE, "--optuna", "--out", tmp_path / "s.jsonl", "--json", "--trials")
    call(*words, 3)
    assert count_runs.call_count == 3
    told = json.loads(call(*words, 5))
    assert count_runs.call_count == 5
    rows = read_records(tmp_path / "s.jsonl")
    assert told["settings"] == len({json.dumps(row["settings"]) for row in rows}) == 5
    assert all(0.1 <= row["settings"]["price"] <= 1 and 2 <= row["settings"]["anchors"][0] <= 4 for row in rows)
    assert "--trials 16" in call("sweep", data, *axes, "--optuna", code=2)


def test_what_is_missing_is_said_before_the_first_trial(data, tmp_path):
    with mock.patch("importlib.util.find_spec", return_value=None):
        for option, remedy in ((("--optuna",), r"antembed\[sweep\]"), (("--plot", "f.svg"), r"antembed\[plot\]")):
            with pytest.raises(ValueError, match=remedy):
                call("sweep", data, "--vary", "price=1", *option, "--out", tmp_path / "s.jsonl")
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
    words = ("sweep", data, "--vary", "price=0.1,1", *WORDS, "--out", tmp_path / "s.jsonl")
    assert "paper: nbANT" not in call(*words, "--plot", tmp_path / "ours.svg")
    assert "paper: nbANT" in call(*words, "--plot", tmp_path / "docs" / "both.svg", "--paper")
    assert "paper: nbANT (test)" not in (tmp_path / "ours.svg").read_text()
    assert "paper: nbANT (test)" in (tmp_path / "docs" / "both.svg").read_text()


@pytest.mark.shared_data
def test_movielens_1m_is_known(shared_data):
    assert read_ratings(shared_data / "ml-1m" / "ratings.dat").digest == MOVIELENS_1M
