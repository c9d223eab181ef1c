"""What every estimator shares: arguments as dataclass fields, and scikit-learn's ways to read, change and copy them."""

import json
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import ClassVar, Self

from antembed.files import JSON, write_atomically
from antembed.train.config import TaskConfig
from antembed.train.configure import without_auto
from antembed.train.options import Options, from_options, nearest, options_of, to_options
from antembed.train.registry import TASKS
from antembed.train.run_folder import RunFolder

# Options of the command line: here data are arguments.
FILES = {"data", "test", "columns", "on_error", "split", "text", "label"}


class NotFittedError(ValueError, AttributeError):
    """The estimator has not been fitted yet."""


@dataclass(kw_only=True, eq=False, repr=False)
class Estimator(ABC):
    """A model of one task. Its arguments are the options that people use; `options` takes all others of the task's config.
    None: what the data ask for, or the config's default. `set_params` and so GridSearchCV reach every option by its name."""

    Config: ClassVar[type[TaskConfig]]
    tasks: ClassVar[tuple[str, ...]]  # whose runs `load` takes
    defaults: ClassVar[JSON] = {}  # options that differ from the config's where nothing is searched

    budget: str | int | None = None
    epochs: int | None = None
    seed: int | None = None
    options: Options | None = None
    config: TaskConfig = field(init=False)  # of the options; after a fit, what was fitted

    def __post_init__(self) -> None:
        self.config = self._config(self.given)

    @classmethod
    def _names(cls) -> list[str]:
        return [each.name for each in fields(cls) if each.init and each.name != "options"]

    @classmethod
    def _arguments(cls, given: Options) -> JSON:
        """The arguments of __init__ that say the same as these options."""
        names = cls._names()
        rest = {name: value for name, value in given.items() if name not in names and value is not None}
        return {name: given.get(name) for name in names} | {"options": rest or None}

    @property
    def given(self) -> JSON:
        """All options that were given, as arguments or in `options`."""
        found = {name: value for name in self._names() if (value := vars(self)[name]) is not None}
        known = options_of(self.Config).keys() - FILES
        for name, value in (self.options or {}).items():
            if name not in known:
                raise ValueError(f"{type(self).__name__} has no option {name!r}{nearest(name, sorted(known))}")
            if name in found:
                raise ValueError(f"{name} is given twice, as an argument and in options; leave one of them out")
            found[name] = value
        return found

    def _config(self, given: Options, examples: int = 0, objects: int = 0) -> TaskConfig:
        """The config of these options; those that a search takes have no effect in it."""
        if searched := self.Config.to_search(given):
            name, first = searched
            return from_options(TASKS.configs[name], first)
        given = without_auto(given)
        return from_options(self.Config, {**self.defaults, **given}, self.Config.defaults(examples, given, objects))

    def get_params(self, deep: bool = True) -> JSON:
        """The arguments; None: not given."""
        return {name: vars(self)[name] for name in (*self._names(), "options")}

    def set_params(self, **changes: object) -> Self:
        """Change options, whether or not they are arguments; None: no longer given. `options` replaces those that are none."""
        given = self.given
        if "options" in changes:
            rest = changes.pop("options") or {}
            assert isinstance(rest, Mapping)
            given = {name: value for name, value in given.items() if name in self._names()} | dict(rest)
        vars(self).update(vars(type(self)(**self._arguments(given | changes))))
        return self

    def __repr__(self) -> str:
        """As scikit-learn's: the arguments that were given."""
        given = {name: value for name, value in self.get_params().items() if value is not None}
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in given.items())})"

    def __sklearn_clone__(self) -> Self:
        """The same options, not fitted."""
        return type(self)(**self.get_params())

    def _check_fitted(self) -> None:
        if not hasattr(self, "model_"):
            raise NotFittedError(f"this {type(self).__name__} has not been fitted; call fit, or load a folder")

    @abstractmethod
    def _take(self, folder: Path) -> None:
        """What is needed to predict, and the files that hold it, from a run or an export."""

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """What `save`, `antembed train` or `antembed export` wrote."""
        run = RunFolder(folder)
        if run.task().name not in cls.tasks:
            raise ValueError(f"{run.path} is a run of {run.task().name}, not of {' or '.join(cls.tasks)}")
        loaded = cls.__new__(cls)
        config, _ = run.open()
        given = to_options(config) if isinstance(config, cls.Config) else {}
        arguments = cls._arguments({name: value for name, value in given.items() if name not in FILES})
        vars(loaded).update(arguments, config=config)
        loaded._take(run.path)
        if run.result_file.is_file():
            vars(loaded)["result_"] = json.loads(run.result_file.read_text())
        return loaded


@dataclass(kw_only=True, eq=False, repr=False)
class TableEstimator(Estimator):
    """An estimator with embedding tables."""

    embedding: str | None = None
    embedding_dim: int | None = None
    anchors: int | str | Sequence[int] | None = None
    threads: int | None = None


def write_folder(folder: str | Path, files: Mapping[str, bytes], overwrite: bool) -> None:
    """Write the files of a model as a folder, all of them or none; files there that no run has written stay."""
    run = RunFolder(folder)
    if run.path.exists():
        if not overwrite:
            raise ValueError(f"{run.path} exists; choose another folder, or say overwrite=True")
        if not run.config_file.exists():
            raise ValueError(f"{run.path} is no run, and is not overwritten; choose another folder")
        run.remove()
    run.path.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=run.path.parent) as scratch:
        complete = Path(scratch) / "run"
        complete.mkdir()
        for name, contents in files.items():
            write_atomically(complete / name, contents)
        if not run.path.exists():
            os.rename(complete, run.path)
            return
        for name in sorted(files, key=lambda name: name == "config.json"):  # which makes it a run, so it comes last
            os.replace(complete / name, run.path / name)
