"""What every estimator shares: a config made of options, and scikit-learn's ways to read, change and copy them."""

from typing import Any, ClassVar, Self

from antembed.config import TaskConfig, from_options, to_options
from antembed.files import JSON

FILES = ("data", "test")  # options that name files: an estimator is given its data


class NotFittedError(ValueError, AttributeError):
    """The estimator has not been fitted yet."""


class Estimator:
    """A subclass names its config; `defaults` are options that differ from the command line's."""

    Config: ClassVar[type[TaskConfig]]
    defaults: ClassVar[JSON] = {}

    def __init__(self, **options: Any):
        self.config: TaskConfig = from_options(self.Config, self.defaults | options)

    def get_params(self, deep: bool = True) -> JSON:
        """All options."""
        return {name: value for name, value in to_options(self.config, all=True).items() if name not in FILES}

    def set_params(self, **options: Any) -> Self:
        """Change some of them."""
        self.config = from_options(type(self.config), to_options(self.config) | options)
        return self

    def __repr__(self) -> str:
        """As scikit-learn's: the options that are not the class's own."""
        mine, usual = self.get_params(), to_options(from_options(self.Config, self.defaults), all=True)
        if "solver" in mine:  # every solver has defaults of its own
            with_solver = from_options(self.Config, self.defaults | {"solver": mine["solver"]})
            usual = to_options(with_solver, all=True) | {"solver": usual["solver"]}
        changed = [f"{name}={value!r}" for name, value in mine.items() if name not in usual or usual[name] != value]
        return f"{type(self).__name__}({', '.join(changed)})"

    def __sklearn_clone__(self) -> Self:
        """The same options, not fitted. A config never changes, so both may have it."""
        copy = type(self).__new__(type(self))
        copy.config = self.config
        return copy
