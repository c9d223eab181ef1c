"""--help: every option of a `train` command is a field of its task's config, with a heading and a help text; examples."""

import re

import pytest
import typer
from tests.command import refusal
from typer.testing import CliRunner

from antembed.cli.app import app
from antembed.cli.common import times_smaller
from antembed.cli.train import FIXED, MAIN_PANEL, PANEL, POSITIONAL, is_main
from antembed.train.options import options_of, typed
from antembed.train.registry import TASKS


def commands(group, name="antembed"):
    context = typer.Context(group)
    for part in group.list_commands(context):
        command = group.get_command(context, part)
        yield from commands(command, f"{name} {part}") if hasattr(command, "list_commands") else [(f"{name} {part}", command)]


ALL = dict(commands(typer.main.get_command(app)))
TRAIN = sorted(name for name in ALL if name.startswith("antembed train "))


def options(name):
    return [option for option in ALL[name].params if option.param_type_name == "option" and option.name != "help"]


def printed(*words, flag="--help"):
    shown = CliRunner().invoke(app, [*words, flag], env={"COLUMNS": "250", "TERM": "dumb"})
    assert shown.exit_code == 0, shown.output
    return shown.stdout


def whole_words(text):
    """--l1 is not in "--l1-penalty"."""
    return set(re.findall(r"(?<![\w-])--?[a-z0-9][a-z0-9-]*(?![\w-])", text))


def test_there_is_a_train_command_for_each_task():
    assert sorted(f"antembed train {task}" for task in TASKS) == TRAIN
    assert set(TASKS) <= set(printed("train").split())


def test_options_are_found_as_whole_words():
    assert whole_words("--l1-penalty 1e-4 (--lr; --no-biases) a--b --x_y -k") == {"--l1-penalty", "--lr", "--no-biases", "-k"}


@pytest.mark.parametrize("name", TRAIN)
def test_every_option_has_a_heading_and_a_help_text(name):
    assert options(name)
    assert [option.name for option in options(name) if not option.rich_help_panel] == []
    assert [option.name for option in options(name) if not (option.help or "").strip()] == []


@pytest.mark.parametrize("name", TRAIN)
def test_every_option_is_a_field_of_the_config(name):
    """And every field an option: both are generated, and what belongs to the run alone is listed once."""
    fields = options_of(TASKS.configs[name.split()[-1]])
    of_run = {option.name for option in options(name) if option.rich_help_panel == PANEL}
    assert of_run == FIXED.keys()
    assert not of_run & fields.keys()
    generated = {option.name: option for option in options(name) if option.name not in of_run}
    assert generated.keys() == fields.keys() - {POSITIONAL}
    for field, option in generated.items():
        assert option.opts == [typed(field)]
        assert option.secondary_opts in ([], [f"--no-{field.replace('_', '-')}"])
        assert option.rich_help_panel == (MAIN_PANEL if is_main(fields[field]) else fields[field].heading)
        assert option.help.startswith(fields[field].field.description)
        assert option.default is None  # not given is not the same as given as it is by default


@pytest.mark.parametrize("name", TRAIN)
def test_the_help_names_every_option_heading_and_example(name):
    text = printed(*name.split()[1:], flag="--help-all")
    config = TASKS.configs[name.split()[-1]]
    found = whole_words(text)
    assert {word for option in options(name) for word in option.opts} <= found
    assert [heading for heading in {option.rich_help_panel for option in options(name)} if heading not in text] == []
    assert config.usage
    plain = " ".join(text.split())
    for line in config.usage:
        assert f"Example: {name} {line}" in plain


@pytest.mark.parametrize("name", TRAIN)
def test_the_short_help_has_what_most_people_need(name):
    text = printed(*name.split()[1:])
    shown = whole_words(text.split("Arguments")[1]) - {"--help", "--no-implicit"}
    needed = {"--budget", "--tolerance", "--seed", "--out", "--resume", "--json", "--help-all"}
    assert needed & {"--help-all", "--json", "--resume", "--out", *options(name)} <= shown
    assert len(shown) <= 24
    assert len(shown) < len(options(name)) / 1.2
    assert text.count("Example:") == 2


@pytest.mark.parametrize("name", TRAIN)
def test_examples_use_options_that_there_are(name):
    known = {word for option in options(name) for word in (*option.opts, *option.secondary_opts)}
    for line in TASKS.configs[name.split()[-1]].usage:
        assert whole_words(line) <= known


@pytest.mark.parametrize("name", sorted(ALL))
def test_every_command_has_an_example(name):
    """Two: the common call, and one with options."""
    assert len(re.findall(rf"^Example:  .*\b{name}\b", ALL[name].help, re.MULTILINE)) == 2


def test_there_are_about_fourteen_commands():
    shown = printed().split("Commands")[1]
    assert set(re.findall(r"^│ (\w+)", shown, re.MULTILINE)) == {
        *("train", "data", "evaluate", "export", "explain", "inspect", "report", "recommend", "similar", "predict", "generate"),
        *("compress", "neighbours", "sweep", "demo"),
    }


@pytest.mark.parametrize(
    ("old", "new"),
    [("select", "antembed sweep --select"), ("bench", "experiments bench"), ("run", "experiments recipe FILE.toml")],
)
def test_a_command_that_has_moved_names_the_new_one(old, new):
    assert new in refusal(old, "x.toml", "--anything", 1)


def test_what_is_larger_is_not_called_smaller():
    assert times_smaller(1000, 100) == "10 times smaller"
    assert times_smaller(100, 250) == "2.5 times LARGER"
