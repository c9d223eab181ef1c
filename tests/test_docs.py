"""The documents are true: the README is short, links lead somewhere, and the Python of docs/ runs."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
GUIDES = sorted((ROOT / "docs").rglob("*.md"))
PAGES = [*(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")), *GUIDES]
LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)")
LONGEST = 120  # lines of the README


def name_of(page):
    return str(page.relative_to(ROOT))


def python_of(page):
    return re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)


def anchor_of(heading):
    """The end of a link to a heading, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def test_the_readme_is_short():
    lines = len((ROOT / "README.md").read_text().splitlines())
    assert lines <= LONGEST, f"README.md has {lines} lines, at most {LONGEST} are allowed; move some to docs/"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_to_files_and_headings(page):
    for path, heading in LINK.findall(page.read_text()):
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{name_of(page)} links to {path}, which is not there"
        if heading:
            headings = re.findall(r"^#+ (.+)$", target.read_text(), re.MULTILINE)
            assert heading in map(anchor_of, headings), (
                f"{name_of(page)} links to {path}#{heading}, a heading that is not there"
            )


@pytest.mark.parametrize("page", [page for page in PAGES[3:] if page.parent.name == "docs"], ids=name_of)
def test_every_guide_is_named_in_the_readme(page):
    assert f"({name_of(page)})" in (ROOT / "README.md").read_text()


def test_nothing_is_installed_from_an_index():
    """antembed is on none: `pip install '.[cli]'` in a clone is what works."""
    sources = [file for folder in ("src", "examples", "experiments") for file in (ROOT / folder).rglob("*.py")]
    for file in [*PAGES[:2], *GUIDES, *sources]:
        found = re.search(r"pip install\s[^\n`]*\bantembed\b(?! *\S*/)[^\n]*", file.read_text())
        assert found is None, f"{name_of(file)}: {found and found[0]}"


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in GUIDES if python_of(page)], ids=name_of)
def test_the_python_of_a_guide_runs(page, tmp_path, monkeypatch, capsys):
    """One after the other, as they are read."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for code in python_of(page):
        if "transformers" in code:
            pytest.importorskip("transformers")
        exec(compile(code, str(page), "exec"), names)  # our own examples, not data
