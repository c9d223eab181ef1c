"""The space of a sweep: options are read by their types, wrong ones are refused, grids and draws are what was asked for."""

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from antembed.cli.app import app
from antembed.sweep.records import IRRELEVANT, SEED
from antembed.sweep.space import (
    WHICH_DATA,
    Choices,
    Range,
    draws,
    grid,
    option_of,
    parse_axes,
    parse_axis,
    parse_fixed,
    parse_seeds,
)
from antembed.sweep.trials import command_of, plan
from antembed.train.options import from_options, options_of, to_options
from antembed.train.registry import TASKS

RATINGS, TEXT, NGRAMS = TASKS["recommend"], TASKS["classify"], TASKS["classify-ngrams"]


def choices(name, values, task=RATINGS):
    return Choices(option_of(name, task), values)


def between(name, low, high, log, task=RATINGS):
    return Range(option_of(name, task), low, high, log=log)


def test_lists_and_ranges_are_read_by_the_type_of_the_option():
    assert parse_axis("l1-penalty=1e-5,3e-5", RATINGS) == choices("l1_penalty", (1e-5, 3e-5))
    assert parse_axis("anchors=5,40/16", RATINGS) == choices("anchors", ((5,), (40, 16)))
    assert parse_axis("biases=true,false", RATINGS) == choices("biases", (True, False))
    assert parse_axis("ridge-per-rating=0.1,1", RATINGS) == choices("ridge_per_rating", (0.1, 1.0))
    assert parse_axis("lr=0.003..0.03:log", RATINGS) == between("lr", 0.003, 0.03, log=True)
    assert parse_axis("anchors=5..40", RATINGS) == between("anchors", 5, 40, log=False)
    assert parse_axis("solver=stochastic,coordinate_descent", RATINGS).values == ("stochastic", "coordinate_descent")
    assert parse_fixed(["columns=u,i,r", "anchors=40,16", "epochs=3"], RATINGS) == {
        "columns": ("u", "i", "r"), "anchors": (40, 16), "epochs": 3}  # fmt: skip


def test_values_of_text_are_read_by_the_type_of_the_option(tmp_path):
    assert parse_axis("anchors=5,20,auto", TEXT) == choices("anchors", ((5,), (20,), "auto"), TEXT)
    assert parse_axis("text=title,title/text", TEXT) == choices("text", (("title",), ("title", "text")), TEXT)
    (tmp_path / "pairs.csv").write_text("a,b")
    axis = parse_axis(f"relations=wordnet/cooccurrence,{tmp_path}/pairs.csv", TEXT)
    assert axis == choices("relations", (("wordnet", "cooccurrence"), (f"{tmp_path}/pairs.csv",)), TEXT)
    assert parse_fixed(["text=title,text", "label=1", "relations=", "word-dropout=0"], TEXT) == {
        "text": ("title", "text"), "label": "1", "relations": (), "word_dropout": 0.0}  # fmt: skip
    assert parse_fixed([f"relations={tmp_path}/pairs.csv"], TEXT) == {"relations": (f"{tmp_path}/pairs.csv",)}
    points = draws(parse_axes(["l1-penalty=1e-5..3e-4:log", "anchors=2..4"], TEXT), 32, seed=0)
    assert {point["anchors"] for point in points} == {(2,), (3,), (4,)}
    assert all(1e-5 <= point["l1_penalty"] <= 3e-4 for point in points)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("rigde=1,2", "'rigde' is no option of a run; there are: .*columns, implicit, on_error, split.*"),
        ("rigde=1,2", "'rigde' is no option of a run; there are: .*ridge"),
        ("l1-penalty", r"lists no values; say --vary l1-penalty=VALUE,VALUE"),
        ("l1-penalty=1,x", "l1_penalty 'x' is not a number"),
        ("epochs=1.5", r"epochs '1\.5' is not a whole number"),
        ("epochs=0,1", "epochs must be ≥ 1, got 0"),
        ("biases=maybe", "biases 'maybe' is not true or false"),
        ("anchors=5/x", "anchors '5/x' is not a number of anchors; say 15, or 40,16 for two tables"),
        ("anchors=0,5", "anchors must be ≥ 1, got 0"),
        ("l1-penalty=1,1.0", "has 2 values, 1 of them different"),
        ("solver=a..b", r"solver is no number|solver=a..b is no range"),
        ("solver=stochastic,magic", "solver 'magic' is none of: stochastic, coordinate_descent, online"),
        ("embedding=full,magic", "embedding 'magic' is none of: anchor"),
        ("schedule=halving,magic", "schedule 'magic' is none of: halving, cosine, constant"),
        ("split=1..2", "split is no number|split .*is none of: 80/10/10, 90/10"),
        ("lr=1..2..3", r"lr=1\.\.2\.\.3 is no range"),
        ("lr=1..2:cubic", "the scale 'cubic' is not log"),
        ("lr=2..1", "2 is not below 1; the lower end comes first"),
        ("lr=0..1:log", "a log scale starts above 0, not at 0"),
        ("seed=0,1", "--seeds 0,1,2"),
        ("threads=1,2", "it changes no result"),
        ("data=a,b", "the data are the same for all trials"),
        ("columns=a,b", "columns cannot be varied"),
        ("on-error=stop,skip", "on_error cannot be varied"),
    ],
)
def test_what_cannot_be_varied(text, told):
    with pytest.raises(ValueError, match=told):
        parse_axis(text, RATINGS)


@pytest.mark.parametrize("text", ["label=1,2", "test=a.csv,b.csv"])
def test_what_the_data_are_cannot_be_varied(text):
    for task in (TEXT, NGRAMS):
        with pytest.raises(
            ValueError, match=f"{text.partition('=')[0]} cannot be varied; the data are the same for all trials"
        ):
            parse_axis(text, task)


def test_what_else_is_wrong():
    with pytest.raises(ValueError, match="l1_penalty is varied 2 times"):
        parse_axes(["l1_penalty=1,2", "l1-penalty=3"], RATINGS)
    with pytest.raises(ValueError, match="epochs is set twice, to 3 and 4"):
        parse_fixed(["epochs=3", "epochs=4"], RATINGS)
    with pytest.raises(ValueError, match=r"test is set twice, to a.csv and b.csv"):
        parse_fixed(["test=a.csv", "test=b.csv"], TEXT)
    with pytest.raises(ValueError, match="say --seeds 7"):
        parse_fixed(["seed=7"], RATINGS)
    with pytest.raises(ValueError, match="gives no value; say --set epochs=VALUE"):
        parse_fixed(["epochs"], RATINGS)
    with pytest.raises(ValueError, match="'0,0' is no list of different seeds"):
        parse_seeds("0,0")
    with pytest.raises(ValueError, match="l1_penalty is a range; say how many points to draw with --trials"):
        grid([parse_axis("l1_penalty=1..2", RATINGS)])
    with pytest.raises(ValueError, match=r"l1_penalty is both set \(to 3\) and varied"):
        plan(RATINGS, "r.csv", [{"l1_penalty": 1}], {"l1_penalty": 3}, [0], 100)
    with pytest.raises(ValueError, match=r"--ridge is an option of --solver .*; this run has --solver stochastic"):
        plan(RATINGS, "r.csv", [{"ridge": 1.0}], {"solver": "stochastic"}, [0], 100)


def test_the_grid_has_every_combination():
    points = grid(parse_axes(["l1_penalty=1,2,3", "biases=true,false"], RATINGS))
    assert len(points) == 6
    assert points[:2] == [{"l1_penalty": 1.0, "biases": True}, {"l1_penalty": 1.0, "biases": False}]


def test_draws_keep_their_bounds_are_different_and_go_on_where_fewer_ended():
    axes = parse_axes(["lr=0.001..1:log", "anchors=2..4", "embedding-dim=1..100:log", "biases=true,false"], RATINGS)
    points = draws(axes, 64, seed=0)
    assert len({tuple(point.values()) for point in points}) == 64
    assert points[:10] == draws(axes, 10, seed=0) != draws(axes, 10, seed=1)
    assert all(0.001 <= point["lr"] <= 1 and float(f"{point['lr']:.4g}") == point["lr"] for point in points)
    assert {point["anchors"] for point in points} == {(2,), (3,), (4,)}
    assert 0.25 < sum(point["lr"] < 0.0316 for point in points) / 64 < 0.75  # half of a log scale
    assert all(1 <= point["embedding_dim"] <= 100 for point in points)
    assert sorted(point["anchors"] for point in draws([axes[1]], 9, seed=0)) == [(2,), (3,), (4,)]  # there are no more


@given(share=st.floats(0, 1, exclude_max=True), log=st.booleans(), low=st.integers(1, 50), more=st.integers(1, 50))
def test_any_share_of_a_range_is_in_it(share, log, low, more):
    assert low <= between("epochs", low, low + more, log).at(share) <= low + more
    assert low / 7 <= between("lr", low / 7, low / 7 + more, log).at(share) <= low / 7 + more


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_every_option_of_a_trial_can_be_typed(task):
    group = typer.main.get_command(app).get_command(None, "train")
    known = {word for option in group.get_command(None, task.name).params for word in (*option.opts, *option.secondary_opts)}
    given = to_options(from_options(task.Config, {"data": "d"}), all=True)
    for name, leaf in options_of(task.Config).items():
        given.setdefault(name, leaf.field.default)  # those of other solvers
    given.pop("data")
    for yes in (True, False):
        flags = {name: yes for name, value in given.items() if isinstance(value, bool)}
        words = command_of("d", given | flags, task).split()
        assert words[:4] == ["antembed", "train", task.name, "d"]
        assert {word for word in words if word.startswith("--")} <= known


def test_what_sweeps_know_of_options_are_options():
    known = {(leaf.path[0], name) for task in TASKS.values() for name, leaf in options_of(task.Config).items()}
    assert set(WHICH_DATA) <= {name for _, name in known}
    assert {*IRRELEVANT, SEED} <= known
    assert {name for group, name in IRRELEVANT if group == "input"} <= set(WHICH_DATA)


def test_commands_are_what_is_typed():
    assert "--anchors 40,16 --no-biases" in command_of("r.csv", {"anchors": (40, 16), "biases": False}, RATINGS)
    assert "--text title,text" in command_of("t.csv", {"text": ("title", "text")}, TEXT)
    assert command_of("t.csv", {"budget": "2KB", "hold_out": True}, NGRAMS).endswith("--budget 2KB --hold-out")
