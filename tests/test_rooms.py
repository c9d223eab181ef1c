"""The shape of the project: imports point one way, only, and what must stay light stays light."""

import ast
from pathlib import Path

import pytest

import antembed

SOURCE = Path(antembed.__file__).parent
# A room imports from the rooms before it. `files`, `kernels` and `serving` stand first because they need nothing of ours
# (serving so that a table can be counted where it is made); `optim` needs only kernels.
ROOMS = ["files", "kernels", "serving", "optim", "data", "anchors", "embedding", "tasks", "growth", "training", "reporting",
         "pipelines", "cli", "__main__", "__init__"]  # fmt: skip
FILES = sorted(SOURCE.rglob("*.py"))


def imported(file: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: imports are absolute"
            names |= {node.module} if node.module != "antembed" else {f"antembed.{alias.name}" for alias in node.names}
    return names


def room_of(module: str) -> str:
    return module.split(".")[1]


@pytest.mark.parametrize("file", FILES, ids=lambda f: str(f.relative_to(SOURCE)))
def test_imports_point_up_the_list(file):
    here = file.relative_to(SOURCE).parts[0].removesuffix(".py")
    assert here in ROOMS, f"{here} is a new room: give it its place in ROOMS and in the README"
    for module in imported(file):
        if module.startswith("antembed.") and room_of(module) in ROOMS:
            assert ROOMS.index(room_of(module)) <= ROOMS.index(here), f"{file} imports {module}"


@pytest.mark.parametrize(("room", "banned"), [("serving", {"torch", "numba", "scipy", "polars"}), ("kernels", {"torch"})])
def test_light_rooms_stay_light(room, banned):
    for file in (SOURCE / room).glob("*.py"):
        assert not {name.split(".")[0] for name in imported(file)} & banned, file


@pytest.mark.parametrize("file", FILES, ids=lambda f: str(f.relative_to(SOURCE)))
def test_every_file_says_what_it_is_for(file):
    assert ast.get_docstring(ast.parse(file.read_text()))


def test_public_names_exist():
    for name in antembed.__all__:
        assert getattr(antembed, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = antembed.Nothing
