"""What the README says is true: its Python runs, its tables are the records', its commands exist."""

import re
from pathlib import Path

import pytest
from cli_options import options_of_command
from experiments.recommendation_tables import recommend
from experiments.tables import TABLES, fill
from tests.words import write_words

from antembed.recommend.config import RatingsConfig
from antembed.train.options import from_options

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SNIPPETS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
TYPED = re.compile(r"^    antembed (.+?)(?: +#.*)?$|`antembed (\w[^`]+)`", re.MULTILINE)
COMMANDS = sorted({"".join(found) for page in PAGES for found in TYPED.findall(page.read_text())})
TARGETS = re.findall(r"^    make ([\w-]+)", README, re.MULTILINE)


def test_there_is_something_to_check():
    assert len(SNIPPETS) >= 1
    assert len(COMMANDS) >= 4
    assert len(TARGETS) >= 4


@pytest.mark.parametrize("code", SNIPPETS, ids=range(len(SNIPPETS)))
def test_snippets_run(code, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_words(tmp_path / "words.ant")
    exec(compile(code, "README.md", "exec"), {})  # its own example, not data
    assert capsys.readouterr().out


def test_the_first_snippet_is_short():
    assert len([line for line in SNIPPETS[0].splitlines() if line.strip()]) <= 14


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_and_options_exist(command):
    words = re.split(r"[\s=]+", command)
    known = options_of_command(words)
    assert {word for word in words if word.startswith("--")} <= known


@pytest.mark.parametrize("target", TARGETS)
def test_targets_exist(target):
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_tables_are_those_of_the_records(page):
    assert fill(page.read_text(), ROOT / "results") == page.read_text(), "run `make readme`"


def test_every_table_has_a_page():
    text = "".join(page.read_text() for page in PAGES)
    assert all(f"<!-- results: {name} -->" in text for name in TABLES)


def test_what_is_no_place_for_a_table():
    with pytest.raises(ValueError, match="there is no table 'magic'; there are: recommend, "):
        fill("<!-- results: magic -->\n<!-- end -->", ROOT / "results")
    with pytest.raises(ValueError, match="the table 'recommend' has no end"):
        fill("<!-- results: recommend -->\n", ROOT / "results")


def test_seeds_of_one_setting_are_one_row():
    def run(seed, mse):
        config = from_options(
            RatingsConfig,
            {
                "data": "r.csv",
                "anchors": (3, 2),
                "biases": False,
                "ridge": 2.0,
                "seed": seed,
                "threads": seed + 1,
                "solver": "coordinate_descent",
            },
        )
        counts = {"anchors": {"users": 3, "items": 2}, "parameters": 1000, "bytes": 2000, "seconds": 3}
        return {"config": config.model_dump(mode="json"), "embedding": "anchor", "test": {"mse": mse}, **counts}

    *_, row = recommend([run(0, 0.5), run(1, 0.6)]).splitlines()
    command = "antembed train recommend r.csv --solver coordinate_descent --ridge 2 --no-biases --anchors 3,2"
    assert row == f"| anchor | 3/2 | 0.550 ± 0.050 | 1.0K | 2 kB | 3 s | 2 | `{command}` |"
