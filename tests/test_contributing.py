"""CONTRIBUTING.md is true: its recipes, followed with the files they name and no others, give something that works."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.synthetic_text import write_topics

import antembed
from antembed.recommend.synthetic import planted, ratings

SOURCE = Path(antembed.__file__).parent
TEXT = (SOURCE.parents[1] / "CONTRIBUTING.md").read_text()
RECIPES = {match[1]: match[2] for match in re.finditer(r"\*\*([^*]+?)\.?\*\*[^*]*?\nFiles: ([^\n]+)\n", TEXT)}

BASELINE = '''"""A table of signs."""
from antembed.layer.full import FullEmbedding
from antembed.layer.optim.prox import {penalty}

class SignEmbedding(FullEmbedding):
    small_init = 0.01

    def param_groups(self, l1_penalty=0.0):
        return [{{"params": [self.rows.weight], "table": self.rows, "prox": {penalty}(l1_penalty)}}]
'''
TASK = (Path(__file__).parent / "train" / "toy_links.py").read_text()
# recipe → {file: [(old, new)] or the text of a new file}
EDITS: dict[str, dict[str, object]] = {
    "A baseline": {
        "baselines/NAME.py": BASELINE.format(penalty="L1"),
        "baselines/__init__.py": [
            ("EMBEDDINGS: dict", "from antembed.baselines.NAME import SignEmbedding\nEMBEDDINGS: dict"),
            ('    "vvd": VocabularyDropout,\n}', '    "vvd": VocabularyDropout,\n    "signs": SignEmbedding,\n}'),
        ],
        "layer/embedding_names.py": [('BARE = ["full",', 'BARE = ["signs", "full",')],
    },
    "An initializer": {
        "layer/anchors/initializers.py": [
            (
                '    "vvd": _trained("vvd"),\n',
                '    "vvd": _trained("vvd"),\n    "last": Initializer(lambda s, K, seed: np.arange(s.V - K, s.V)),\n',
            )
        ]
    },
    "A data set": {
        "data/download.py": [("DATA_SETS = {", 'DATA_SETS = {\n    "toy": DataSet("a toy", (Remote("https://example.org/toy.csv"),)),')]
    },
    "An optimizer": {
        "layer/optim/rules.py": [
            ("class ProximalAdam(", "class ProximalSlow(ProximalSGD):\n    def _scale(self, step, group):\n        return group['lr'] / 2\n\n\nclass ProximalAdam(")
        ],
        "layer/optim/__init__.py": [
            ("ProximalSGD, ProximalYogi\n", "ProximalSGD, ProximalSlow, ProximalYogi\n"),
            ('"sgd": ProximalSGD}', '"sgd": ProximalSGD, "slow": ProximalSlow}'),
        ],
        "train/config.py": [('OPTIMIZERS = ("yogi", "adam", "sgd")', 'OPTIMIZERS = ("yogi", "adam", "sgd", "slow")')],
    },
    "A penalty": {
        "layer/optim/prox.py": [("@dataclass\nclass GroupL2(", "@dataclass\nclass HalfL1(L1):\n    def __call__(self, t, step):\n        return super().__call__(t, step / 2)\n\n\n@dataclass\nclass GroupL2(")],
        "baselines/NAME.py": BASELINE.format(penalty="HalfL1"),
        "baselines/__init__.py": [],
    },
    "An encoding of T": {
        "tables/encodings.py": [
            ('    "packed": encode_packed,\n', '    "packed": encode_packed,\n    "flat": lambda T: {"values": np.concatenate(list(T.blocks())).reshape(-1)},\n'),
            ('    if encoding == "plain":\n', '    if encoding == "flat":\n        T = arrays["values"].reshape(-1, columns)\n        return PlainRows(T), int(np.count_nonzero(T))\n    if encoding == "plain":\n'),
        ],
        "tables/checks.py": [
            ('KNOWN = ("plain",', 'KNOWN = ("flat", "plain",'),
            ('        "plain": {"weights":', '        "flat": {"values": ((rows * K,), stored)},\n        "plain": {"weights":'),
        ],
    },
    "A metric": {"recommend/task.py": [('"mae": absolute / n,', '"mae": absolute / n, "bias": 0.5,')]},
    "An option of a solver": {
        "train/config.py": [("    patience: Integer = option(0,", '    shout: bool = option(False, "Be loud.")\n    patience: Integer = option(0,')],
        "train/stochastic.py": [('"engine": "fused" if', '"loud": self.own.train.shout, "engine": "fused" if')],
    },
    "An option of a task": {
        "recommend/config.py": [("    biases: bool = option(True,", '    colour: str = option("blue", "Of the tables.")\n    biases: bool = option(True,')],
        "recommend/task.py": [("        return model.to(config.solver.train.device) if", '        model.details = {"colour": config.tables.colour}\n        return model.to(config.solver.train.device) if')],
    },
    "A command": {
        "cli/NAME.py": '"""Greets."""\nimport typer\n\n\ndef hello() -> None:\n    """Say hello."""\n    typer.echo("hello")\n',
        "cli/app.py": [("sweep.sweep, first_steps.demo)", "sweep.sweep, first_steps.demo, NAME.hello)"), ("import compress, ", "import NAME, compress, ")],
    },
    "A report column": {
        "report/page.py": [
            ('["run", "metric"', '["run", "epochs", "metric"'),
            ('                cell(row["run"]),\n', '                cell(row["run"]),\n                str(row["epochs"]),\n'),
        ]
    },
    "A task": {
        "NAME/task.py": TASK.replace(
            '    task: Literal["links"]', '    implementation: ClassVar[str] = "antembed.NAME.task:Links"\n    task: Literal["links"]'
        ),
        "tasks.py": [
            ("from antembed.classify.config import", "from antembed.NAME.task import LinksConfig\nfrom antembed.classify.config import"),
            ("TASKS.add(LanguageConfig)\n", "TASKS.add(LanguageConfig)\nTASKS.add(LinksConfig)\n"),
        ],
    },
}  # fmt: skip


def named(files: str) -> list[str]:
    return re.findall(r"`([^`]+)`", files)


def test_every_recipe_names_files_that_are_there():
    assert len(RECIPES) > 14
    for title, text in RECIPES.items():
        assert named(text), title
        for file in named(text):
            pattern = file.replace("TASK", "*").replace("SOLVER", "*").replace("NAME", "*")
            assert list(SOURCE.glob(pattern)), f"{title}: {file}"


@pytest.mark.parametrize("title", EDITS)
def test_the_recipe_needs_no_other_file(title):
    """What the edits below touch is what the recipe says; the next test shows that they suffice."""
    generic = {
        re.sub(r"(recommend|classify)/", "TASK/", file).replace("train/stochastic", "train/SOLVER") for file in EDITS[title]
    }
    assert generic == set(named(RECIPES[title].split(";")[0]))  # behind it: where a special case goes


@pytest.fixture(scope="module")
def changed(tmp_path_factory):
    """A copy of the source in which all recipes were followed."""
    root = tmp_path_factory.mktemp("changed")
    shutil.copytree(SOURCE, root / "antembed", ignore=shutil.ignore_patterns("__pycache__"))
    for edits in EDITS.values():
        for name, change in edits.items():
            file = root / "antembed" / name
            if isinstance(change, str):
                file.parent.mkdir(exist_ok=True)
                file.write_text(change)
                continue
            text = file.read_text()
            for old, new in change:
                assert text.count(old) == 1, f"{name} has {old!r} {text.count(old)} times"
                text = text.replace(old, new)
            file.write_text(text)
    users, items = planted(60, 4, anchors=3, seed=0), planted(30, 4, anchors=3, seed=1)
    r = ratings(users, items, 1500, noise=0.2, seed=2)
    rows = "\n".join(f"{u},{i},{v:.2f}" for u, i, v in zip(r.users, r.items, r.values, strict=True))
    (root / "ratings.csv").write_text("user,item,rating\n" + rows)
    (root / "edges.txt").write_text("\n".join(f"{n % 40} {(n * 7) % 40}" for n in range(300)))
    write_topics(root / "text.csv", 200, 100, classes=2, length=12, purity=0.6)
    return root


PROGRAM = """
import json, sys
from typer.testing import CliRunner
from antembed.cli.app import app

def run(*words):
    done = CliRunner().invoke(app, [str(word) for word in words])
    assert done.exit_code == 0, (words, done.output, done.exception)
    return done.stdout

assert run("hello") == "hello\\n"
assert "a toy" in run("data", "list")
quick = ("--epochs", 2, "--batch-size", 64, "--embedding-dim", 4)
first = ("train", "recommend", "ratings.csv", *quick, "--embedding", "signs", "--optimizer", "slow", "--shout")
result = json.loads(run(*first, "--colour", "red", "--encoding", "flat", "--out", "a", "--json"))
assert (result["loud"], result["colour"], result["test"]["bias"]) == (True, "red", 0.5)
assert "flat" in run("inspect", "a/users.ant")
words = ("--anchor-init", "last", "--anchors", 3, "--out", "t", "--json")
assert json.loads(run("train", "classify", "text.csv", *quick, *words))["anchors"] <= 3
assert json.loads(run("train", "links", "edges.txt", *quick, "--out", "l", "--json"))["task"] == "links"
assert "| run | epochs |" in run("report", "a", "l")
print("all recipes work")
"""


@pytest.mark.slow
def test_following_the_recipes_works(changed):
    environment = os.environ | {"PYTHONPATH": str(changed), "ANTEMBED_CACHE": str(changed / "cache")}
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, cwd=changed, env=environment, capture_output=True, text=True, check=False)
    assert done.stdout == "all recipes work\n", done.stderr[-3000:]
