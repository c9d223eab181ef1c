"""What can be said before torch is imported and anything is searched: wrong options, data that cannot be read, an existing
folder."""

import sys
from pathlib import Path

from antembed.train.config import TaskConfig
from antembed.train.options import ConfigError, Options, from_options
from antembed.train.registry import TASKS
from antembed.train.run_folder import RunFolder


def check_early(
    config: type[TaskConfig], given: Options, out: Path | None, *, resume: bool, overwrite: bool, search: bool = True
) -> None:
    """Raise what `configure` and `train` would raise later. The data that are read here stay in memory for them."""
    if out is not None:
        RunFolder(out).check_free(resume=resume, overwrite=overwrite)
    name, first = (config.to_search(given) if search else None) or (config.name(), without_auto(given))
    chosen = first_config(TASKS.configs[name], first)
    other = chosen.read()
    if other != chosen.task:
        check_early(TASKS.configs[other], suited(TASKS.configs[other], given), out, resume=resume, overwrite=overwrite)
    elif out is None:
        RunFolder(usual_folder(chosen)).check_free(resume=resume, overwrite=overwrite)


def usual_folder(config: TaskConfig) -> Path:
    """Where a run is, if nothing is said."""
    return Path("runs") / f"{config.task}-{config.embedding_name}-{config.machine.seed}"


def without_auto(given: Options) -> Options:
    """Without a model "auto", which is no model of its own."""
    return {name: value for name, value in given.items() if not (name == "model" and value == "auto")}


def first_config(config: type[TaskConfig], given: Options) -> TaskConfig:
    """Before the number of examples is known; what does not suit few examples may suit many."""
    try:
        return from_options(config, given)
    except ConfigError as error:
        try:
            return from_options(config, given, config.defaults(sys.maxsize, given))
        except ConfigError:
            raise error from None


def suited(config: type[TaskConfig], given: Options) -> Options:
    """Options for another task than was asked for; a solver that it does not have is an error."""
    solver = str(given.get("solver", "auto"))
    own = str(config.model_fields["solver"].default.name)
    if solver not in ("auto", own):
        raise ConfigError(f"{config.name()} is trained by {own}, not {solver}; leave out --solver", "solver")
    return {name: value for name, value in given.items() if name != "solver"}
