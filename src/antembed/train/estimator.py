"""What every estimator shares: options with explicit names, and scikit-learn's ways to read, change and copy them."""

import os
from collections.abc import Mapping
from inspect import signature
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar, Self

from antembed.files import JSON, write_atomically
from antembed.train.config import TaskConfig
from antembed.train.options import Options, from_options, nearest
from antembed.train.registry import TASKS
from antembed.train.run_folder import RunFolder


class NotFittedError(ValueError, AttributeError):
    """The estimator has not been fitted yet."""


def own_arguments(names: Mapping[str, Any]) -> JSON:
    """The arguments of an `__init__`, from its locals(): those that were given."""
    return {name: value for name, value in names.items() if name not in ("self", "__class__") and value is not None}


class Estimator:
    """A subclass names its config and lists its options in `__init__`; None: what the data ask for, or the config's default.

    `defaults` are options that differ from the config's where nothing is searched.
    """

    Config: ClassVar[type[TaskConfig]]
    task: ClassVar[str]
    defaults: ClassVar[JSON] = {}
    options: JSON  # that were given
    config: TaskConfig  # of the options; after a fit, what was fitted

    def __init__(self, options: JSON):
        self.options = options
        self.config = self._config(options)

    def _config(self, options: Options) -> TaskConfig:
        """The config of these options; those that a search takes have no effect in it."""
        if searched := TASKS.configs[self.task].to_search(options):
            name, first = searched
            return from_options(TASKS.configs[name], first)
        named = {name: value for name, value in options.items() if not (name == "model" and value == "auto")}
        return from_options(self.Config, self.defaults | self.usual(named) | named)

    def usual(self, options: Options) -> JSON:
        """What the task takes with these options, where they leave it open."""
        return {}

    def is_automatic(self, options: Options | None = None) -> bool:
        """Whether a fit searches for what was not given."""
        given = self.options if options is None else options
        return TASKS.configs[self.task].to_search(given) is not None

    def get_params(self, deep: bool = True) -> JSON:
        """All options; None: not given."""
        return {name: self.options.get(name) for name in self._names()}

    @classmethod
    def _names(cls) -> list[str]:
        return list(signature(cls).parameters)

    def set_params(self, **options: Any) -> Self:
        """Change some of them; None: no longer given."""
        if unknown := set(options) - set(self._names()):
            raise ValueError(f"{type(self).__name__} has no option {min(unknown)!r}{nearest(min(unknown), self._names())}")
        changed = {name: value for name, value in (self.options | options).items() if value is not None}
        self.config = self._config(changed)
        self.options = changed
        return self

    def __repr__(self) -> str:
        """As scikit-learn's: the options that were given."""
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self.options.items())})"

    def __sklearn_clone__(self) -> Self:
        """The same options, not fitted."""
        return type(self)(**self.options)


def write_folder(folder: str | Path, files: Mapping[str, bytes], overwrite: bool) -> None:
    """Write the files of a model as a folder, all of them or none; files there that no run has written stay."""
    place = RunFolder(folder)
    if place.path.exists():
        if not overwrite:
            raise ValueError(f"{place.path} exists; choose another folder, or say overwrite=True")
        if not place.config_file.exists():
            raise ValueError(f"{place.path} is no run, and is not overwritten; choose another folder")
        place.remove()
    with TemporaryDirectory(dir=_parent(place.path)) as scratch:
        whole = Path(scratch) / "run"
        whole.mkdir()
        for name, contents in files.items():
            write_atomically(whole / name, contents)
        if not place.path.exists():
            os.rename(whole, place.path)
            return
        for name in sorted(files, key=lambda name: name == "config.json"):  # which makes it a run, so it comes last
            os.replace(whole / name, place.path / name)


def _parent(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.parent
