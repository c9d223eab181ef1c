"""--help: every option of the long commands under a heading, an example for each command."""

import pytest
import typer

from antembed.cli.app import app
from antembed.cli.common import times_smaller


def commands(group, name="antembed"):
    for part, command in group.commands.items():
        yield from commands(command, f"{name} {part}") if hasattr(command, "commands") else [(f"{name} {part}", command)]


ALL = dict(commands(typer.main.get_command(app)))


@pytest.mark.parametrize("name", ["antembed train classify", "antembed train recommend"])
def test_every_option_has_a_heading(name):
    options = [option for option in ALL[name].params if option.param_type_name == "option"]
    assert len(options) > 40
    assert [option.name for option in options if not option.rich_help_panel] == []


@pytest.mark.parametrize("name", sorted(ALL))
def test_every_command_has_an_example(name):
    assert f"Example:  {name}" in ALL[name].help or f"| {name}" in ALL[name].help


def test_what_is_larger_is_not_called_smaller():
    assert times_smaller(1000, 100) == "10 times smaller"
    assert times_smaller(100, 250) == "2.5 times LARGER"
