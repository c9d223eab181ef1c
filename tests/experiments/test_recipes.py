"""Recipes are commands that exist, with options that exist and go together, on data that anybody can fetch."""

from itertools import pairwise
from pathlib import Path

import pytest
from cli_options import options_of_command
from experiments.bench import NAMES
from experiments.recipe import main, recipe_words

from antembed.data.download import DATA_SETS
from antembed.sweep import space
from antembed.sweep import trials as sweep
from antembed.sweep.records import key_of, read_records
from antembed.train.options import from_options, options_of
from antembed.train.registry import TASKS

ROOT = Path(__file__).parents[2]
RECIPES = sorted((ROOT / "recipes").glob("**/*.toml"))
SWEEPS = [path for path in RECIPES if recipe_words(path)[0] == "sweep"]
TRAINED = [path for path in RECIPES if recipe_words(path)[0] == "train"]
RATINGS = 1_000_209  # of MovieLens 1M


def name_of(path):
    return f"{path.parent.name}-{path.stem}"


def values(words, name):
    return [value for word, value in pairwise(words) if word == name]


def planned(recipe):
    words, task = recipe_words(recipe), TASKS["recommend"]
    axes, fixed = (
        parse(values(words, name), task) for parse, name in ((space.parse_axes, "--vary"), (space.parse_fixed, "--set"))
    )
    trials = values(words, "--trials")
    points = space.draws(axes, int(trials[0]), 0) if trials else space.grid(axes)
    return sweep.plan(task, words[1], points, fixed, space.parse_seeds((values(words, "--seeds") or ["0"])[0]), RATINGS)


def test_there_are_recipes():
    assert len(RECIPES) >= 30
    assert len(SWEEPS) + len(TRAINED) + 1 == len(RECIPES)


@pytest.mark.parametrize("recipe", RECIPES, ids=name_of)
def test_commands_and_options_exist(recipe):
    words = recipe_words(recipe)
    if words[0] == "bench":
        assert words[1] in NAMES
        return
    assert {word for word in words if word.startswith("--")} <= options_of_command(words)


@pytest.mark.parametrize("recipe", RECIPES, ids=name_of)
def test_data_are_those_that_can_be_fetched(recipe):
    """Nothing outside the clone but data sets by their names, and the recipe says how they are fetched."""
    text = recipe.read_text()
    assert "../" not in text
    words = recipe_words(recipe)
    paths = [Path(word) for word in words if "/" in word and not word[:2].isdecimal()]  # 90/10 is a split
    assert not any(path.is_absolute() for path in paths)
    for path in paths:
        if path.parts[0] in DATA_SETS:
            assert f"antembed data get {path.parts[0]}" in text
        else:
            assert path.parts[0] == "results" or f"{path.parts[0]}" in text.partition("[options]")[0]


def configured(recipe):
    """The config of a recipe that trains."""
    words = recipe_words(recipe)
    task = TASKS[words[1]]
    given = {word.removeprefix("--").replace("-", "_"): value for word, value in pairwise(words) if word.startswith("--")}
    known = options_of(task.Config)
    return from_options(task.Config, {n: v for n, v in given.items() if n in known} | {"data": words[2]})


@pytest.mark.parametrize("recipe", TRAINED, ids=name_of)
def test_options_go_together(recipe):
    assert configured(recipe).task == recipe_words(recipe)[1]


@pytest.mark.parametrize("recipe", SWEEPS, ids=name_of)
def test_every_trial_is_in_the_records(recipe):
    """What the tables are made from is what the recipe would run; so nothing is run again."""
    records = read_records(ROOT / values(recipe_words(recipe), "--out")[0])
    assert {trial.key for trial in planned(recipe)} <= {key_of(record["config"]) for record in records}


@pytest.mark.parametrize("recipe", [path for path in TRAINED if path.parent.name == "text"], ids=name_of)
def test_every_run_on_text_is_in_the_records(recipe):
    records = read_records(ROOT / values(recipe_words(recipe), "--record")[0])
    config = configured(recipe).model_dump(mode="json")
    assert key_of(config) in {key_of(record["config"]) for record in records}


@pytest.mark.parametrize("recipe", [path for path in RECIPES if path.parent.name == "baselines"], ids=name_of)
def test_baselines_have_equal_budgets(recipe):
    """The same number of trials; stochastic ones with the same epochs and batches."""
    trials = planned(recipe)
    assert len(trials) == 8
    for config in (trial.config for trial in trials):
        if config.solver.name == "stochastic":
            assert (config.solver.epochs, config.solver.train.batch_size) == (15, 1024)
            assert config.solver.optimizer.schedule == "cosine"


@pytest.mark.slow
def test_a_recipe_runs_and_later_options_win(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", [])
    (tmp_path / "r.csv").write_text("user,item,rating\n" + "".join(f"{n % 7},{n % 11},3\n" for n in range(60)))
    (tmp_path / "r.toml").write_text(
        f"command = 'train recommend'\narguments = ['{tmp_path / 'r.csv'}']\n"
        "[options]\nepochs = 1\nbiases = false\noverwrite = true\njson = true\n"
    )
    with pytest.raises(SystemExit) as left:
        main([str(tmp_path / "r.toml"), "--epochs", "2", "--quiet", "--out", str(tmp_path / "run")])
    assert left.value.code == 0
    printed = capsys.readouterr()
    assert '"epochs": 2' in printed.out
    assert f'"command": "antembed train recommend {tmp_path / "r.csv"} --epochs 1 --no-biases' in printed.out
    assert "epoch 1" not in printed.err


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("command = ", "is no TOML"),
        ("about = 'x'", "has no command"),
        ("command = 'demo'\ncode = 'x'", "has 'code'"),
    ],
)
def test_what_is_no_recipe(tmp_path, text, wrong):
    (tmp_path / "r.toml").write_text(text)
    with pytest.raises(ValueError, match=wrong):
        recipe_words(tmp_path / "r.toml")
    with pytest.raises(ValueError, match="is no file"):
        recipe_words(tmp_path / "none.toml")
