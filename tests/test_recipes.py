"""Recipes are commands that exist, with options that exist."""

import re
from itertools import pairwise
from pathlib import Path

import pytest
from antembed.pipelines.space import draws, parse_axes, parse_fixed
from typer.testing import CliRunner

from antembed.cli.app import app, recipe_words

RECIPES = sorted((Path(__file__).parents[1] / "recipes").glob("**/*.toml"))


def test_there_are_recipes():
    assert len(RECIPES) >= 2


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_they_can_be_typed(recipe):
    words = recipe_words(recipe)
    depth = 2 if words[0] == "train" else 1
    shown = CliRunner().invoke(app, [*words[:depth], "--help"], env={"COLUMNS": "200"})
    assert shown.exit_code == 0
    assert {word for word in words if word.startswith("--")} <= set(re.findall(r"--[\w-]+", shown.stdout))


@pytest.mark.parametrize("recipe", [path for path in RECIPES if path.parent.name == "baselines"], ids=lambda path: path.stem)
def test_baselines_have_equal_budgets(recipe):
    """The same number of trials, of settings that exist; stochastic ones with the same epochs and batches."""
    words = recipe_words(recipe)
    given = {name: [v for w, v in pairwise(words) if w == name] for name in ("--trials", "--set", "--vary")}
    assert given["--trials"] == ["8"]
    fixed = parse_fixed(given["--set"])
    assert len(draws(parse_axes(given["--vary"]), 8, 0)) == 8
    if fixed.get("solver") != "cd":
        assert (fixed["epochs"], fixed["batch_size"], fixed["schedule"]) == (15, 1024, "cosine")


def test_a_recipe_runs_and_later_options_win(tmp_path):
    (tmp_path / "r.csv").write_text("user,item,rating\n" + "".join(f"{n % 7},{n % 11},3\n" for n in range(60)))
    (tmp_path / "r.toml").write_text(
        f"command = 'train recommend'\narguments = ['{tmp_path / 'r.csv'}']\n"
        "[options]\nepochs = 1\nbiases = false\noverwrite = true\njson = true\n"
    )
    done = CliRunner().invoke(app, ["run", str(tmp_path / "r.toml"), "--epochs", "2", "--out", str(tmp_path / "run")])
    assert done.exit_code == 0, done.output
    assert '"epochs": 2' in done.stdout


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("command = ", "is no TOML"),
        ("about = 'x'", "has no command"),
        ("command = 'demo'\ncode = 'x'", "has 'code'"),
        ("command = 'run x.toml'", "runs a recipe"),
    ],
)
def test_what_is_no_recipe(tmp_path, text, wrong):
    (tmp_path / "r.toml").write_text(text)
    with pytest.raises(ValueError, match=wrong):
        recipe_words(tmp_path / "r.toml")
    with pytest.raises(ValueError, match="is no file"):
        recipe_words(tmp_path / "none.toml")
