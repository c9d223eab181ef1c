"""What README and guides claim: each number has a claim or a record, and `make claims` feels a loss."""

import json
import re
import tomllib
from pathlib import Path

import experiments.claims as claims
import pytest
from experiments.claims import Claim, Comparison, check, read_claims

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"
CLAIMS = read_claims(RESULTS / "claims.toml")
LISTED = tomllib.loads((RESULTS / "claims.toml").read_text())
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
UNITS = r"%|×|[kKMG]B\b|bytes\b|seconds?\b|m?s\b|µs\b|ns\b|minutes?\b|hours?\b|points?\b|times\b|perplexity|MSE\b|accuracy|NDCG"
METRICS = r"MSE|accuracy|perplexity|NDCG@10|error|correlation"
NUMBER = r"(?:\d[\d,. ]*)?\.?\d+"
MEASURED = re.compile(rf"(?<![\w.])({NUMBER})\s?(?:{UNITS})|(?:{METRICS})\s(?:of\s)?\**({NUMBER})")


def prose_of(page):
    """Paragraphs without code, tables made from records, and headings."""
    text = re.sub(r"<!-- results:.*?<!-- end -->|```.*?```", "", page.read_text(), flags=re.DOTALL)
    text = "\n".join(line for line in text.splitlines() if not line.startswith(("    ", "#")))
    return re.split(r"\n\s*\n|\n(?=- |\d\. )", text)


def numbers_of(paragraph):
    """Numbers with a unit or a metric's name: as they are written, and the number alone."""
    plain = re.sub(r"`[^`]*`", "", paragraph)
    return {found[0]: (found[1] or found[2]).strip(" ,") for found in MEASURED.finditer(plain)}


def leaves(value):
    if isinstance(value, dict):
        for part in value.values():
            yield from leaves(part)
    elif isinstance(value, list):
        for part in value:
            yield from leaves(part)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield float(value)


def recorded(number, paragraph):
    """Whether a file of records that the paragraph names has a value that is written like this."""
    digits = number.replace(",", "").replace(" ", "")
    decimals = len(digits.partition(".")[2])
    for name in re.findall(r"results/([\w-]+\.jsonl)", paragraph):
        for line in (RESULTS / name).read_text().splitlines():
            for value in leaves(json.loads(line)):
                if any(round(scale * value, decimals) == float(digits) for scale in (1, 100, 1e-3, 1e-6)):
                    return True
    return False


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_numbers_of_a_page_are_settings_or_in_the_records_it_names(page):
    settings = LISTED["settings"].get(page.name, [])
    missing = [
        written
        for paragraph in prose_of(page)
        for written, number in numbers_of(paragraph).items()
        if written not in settings and not recorded(number, paragraph)
    ]
    assert not missing, (
        f"{page.name}: in no record that the paragraph names (results/NAME.jsonl), no setting of results/claims.toml: {missing}"
    )


def test_a_measured_number_is_found_and_missed():
    """The check itself."""
    assert numbers_of("It takes 86 s, has 58 kB and an MSE of .7245; MSE **0.7554**, 15 %, `--budget 9 kB`, v2.") == {
        "86 s": "86", "58 kB": "58", "MSE of .7245": ".7245", "MSE **0.7554": "0.7554", "15 %": "15",
    }  # fmt: skip
    names = "(results/defaults.jsonl)"
    assert recorded("0.7232", names)
    assert not recorded("0.7231", names)
    assert not recorded("0.7232", "no record is named")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_tables_of_a_page_have_claims(page):
    shown = set(re.findall(r"<!-- results: ([\w-]+) -->", page.read_text()))
    missing = shown - {claim.table for claim in CLAIMS} - LISTED["tables_without_claims"].keys()
    assert not missing, f"{page.name}: no claim of results/claims.toml is of the tables {sorted(missing)}"


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.name)
def test_a_claim_has_a_record_with_its_metrics(claim):
    row = claim.then(RESULTS)
    assert row["commit"]
    for metric, path in claim.metrics.items():
        assert metric in claims.TOLERANCES
        assert isinstance(claims.at(row, claim.recorded.get(metric, path)), int | float)


@pytest.mark.parametrize(
    ("metric", "then", "kept", "lost"),
    [
        ("mse", 0.7232, 0.7260, 0.7270),
        ("accuracy", 0.9108, 0.9090, 0.9053),
        ("bytes", 64_000, 66_000, 90_497),
        ("perplexity", 97.9, 98.8, 99.0),
        ("neighbours_kept", 0.599, 0.595, 0.593),
        ("relative_error", 0.0554, 0.0556, 0.0558),
    ],
)
def test_a_loss_beyond_the_tolerance_fails(metric, then, kept, lost):
    assert not Comparison(metric, then, kept).failed
    assert Comparison(metric, then, lost).failed
    assert "worse  LOST" in str(Comparison(metric, then, lost))
    assert Comparison(metric, then, float("nan")).failed


@pytest.fixture
def gate(tmp_path, monkeypatch):
    """Claims about a record with MSE .72, whose command prints `now`."""
    (tmp_path / "r.jsonl").write_text(
        '{"seed": 0, "commit": "abc", "test": {"mse": 0.9}}\n{"seed": 0, "test": {"mse": 0.72}}\n'
    )
    (tmp_path / "data").mkdir()

    def checked(now, command="train {out}"):
        monkeypatch.setattr(claims, "run", lambda command, cache: (now, 1.0))
        claim = Claim("c", "t", command, "r.jsonl", {"seed": 0}, {"mse": "test.mse"}, {}, True)
        lines = []
        return check([claim], [tmp_path / "data"], tmp_path, lines.append), lines

    return checked


def test_the_gate_compares_with_the_newest_record(gate):
    assert gate({"test": {"mse": 0.721}})[0] == (1, 0)
    assert gate({"test": {"mse": 0.73}})[0] == (1, 1)


def test_the_gate_fails_without_the_metric_and_says_what_was_not_checked(gate):
    (checked, failed), lines = gate({"test": {}})
    assert (checked, failed) == (1, 1)
    assert "test.mse is missing in the output" in lines[-1]
    (checked, failed), lines = gate({}, "train {ml-1m/ratings.dat}")
    assert (checked, failed) == (0, 0)
    assert lines == ["c: not checked, ml-1m/ratings.dat is in no data folder"]


def test_a_run_that_checks_nothing_fails(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("ANTEMBED_DATA", str(tmp_path))
    monkeypatch.setattr("sys.argv", ["claims.py", "--quick"])
    assert claims.main() == 1
    assert "No claim could be checked" in capsys.readouterr().out
