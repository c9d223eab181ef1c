"""Runs an experiment that is written down, a command with its options; options that follow win.

python -m experiments recipe recipes/front.toml --l0-penalty 2
"""

import sys
import tomllib
from pathlib import Path

from antembed.cli import main as antembed


def recipe_words(recipe: Path) -> list[str]:
    """What would be typed behind `antembed`: command = "train recommend", arguments = […], and the table [options]."""
    if not recipe.is_file():
        raise ValueError(f"{recipe} is no file; recipes are .toml files with a command and its options")
    try:
        written = tomllib.loads(recipe.read_text())
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{recipe} is no TOML: {error}") from error
    unknown = set(written) - {"about", "command", "arguments", "options"}
    if unknown or not isinstance(written.get("command"), str) or not written["command"].split():
        wrong = f"has {min(unknown)!r}" if unknown else "has no command"
        raise ValueError(f"{recipe} {wrong}; a recipe has about, command, arguments and [options]")
    words = [*written["command"].split(), *(str(argument) for argument in written.get("arguments", []))]
    for name, value in written.get("options", {}).items():
        for each in value if isinstance(value, list) else [value]:  # a list: the option as often as that
            words += [f"--{name}"] if each is True else [f"--no-{name}"] if each is False else [f"--{name}", str(each)]
    return words


def main(words: list[str]) -> int:
    if not words or words[0].startswith("-"):
        print(__doc__, file=sys.stderr)
        return 2
    file, *more = words
    try:
        recipe = [*recipe_words(Path(file)), *more]
    except ValueError as error:
        raise SystemExit(f"error: {error}") from error
    if recipe[0] == "bench":
        from experiments.bench import main as bench

        return bench(recipe[1:])
    sys.argv = ["antembed", *recipe]  # records say what would be typed
    antembed()
    return 0
