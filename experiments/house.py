"""The plan of the source: how much stands where, what repeats, and which files a user's call passes through.

    python -m experiments house [--update]

Every figure has a ceiling in house.toml, and tests/test_structure.py holds it. `--update` lowers ceilings to what is there now.
It never raises one: write the new number into house.toml and say why in the commit.
"""

import argparse
import ast
import gc
import inspect
import io
import json
import keyword
import re
import subprocess
import sys
import tokenize
import tomllib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import CodeType

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "antembed"
CEILINGS = ROOT / "house.toml"
Figures = dict[str, dict[str, int]]  # section → name → figure, as house.toml has them
Function = ast.FunctionDef | ast.AsyncFunctionDef

FUNCTION_LINES, KERNEL_LINES = 60, 100  # of a body: one screen; a compiled loop cannot be cut without a call in it
FUNCTION_ARGUMENTS, KERNEL_ARGUMENTS, CONSTRUCTOR_ARGUMENTS = 8, 16, 12  # DESIGN.md of issue 36
# File names that mean the same in every task; any other stands once.
SHARED_NAMES = ("__init__.py", "task.py", "config.py", "model.py", "dataset.py", "search.py", "predictor.py")
# The private dialect, in names as in prose; and words that are plain English in prose, but say nothing as names.
BANNED = re.compile(
    r"\b(judge[sd]?|judging|tells?|telling|told|crowds?|crowded|pulls?|pulled|pulling|mixes|panels|bearers?|nobody|foretells?|"
    r"wholes?|markets?|of another make)\b"
)
BANNED_NAMES = re.compile(r"\b(bear|meeting|places|pieces|sides|units)\b")
# Like lines, as the `duplicates` command finds them: 45 pairs against its 44 at the start of issue 36, the same but for three.
RUN = 6  # lines that make a pair
COMMON = {"same": 8, "alike": 3}  # places: a run that stands in more is boilerplate
RICH = (5, 4)  # lines of an alike run that have so many keywords or operators; below, any two lists of arguments are alike


# ---------------------------------------------------------------------------------------------------------- lines
@cache
def tree_of(file: Path) -> ast.Module:
    return ast.parse(file.read_text())


@cache
def code_lines(file: Path) -> list[tuple[int, str]]:
    """Numbered lines without blank ones, comments, docstrings and imports; white space is folded."""
    not_code: set[int] = set()
    for node in ast.walk(tree_of(file)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            not_code |= set(range(node.lineno, node.end_lineno + 1))
        elif isinstance(node, ast.Module | ast.ClassDef | Function) and ast.get_docstring(node) is not None:
            not_code |= set(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    lines = enumerate(file.read_text().splitlines(), 1)
    return [(n, " ".join(line.split())) for n, line in lines if n not in not_code and line.strip() and line.strip()[0] != "#"]


def room_of(file: Path, source: Path = SOURCE) -> str:
    parts = file.relative_to(source).parts
    return parts[0] if len(parts) > 1 else "root"


def sizes(files: list[Path], source: Path) -> Figures:
    found: dict[str, Counter[str]] = {"code_lines": Counter(), "lines": Counter(), "files": Counter()}
    for file in files:
        for room in (room_of(file, source), "all"):
            found["code_lines"][room] += len(code_lines(file))
            found["lines"][room] += len(file.read_text().splitlines())
            found["files"][room] += 1
    return {section: dict(figures) for section, figures in found.items()}


# ---------------------------------------------------------------------------------------------------------- like lines
def shape(line: str) -> str:
    """The line with every name, string and number the same."""
    line = re.sub(r"\b\d[\w.]*", "0", re.sub(r"\b\w{0,2}\"[^\"]*\"|\"[^\"]*\"", "s", line))
    return re.sub(r"[^\W\d]\w*", lambda name: name[0] if keyword.iskeyword(name[0]) else "n", line)


def is_rich(run: tuple[str, ...]) -> bool:
    return sum(len(re.findall(r"[^\w\s]|\b[a-z]{2,}\b", line)) >= RICH[1] for line in run) >= RICH[0]


def like_pairs(files: list[Path]) -> list[tuple[int, Path, int, Path, int]]:
    """Pairs of files (or a file and itself) that share runs of lines, the same or alike: the longest run as lines, file, line,
    file, line; longest first."""
    lines = {file: [line for line in code_lines(file) if re.search(r"\w", line[1])] for file in files}
    found: dict[tuple[Path, Path], tuple[int, Path, int, Path, int]] = {}
    for kind, key in (("same", str), ("alike", shape)):
        found_at: dict[tuple[str, ...], list[tuple[Path, int]]] = defaultdict(list)
        for file in files:
            keys = [key(line) for _, line in lines[file]]
            for n in range(len(keys) - RUN + 1):
                found_at[tuple(keys[n : n + RUN])].append((file, n))
        starts: dict[tuple[Path, Path], set[tuple[int, int]]] = defaultdict(set)
        for run, where in found_at.items():
            if len(where) <= COMMON[kind] and (kind == "same" or is_rich(run)):
                for i, (file, n) in enumerate(where):
                    for other, m in where[i + 1 :]:
                        if file != other or m - n >= RUN:
                            starts[file, other].add((n, m))
        for (file, other), pairs in starts.items():
            if (file, other) not in found:
                runs = []
                for n, m in pairs:
                    length = next(k for k in range(len(pairs) + 1) if (n + k, m + k) not in pairs)
                    runs.append((length + RUN - 1, file, lines[file][n][0], other, lines[other][m][0]))
                found[file, other] = max(runs)
    return sorted(found.values(), key=lambda pair: (-pair[0], *pair[1:]))


# ---------------------------------------------------------------------------------------------------------- functions
def functions(file: Path) -> Iterator[tuple[str, Function]]:
    """(qualified name, definition) of every function, those in classes and functions too."""
    todo: list[tuple[str, ast.AST]] = [("", tree_of(file))]
    while todo:
        prefix, node = todo.pop()
        for child in ast.iter_child_nodes(node):
            named = isinstance(child, ast.ClassDef | Function)
            name = f"{prefix}{child.name}." if named else prefix
            if isinstance(child, Function):
                yield name[:-1], child
            todo.append((name, child))


def arguments(function: Function) -> int:
    listed = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
    return len(listed) - (bool(listed) and listed[0].arg in ("self", "cls"))


def fields(made: ast.ClassDef) -> int:
    """Arguments of the constructor that a dataclass or a NamedTuple has by its own fields."""
    written = [ast.unparse(node) for node in (*made.decorator_list, *made.bases)]
    if not any(re.match(r"(dataclasses\.)?dataclass\b|NamedTuple", text) for text in written):
        return 0
    listed = [ast.unparse(node) for node in made.body if isinstance(node, ast.AnnAssign)]
    return sum("ClassVar" not in text and "init=False" not in text for text in listed)


def is_command(function: Function) -> bool:
    """A typer command: its arguments are the options that a user may type."""
    return any(
        argument.annotation is not None and "typer." in ast.unparse(argument.annotation) for argument in function.args.args
    )


def is_kernel(file: Path) -> bool:
    return file.stem.endswith("_kernel") or file.parent.name == "native"


def most_arguments(files: list[Path], source: Path) -> list[tuple[int, int, str]]:
    """(arguments, how many are allowed, where), most first; typer commands aside."""
    found = []
    for file in files:
        where = str(file.relative_to(source))
        for name, function in functions(file):
            most = KERNEL_ARGUMENTS if is_kernel(file) else FUNCTION_ARGUMENTS
            most = CONSTRUCTOR_ARGUMENTS if function.name == "__init__" else most
            if not is_command(function):
                found.append((arguments(function), most, f"{where}:{name}"))
        made = [node for node in ast.walk(tree_of(file)) if isinstance(node, ast.ClassDef)]
        found += [(fields(node), CONSTRUCTOR_ARGUMENTS, f"{where}:{node.name}") for node in made]
    return sorted(found, key=lambda row: (-row[0], row[2]))


def long_functions(files: list[Path], source: Path) -> dict[str, int]:
    """Lines of the body from the first statement: the arguments are a list, not code."""
    return {
        f"{file.relative_to(source)}:{name}": lines
        for file in files
        for name, function in functions(file)
        if (lines := function.end_lineno - function.body[0].lineno + 1) > (KERNEL_LINES if is_kernel(file) else FUNCTION_LINES)
    }


# ---------------------------------------------------------------------------------------------------------- words and numbers
def banned_words(file: Path) -> int:
    """How often words of the private dialect stand in a file. Names count by their parts: `tell_all`, `TellAll` have `tell`."""
    text = file.read_text()

    def parts(words: str) -> str:
        return re.sub(r"(?<=[a-z])(?=[A-Z])|[_\W]+", " ", words).lower()

    count = len(BANNED.findall(parts(text)))
    if file.suffix == ".py":
        tokens = tokenize.generate_tokens(io.StringIO(text).readline)
        names = " ".join(token.string for token in tokens if token.type == tokenize.NAME)
        count += len(BANNED_NAMES.findall(parts(names)))
    return count


def numbers_without_comment(file: Path) -> int:
    """Constants of a module that are numbers, with no comment on their line or the line above."""
    lines = ["", *file.read_text().splitlines()]

    def is_number(value: ast.expr | None) -> bool:
        parts = list(ast.walk(value)) if value is not None else []
        plain = all(
            isinstance(part, ast.Constant | ast.Tuple | ast.UnaryOp | ast.BinOp | ast.operator | ast.unaryop | ast.expr_context)
            for part in parts
        )
        numbers = [part for part in parts if isinstance(part, ast.Constant) and type(part.value) in (int, float)]
        return plain and bool(numbers) and not any(isinstance(part, ast.Constant) and part not in numbers for part in parts)

    return sum(
        isinstance(node, ast.Assign | ast.AnnAssign)
        and is_number(node.value)
        and not any("#" in line for line in lines[node.lineno : node.end_lineno + 1])
        and not lines[node.lineno - 1].startswith("#")
        for node in tree_of(file).body
    )


# ---------------------------------------------------------------------------------------------------------- walks
def walk_files(walk: Callable[[], object], source: Path = SOURCE) -> list[str]:
    """The files of the package of which a function runs during this call; not what the compiler of kernels runs."""
    import threading
    from unittest import mock

    from numba.core.dispatcher import Dispatcher

    seen: set[str] = set()
    prefix, compile_for = f"{source}/", Dispatcher._compile_for_args

    def is_ours(code: CodeType) -> bool:
        """A function of the package, no body of a module or class."""
        return bool(code.co_flags & inspect.CO_OPTIMIZED) and code.co_filename.startswith(prefix)

    def look(frame, event, argument) -> None:  # type: ignore[no-untyped-def]
        if event == "call" and is_ours(frame.f_code):
            seen.add(frame.f_code.co_filename[len(prefix) :])

    def unseen(*arguments, **named):  # type: ignore[no-untyped-def]
        before = sys.getprofile()
        sys.setprofile(None)
        try:
            return compile_for(*arguments, **named)
        finally:
            sys.setprofile(before)

    threading.setprofile(look)
    sys.setprofile(look)
    try:
        with mock.patch.object(Dispatcher, "_compile_for_args", unseen):
            walk()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
    return sorted(seen)


def trace() -> dict[str, list[str]]:
    """The four walks: what a user of the program, of the file and of the layer passes through."""
    import pkgutil
    import tempfile
    from contextlib import suppress
    from importlib import import_module

    import numpy as np
    import torch

    import antembed as ant
    from antembed.cli.app import app

    for module in pkgutil.walk_packages([str(SOURCE)], "antembed."):  # functions that run on import are no part of a walk
        with suppress(ImportError):
            if module.name != "antembed.__main__":
                import_module(module.name)
    rng = np.random.default_rng(0)

    def compress() -> None:
        table = ant.compress(vectors, vocabulary=[f"w{n}" for n in range(len(vectors))], budget="8x")
        table.save(folder / "words.ant")
        _ = ant.load_table(folder / "words.ant")["w3"]

    def lazy_step() -> None:
        layer = ant.AnchorEmbedding(1000, 8, num_anchors=6, sparse=True)
        optimizer = ant.ProximalYogi(ant.param_groups(layer, l1_penalty=1e-4))
        layer(torch.arange(64)).sum().backward()
        optimizer.step()

    with tempfile.TemporaryDirectory() as name:
        folder, vectors = Path(name), rng.standard_normal((600, 16)).astype(np.float32)
        ratings = [f"u{u},i{i},{1 + (u + i) % 5}" for u, i in rng.integers(0, 40, (900, 2)).tolist()]
        (folder / "ratings.csv").write_text("\n".join(["user,item,rating", *ratings]) + "\n")
        texts = [f"{n % 3},{' '.join(f'w{10 * (n % 3) + w}' for w in rng.integers(0, 20, 10))}" for n in range(300)]
        (folder / "texts.csv").write_text("\n".join(["label,text", *texts]) + "\n")

        def train(task: str, data: str) -> Callable[[], object]:
            words = ["--quiet", "train", task, str(folder / data), "--out", str(folder / task), "--json"]
            return lambda: app(words, standalone_mode=False)

        calls: dict[str, Callable[[], object]] = {"a lazy step": lazy_step, "compress and look up": compress}
        calls |= {"train recommend": train("recommend", "ratings.csv"), "train classify": train("classify", "texts.csv")}
        found = {}
        for name, call in calls.items():
            gc.collect()  # layers of another walk are watched as long as they live
            found[name] = walk_files(call)
        return found


def walks() -> dict[str, list[str]]:
    """Traced in a process of its own: what has been cached here would be left out."""
    done = subprocess.run(
        [sys.executable, "-c", "import json, sys; from experiments.house import trace; sys.stderr.write(json.dumps(trace()))"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    )  # fmt: skip
    return json.loads(done.stderr.splitlines()[-1])


def rooms_of(files: list[str]) -> list[str]:
    """In order of the path; root and the table of tasks are everybody's."""
    return sorted({file.split("/")[0] for file in files if "/" in file})


# ---------------------------------------------------------------------------------------------------------- figures, ceilings
def documents(root: Path = ROOT) -> list[Path]:
    return [root / "README.md", root / "CONTRIBUTING.md", *sorted((root / "docs").glob("*.md"))]


def figures(source: Path = SOURCE) -> Figures:
    """All that can be read from the source."""
    files = sorted(source.rglob("*.py"))
    prose = {str(file.relative_to(ROOT)): banned_words(file) for file in [*files, *documents()]}
    names = Counter(file.name for file in files)
    bare: Counter[str] = Counter()
    for file in files:
        bare[room_of(file, source)] += numbers_without_comment(file)
    return {
        **sizes(files, source),
        "like_pairs": {"all": len(like_pairs(files))},
        "arguments": {where: n for n, most, where in most_arguments(files, source) if n > most},
        "long_functions": long_functions(files, source),
        "names_used_twice": {name: n for name, n in names.items() if n > 1 and name not in SHARED_NAMES},
        "banned_words": {name: n for name, n in prose.items() if n},
        "numbers_without_comment": {room: n for room, n in bare.items() if n},
    }


def walk_figures(found: dict[str, list[str]]) -> Figures:
    return {
        "rooms_on_a_walk": {walk: len(rooms_of(files)) for walk, files in found.items()},
        "files_on_a_walk": {walk: len(files) for walk, files in found.items()},
    }


def read_ceilings() -> Figures:
    return tomllib.loads(CEILINGS.read_text())


def exceeded(now: Figures, ceilings: Figures) -> list[str]:
    """What is above its ceiling, or has none."""
    return [
        f"[{section}] {name} = {figure}, at most {ceilings.get(section, {}).get(name, 'none')} allowed by house.toml"
        for section, found in now.items()
        for name, figure in found.items()
        if figure > ceilings.get(section, {}).get(name, 0)
    ]


def lowered(now: Figures, ceilings: Figures) -> Figures:
    """The ceilings, none above what is there now; what has gone has none."""
    return {
        section: {name: min(most, now[section][name]) for name, most in found.items() if name in now[section]}
        for section, found in ceilings.items()
    }


def write_ceilings(ceilings: Figures) -> None:
    head = (
        "# Ceilings of the source (tests/test_structure.py). `make house` shows the plan, `make house UPDATE=1` lowers them.\n"
    )
    body = [
        f"\n[{section}]\n" + "".join(f'"{name}" = {most}\n' for name, most in found.items())
        for section, found in ceilings.items()
    ]
    CEILINGS.write_text(head + "".join(body))


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="house", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--update", action="store_true", help="lower the ceilings in house.toml to what is there now")
    options = parser.parse_args(words)
    files, found = sorted(SOURCE.rglob("*.py")), walks()
    now = figures() | walk_figures(found)
    print(f"{'room':14}{'code':>8}{'lines':>8}{'files':>7}")
    for room in now["files"]:
        print(
            f"{room:14}"
            + "".join(
                f"{now[section][room]:{width}}"
                for section, width in zip(("code_lines", "lines", "files"), (8, 8, 7), strict=True)
            )
        )
    print("\nlongest argument lists")
    print(*(f"  {n:3} of {most:2}  {where}" for n, most, where in most_arguments(files, SOURCE)[:12]), sep="\n")
    pairs = like_pairs(files)
    print(f"\n{len(pairs)} like pairs")
    for length, file, line, other, other_line in pairs:
        print(f"  {length:3} lines  {file.relative_to(SOURCE)}:{line} ~ {other.relative_to(SOURCE)}:{other_line}")
    for section in ("long_functions", "names_used_twice", "banned_words", "numbers_without_comment"):
        print(f"\n{section.replace('_', ' ')}: {sum(now[section].values())} in {len(now[section])}")
    for walk, passed in found.items():
        print(f"\n{walk}: {len(rooms_of(passed))} rooms ({', '.join(rooms_of(passed))}), {len(passed)} files")
        for room in ["", *rooms_of(passed)]:
            if names := [file for file in passed if (file.split("/")[0] == room if room else "/" not in file)]:
                print(f"  {' '.join(names)}")
    if options.update:
        write_ceilings(lowered(now, read_ceilings()))
    wrong = exceeded(now, read_ceilings())
    print("", *wrong, sep="\n")
    return int(bool(wrong))
