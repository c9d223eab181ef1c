"""The shape of the project: imports point one way, light rooms stay light, functions are short, nothing is written twice."""

import ast
import re
from pathlib import Path

import pytest

import antembed

SOURCE = Path(antembed.__file__).parent
# A room imports from itself and from the rooms before it. The three tasks do not import each other either (TASK_ROOMS).
ROOMS = ["extras", "files", "budget", "native", "tables", "data", "compression", "layer", "baselines", "hf", "train", "recommend",
         "classify", "language", "tasks", "sweep", "report", "cli", "__main__", "__init__"]  # fmt: skip
TASK_ROOMS = {"recommend", "classify", "language"}
FILES = sorted(SOURCE.rglob("*.py"))
TREES = {file: ast.parse(file.read_text()) for file in FILES}
LONGEST = 60  # lines of a function in the rooms that are made of small ones
MOST_ANY = 110


def name_of(file: Path) -> str:
    return str(file.relative_to(SOURCE))


def imported(nodes: list[ast.stmt] | ast.Module, file: Path) -> set[str]:
    names = set()
    for node in ast.walk(nodes) if isinstance(nodes, ast.Module) else nodes:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: imports are absolute"
            names |= {node.module} if node.module != "antembed" else {f"antembed.{alias.name}" for alias in node.names}
    return names


def imported_modules(file: Path, modules: set[str]) -> set[str]:
    """Ours; `from antembed.cli import show` is about the module, not about the package it lies in."""
    found = set()
    for node in ast.walk(TREES[file]):
        if isinstance(node, ast.ImportFrom):
            named = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= named & modules if named <= modules else (named & modules) | ({node.module} & modules)
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names} & modules
    return found


@pytest.mark.parametrize("file", FILES, ids=name_of)
def test_imports_point_up_the_list(file):
    here = file.relative_to(SOURCE).parts[0].removesuffix(".py")
    assert here in ROOMS, f"{here} is a new room: give it its place in ROOMS and in docs/architecture.md"
    for module in imported(TREES[file], file):
        if module.startswith("antembed.") and (room := module.split(".")[1]) in ROOMS:
            assert ROOMS.index(room) <= ROOMS.index(here), f"{file} imports {module}"
            assert not {here, room} <= TASK_ROOMS or here == room, f"{file} imports {module}"


def test_no_two_modules_import_each_other():
    """Also not through others, and also not where only a type checker looks."""
    modules = {
        "antembed." + name_of(file).removesuffix(".py").removesuffix("/__init__").replace("/", "."): file for file in FILES
    }
    graph = {name: {m for m in imported_modules(file, set(modules)) if m != name} for name, file in modules.items()}
    graph.pop("antembed.__init__", None)  # the lazy front door names everything
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, " → ".join((*path[path.index(name) :], name))
        if name not in done:
            for other in sorted(graph.get(name, ())):
                visit(other, (*path, name))
            done.add(name)

    for name in sorted(graph):
        visit(name, ())


@pytest.mark.parametrize(("room", "banned"), [("native", {"torch"}), ("data", {"torch"}), ("compression", {"torch"})])
def test_light_rooms_stay_light(room, banned):
    for file in (SOURCE / room).glob("*.py"):
        assert not {name.split(".")[0] for name in imported(TREES[file], file)} & banned, file


def test_the_command_line_starts_without_torch():
    """What app.py imports at its top, through all of our modules, has no torch in it."""
    seen, todo = set(), [SOURCE / "cli" / "app.py"]
    while todo:
        file = todo.pop()
        top = [node for node in TREES[file].body if isinstance(node, ast.Import | ast.ImportFrom)]
        for module in imported(top, file):
            assert module.split(".")[0] not in ("torch", "numba", "polars", "scipy"), f"{file} imports {module}"
            path = SOURCE.joinpath(*module.split(".")[1:])
            found = [p for p in (path.with_suffix(".py"), path / "__init__.py") if p.is_file() and module != "antembed"]
            todo += [p for p in found if p not in seen]
            seen |= set(found)


@pytest.mark.parametrize("file", FILES, ids=name_of)
def test_every_file_says_what_it_is_for(file):
    assert ast.get_docstring(TREES[file])


@pytest.mark.parametrize("room", ["train", "recommend", "classify", "language", "cli", "sweep"])
def test_functions_are_short(room):
    for file in (SOURCE / room).rglob("*.py"):
        for node in ast.walk(TREES[file]):
            if isinstance(node, ast.FunctionDef) and not file.stem.endswith("_kernel"):
                lines = node.end_lineno - node.body[0].lineno + 1  # options of a signature are a list, not code
                assert lines <= LONGEST, f"{name_of(file)}: {node.name} has {lines} lines, at most {LONGEST} are allowed"


@pytest.mark.parametrize("room", ["train", "recommend", "classify", "language", "cli", "sweep"])
def test_no_setting_is_asked_for_with_a_default(room):
    """`getattr(config, name, default)` hides an option that is not there."""
    for file in (SOURCE / room).rglob("*.py"):
        for node in ast.walk(TREES[file]):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "getattr":
                assert len(node.args) < 3, f"{name_of(file)}:{node.lineno}"


def test_any_is_rare():
    def times(tree):
        """Not counted: ctx of autograd functions, for which torch has no type."""
        nodes = list(ast.walk(tree))
        contexts = sum(isinstance(node, ast.arg) and node.arg == "ctx" for node in nodes)
        return sum(isinstance(node, ast.Name) and node.id == "Any" for node in nodes) - contexts

    found = {
        name_of(file): n
        for file in FILES
        if "native" not in file.parts and not file.stem.endswith("_kernel") and (n := times(TREES[file]))
    }
    assert sum(found.values()) < MOST_ANY, f"{sum(found.values())} times Any outside kernels: {found}"


@pytest.mark.parametrize("room", ["train", "recommend", "classify", "language"])
def test_no_six_lines_stand_in_two_files(room):
    """The same six lines of code in two files of a room, names and numbers aside, are one function too few."""
    places: dict[tuple[str, ...], str] = {}
    for file in sorted((SOURCE / room).rglob("*.py")):
        lines = [line.strip() for line in file.read_text().splitlines()]
        code = [
            line
            for line in lines
            if line and not line.startswith(("#", "from ", "import ", '"""', "@")) and line not in "()[]{},"
        ]
        shapes = [
            re.sub(r"\b(?!def|class|return|for|if|in|self\b)\w+\b", "n", re.sub(r'f?"[^"]*"', "s", line)) for line in code
        ]
        for start in range(len(shapes) - 5):
            run = tuple(shapes[start : start + 6])
            if sum(len(line) for line in run) > 150:  # six short lines are alike everywhere
                assert places.setdefault(run, name_of(file)) == name_of(file), f"{code[start : start + 6]} in {places[run]} too"


def test_public_names_exist():
    for name in antembed.__all__:
        assert getattr(antembed, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = antembed.Nothing
