"""Help, wrong options, missing files and columns, an existing folder: said before torch is imported and anything searched."""

import json
import subprocess
import sys

import pytest

from antembed.tables.model_folder import write_description

# One process for all calls: none of them imports torch, or the rest would show it.
PROGRAM = """
import json, sys
from typer.testing import CliRunner
from antembed.cli.app import app
for words in json.load(sys.stdin):
    done = CliRunner().invoke(app, words, env={"COLUMNS": "400"})
    print(json.dumps([done.exit_code, " ".join(f"{done.output} {done.exception}".split()), "torch" in sys.modules]))
"""
RATINGS = "user,item,rating\n" + "".join(f"{n % 7},{n % 11},{n % 5}\n" for n in range(60))
EVENTS = "kunde,artikel,menge\n" + "".join(f"{n % 7},{n % 11},{n % 5}\n" for n in range(60))
TEXT = "label,text\n" + "".join(f"{'ab'[n % 2]},some words {n}\n" for n in range(40))
CASES = {
    "help": ("--help", 0, "recommend-events"),
    "help of ratings": ("recommend --help", 0, "Example:"),
    "all help of text": ("classify --help-all", 0, "--anchor-init"),
    "help of language": ("language --help", 0, "Example:"),
    "no file": ("recommend none.csv", 1, "none.csv is no file"),
    "no events": ("recommend-events none.csv", 1, "none.csv is no file"),
    "no text": ("classify none.csv", 1, "none.csv is no file"),
    "no text of n-grams": ("classify-ngrams none.csv", 1, "none.csv is no file"),
    "no test": ("classify text.csv --test none.csv", 1, "none.csv is no file"),
    "no vectors": ("classify text.csv --anchor-init kmeans --vectors none.txt", 1, "none.txt is no file"),
    "no corpus": ("language none", 1, "none is neither a file nor a folder"),
    "no data set": ("language wikitext-2", 1, "fetch it with: antembed data get wikitext-2"),
    "no stream": ("recommend none.csv --solver online", 1, "none.csv is no file"),
    "no column": ("recommend ratings.csv --columns user,film,rating", 1, "no column 'film'; it has: user, item, rating"),
    "no column of a stream": ("recommend ratings.csv --solver online --columns user,film,rating", 1, "no column 'film'"),
    "no label": ("classify text.csv --label topic", 1, "no column 'topic' for the label; it has 2: label, text"),
    "a bound": ("recommend ratings.csv --epochs 0", 2, "epochs must be ≥ 1, got 0"),
    "a bound that a search takes": ("recommend ratings.csv --tolerance 1", 2, "'1' is no tolerance"),
    "an embedding": ("recommend ratings.csv --embedding magic", 2, "embedding 'magic' is none of: anchor, frequency"),
    "an embedding without features": ("recommend ratings.csv --embedding sparse-code", 2, "needs features of the objects"),
    "an optimizer": ("classify text.csv --optimizer magic", 2, "optimizer 'magic' is none of: yogi, adam, sgd"),
    "an initializer": ("classify text.csv --anchor-init magic", 2, "anchor_init 'magic' is none of: none, frequency"),
    "another solver": ("recommend ratings.csv --solver stochastic --ridge 1", 2, "--ridge is an option of --solver coordinate"),
    "a solver of events": ("recommend events.csv --solver stochastic", 2, "trained by coordinate_descent, not stochastic"),
    "a split of events": ("recommend ratings.csv --split last", 2, "split last is for events, and these are ratings"),
    "a budget": ("classify-ngrams text.csv --budget 5x", 2, "budget is the size of a file"),
    "heads": ("language text.csv --model transformer --embedding-dim 6", 2, "4 heads need a width"),
    "a folder": ("recommend ratings.csv --out run", 1, "run exists; continue it with --resume"),
    "a folder of events": ("recommend events.csv --out run", 1, "run exists; continue it with --resume"),
    "a folder of text": ("classify text.csv --out run", 1, "run exists; continue it with --resume"),
    "a folder of language": ("language text.csv --out run", 1, "run exists; continue it with --resume"),
    "a strange folder": ("recommend ratings.csv --out strange", 1, "strange is no run, but has a.txt in it"),
    "a file for a folder": ("recommend ratings.csv --out text.csv", 1, "text.csv is a file; a run is a folder"),
    "the usual folder": ("recommend ratings.csv", 1, "runs/recommend-anchor-0 exists"),
    "the usual folder of events": ("recommend events.csv", 1, "runs/recommend-events-anchor-0 exists"),
    "the usual folder of text": ("classify text.csv", 1, "runs/classify-ngrams-anchor-0 exists"),
}  # fmt: skip


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    """What each call says."""
    home = tmp_path_factory.mktemp("early")
    for name, text in (("ratings.csv", RATINGS), ("events.csv", EVENTS), ("text.csv", TEXT)):
        (home / name).write_text(text)
    runs = ("run", "runs/recommend-anchor-0", "runs/recommend-events-anchor-0", "runs/classify-ngrams-anchor-0")
    for folder in (*runs, "strange"):
        (home / folder).mkdir(parents=True)
    for folder in runs:
        write_description(home / folder, {"version": 2, "task": "recommend"}, {}, [])
    (home / "strange" / "a.txt").touch()
    calls = json.dumps([["train", *words.split()] for words, _, _ in CASES.values()])
    done = subprocess.run([sys.executable, "-c", PROGRAM], input=calls, capture_output=True, text=True, check=True, cwd=home)
    return dict(zip(CASES, map(json.loads, done.stdout.splitlines()), strict=True))


@pytest.mark.parametrize("name", CASES)
def test_it_is_said_before_torch_is_imported(said, name):
    _, code, text = CASES[name]
    exit_code, output, torch_imported = said[name]
    assert text in output
    assert exit_code == code
    assert not torch_imported
