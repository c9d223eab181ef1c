"""Tasks by name. What is in the table is listed in antembed/tasks.py, above all tasks; this room knows none of them."""

from collections.abc import Iterator, MutableMapping
from importlib import import_module
from pkgutil import resolve_name
from typing import TYPE_CHECKING

from antembed.train.config import TaskConfig

if TYPE_CHECKING:
    from antembed.train.task import Task


class Tasks(MutableMapping[str, "Task"]):
    """Tasks by name. A config needs no torch; a task does, and is imported when it is asked for."""

    def __init__(self, module: str):
        self._module = module  # that adds the tasks when it is imported
        self._configs: dict[str, type[TaskConfig]] = {}
        self._loaded: dict[str, Task] = {}

    def add(self, config: type[TaskConfig]) -> None:
        """A task, by its config."""
        self._configs[config.name()] = config

    @property
    def configs(self) -> dict[str, type[TaskConfig]]:
        """The config of each task."""
        import_module(self._module)
        return self._configs

    def __getitem__(self, name: str) -> "Task":
        if name not in self._loaded:
            self._loaded[name] = resolve_name(self.configs[name].implementation)()
        return self._loaded[name]

    def __setitem__(self, name: str, task: "Task") -> None:
        self.configs[name] = task.Config
        self._loaded[name] = task

    def __delitem__(self, name: str) -> None:
        del self.configs[name]
        self._loaded.pop(name, None)

    def __iter__(self) -> Iterator[str]:
        return iter(self.configs)

    def __len__(self) -> int:
        return len(self.configs)

    def __contains__(self, name: object) -> bool:
        return name in self.configs


TASKS = Tasks("antembed.tasks")
