"""What may be typed: the options of a command, whole words."""

import typer

from antembed.cli.app import app


def options_of_command(words: list[str]) -> set[str]:
    """The options of the command that the first words name; they must name one."""
    command, context, depth = typer.main.get_command(app), None, 0
    while hasattr(command, "get_command"):
        context = typer.Context(command, parent=context)
        command, depth = command.get_command(context, words[depth]), depth + 1
        assert command is not None, f"there is no command {' '.join(words[:depth])}"
    return {"--help"} | {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
