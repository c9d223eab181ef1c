"""The documents are true: the README is short, links lead somewhere, and the Python of docs/ runs."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
GUIDES = sorted((ROOT / "docs").rglob("*.md"))
PAGES = [*(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")), *GUIDES]
LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)")
LONGEST = 120  # lines of the README
WORDS = 800  # of a guide, with its snippets, without tables made from records
LONGER = {"docs/architecture.md": 1150, "docs/format.md": 1750, "docs/results/recommendation.md": 900}  # references; ten tables
ALL_WORDS, CHANGELOG_WORDS, NOTES_WORDS = 20_000, 1_500, 1_500
MOST_ROWS = 15  # of a table made from records
NAMED = re.compile(r"`((?:[\w-]+/)+[\w.-]+\.(?:py|toml|jsonl|md))`")


def name_of(page):
    return str(page.relative_to(ROOT))


def python_of(page):
    return re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)


def words_of(page):
    """By hand: what is made from records does not count."""
    return len(re.sub(r"<!-- results:.*?<!-- end -->", "", page.read_text(), flags=re.DOTALL).split())


def anchor_of(heading):
    """The end of a link to a heading, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def test_the_readme_is_short():
    lines = len((ROOT / "README.md").read_text().splitlines())
    assert lines <= LONGEST, f"README.md has {lines} lines, at most {LONGEST} are allowed; move some to docs/"


@pytest.mark.parametrize("page", GUIDES, ids=name_of)
def test_guides_and_results_are_short(page):
    assert words_of(page) <= LONGER.get(name_of(page), WORDS)


def test_all_documents_are_short():
    assert sum(map(words_of, [*GUIDES, *PAGES[:2]])) <= ALL_WORDS
    assert words_of(ROOT / "CHANGELOG.md") <= CHANGELOG_WORDS
    assert words_of(ROOT / "results" / "NOTES.md") <= NOTES_WORDS


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_tables_from_records_have_few_rows_and_no_empty_column(page):
    for table in re.findall(r"<!-- results: [\w-]+ -->\n\|[^\n]*\n\|[^\n]*\n((?:\|[^\n]*\n)+)", page.read_text()):
        rows = [line.strip("|").split(" | ") for line in table.splitlines()]
        assert len(rows) <= MOST_ROWS, f"{name_of(page)}: {len(rows)} rows; the rest belongs to the records"
        for column in zip(*rows, strict=True):
            filled = sum(cell.strip() not in ("", "–") for cell in column)
            assert 2 * filled >= len(rows), f"{name_of(page)}: an empty column: {column}"


@pytest.mark.parametrize("page", [*PAGES[:2], *GUIDES, ROOT / "SECURITY.md"], ids=name_of)
def test_files_that_are_named_exist(page):
    homes = (ROOT, ROOT / "src" / "antembed", page.parent)
    named = [name for name in NAMED.findall(page.read_text()) if not re.search("NAME|TASK|SOLVER|ROOM", name)]
    missing = [name for name in named if not any((home / name).exists() for home in homes) and not list(ROOT.glob(f"*/{name}"))]
    assert not missing, f"{name_of(page)}: {missing}"


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
