"""The base install is numpy and safetensors: look-up works with these, and the rest says which extra it needs."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import textwrap
import tomllib
import venv
from pathlib import Path

import pytest
from tests.words import write_words

from antembed.extras import EXTRAS, install

ROOT = Path(__file__).parents[2]
SNIPPETS = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
SERVING = next(code for code in SNIPPETS if "KeyedVectors" in code)
NEITHER = """
    import sys, importlib.abc

    class Missing(importlib.abc.MetaPathFinder):
        def find_spec(self, name, path=None, target=None):
            if name.split(".")[0] in {packages}:
                raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

    sys.meta_path.insert(0, Missing())
"""


def without(code, *packages, folder):
    """Run code as if packages were not installed."""
    program = textwrap.dedent(NEITHER).format(packages=set(packages)) + textwrap.dedent(code)
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=folder)


def test_readme_serves_with_numpy_and_safetensors_alone(tmp_path):
    write_words(tmp_path / "words.ant")
    asked = SERVING + "\nassert not {'torch', 'polars', 'numba', 'scipy'} & set(sys.modules)"
    done = without(asked, *EXTRAS, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_serving_imports_nothing_heavy():
    code = "import sys, antembed.tables; print(*sys.modules)"
    loaded = {name.split(".")[0] for name in subprocess.check_output([sys.executable, "-c", code], text=True).split()}
    assert not loaded & EXTRAS.keys()


@pytest.mark.parametrize(
    ("name", "missing", "extra"),
    [("AnchorEmbedding", "torch", "train"), ("TextClassifier", "torch", "train"), ("compress", "numba", "cli")],
)
def test_what_is_missing_names_its_extra(name, missing, extra, tmp_path):
    done = without(f"import antembed; antembed.{name}", missing, folder=tmp_path)
    assert f"ImportError: antembed.{name} needs {missing}, which is not installed; {install(extra)}" in done.stderr


@pytest.mark.parametrize(
    ("words", "missing", "extra"),
    [("--help", "typer", "cli"), ("inspect words.ant", "typer", "cli"), ("train recommend x.csv", "torch", "train")],
)
def test_the_command_names_its_extra_in_one_line(words, missing, extra, tmp_path):
    write_words(tmp_path / "words.ant")
    (tmp_path / "x.csv").write_text("user,item,rating\n" + "".join(f"{n % 9},{n % 7},{n % 5}\n" for n in range(60)))
    code = f"sys.argv[1:] = {words.split()}\nfrom antembed.cli import main\nmain()"
    done = without(code, missing, folder=tmp_path)
    line = f"error: this command needs {missing}, which is not installed; {install(extra)}\n"
    assert (done.returncode, done.stderr) == (1, line)


def test_every_extra_is_in_pyproject():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    named = {"sklearn": "scikit-learn"}
    for package, extra in EXTRAS.items():
        assert any(line.startswith(named.get(package, package)) for line in extras[extra]), (package, extra)
    assert {*EXTRAS.values()} <= set(re.findall(r"\w+", extras["all"][0]))


def run(*words, folder=ROOT):
    """Without PYTHONPATH, which would show the fresh environment what is installed here."""
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run([str(word) for word in words], capture_output=True, text=True, check=False, cwd=folder, env=clean)


def pip(*words):
    return run(sys.executable, "-m", "pip", *words)


@pytest.mark.slow
@pytest.mark.skipif(not importlib.util.find_spec("pip"), reason="pip is not installed")
@pytest.mark.skipif(not importlib.util.find_spec("setuptools"), reason="setuptools, which builds the wheel, is not installed")
def test_the_wheel_in_a_fresh_environment(tmp_path):
    """Built and installed with what it requires; then README's serving example, and the command without its extra."""
    venv.create(tmp_path / "fresh", with_pip=False)
    python = tmp_path / "fresh" / ("Scripts" if os.name == "nt" else "bin") / "python"
    tried = pip("--python", python, "install", "--quiet", "numpy>=2.0", "safetensors>=0.4")
    if tried.returncode:
        pytest.skip(f"pip cannot install numpy and safetensors here: {tried.stderr.strip().splitlines()[-1]}")
    source = tmp_path / "source"
    shutil.copytree(ROOT / "src", source / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    built = pip("wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", tmp_path / "wheels", source)
    assert built.returncode == 0, built.stderr
    done = pip("--python", python, "install", "--quiet", *(tmp_path / "wheels").glob("antembed-*.whl"))
    assert done.returncode == 0, done.stderr
    listed = pip("--python", python, "list", "--format", "freeze").stdout
    assert {line.split("==")[0] for line in listed.split()} - {"pip", "setuptools"} == {"antembed", "numpy", "safetensors"}
    write_words(tmp_path / "words.ant")
    served = run(python, "-c", SERVING, folder=tmp_path)
    assert served.returncode == 0, served.stderr
    assert served.stdout
    assert (
        run(python.with_name("antembed")).stderr
        == f"error: this command needs typer, which is not installed; {install('cli')}\n"
    )
