"""Errors in one line, and text of the data that means nothing to the terminal."""

import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest
from rich.console import Console
from tests.command import QUICK, call, write_ratings

from antembed import cli
from antembed.cli import show
from antembed.cli.show import printable
from antembed.report.page import cell

NASTY = ["[/i8]", "[bold red]x", "\x1b[31mred\x1b]0;title\x07", "two\nlines", ":smile:", "\ud800", "\u202egnp.exe", "\x9b31m"]


def shown(capsys, monkeypatch, *, terminal):
    """What is printed, as in a terminal or a pipe."""

    def console():
        return Console(stderr=True, markup=False, emoji=False, highlight=False, force_terminal=terminal, width=200)

    monkeypatch.setattr(show, "console", console)
    monkeypatch.setattr(show, "is_terminal", lambda file: terminal)
    return capsys


def test_printable():
    assert printable("\x1b[31m[/i8]\n\x7f") == "\\x1b[31m[/i8]\\n\\x7f"
    assert printable("Größe 中文 [x] 👩‍🚀") == "Größe 中文 [x] 👩‍🚀"
    assert printable("\ud800").encode() == b"\\ud800"


@pytest.mark.parametrize("label", NASTY)
def test_labels_are_shown_as_they_are(label, capsys, monkeypatch):
    shown(capsys, monkeypatch, terminal=False)
    show.listing({"item": [label], "score": [1.0]}, as_json=False)
    show.say(label)
    show.answer(label)
    show.remarks({"remarks": [label]})
    show.facts({"name": label}, as_json=False)
    printed = capsys.readouterr()
    assert printed.out.count(printable(label)) == 3
    assert printed.err.count(printable(label)) == 2
    assert len(printed.err.splitlines()) == 2


@pytest.mark.parametrize("label", NASTY)
def test_nothing_of_a_label_reaches_the_terminal_as_a_command(label, capsys, monkeypatch):
    shown(capsys, monkeypatch, terminal=True)
    with show.status(f"reading {label}"), show.bar(label) as bar, show.fetching(label) as fetched:
        bar(label, 1, 2)
        fetched(1, 2)
    with show.progress_bar(label, 1, 1):
        pass
    printed = capsys.readouterr().err
    assert printed.count(printable(label)) >= 3
    assert not [raw for raw in ("\x1b[31mred", "\x1b]0;", "\x9b", "\u202e", "😄") if raw in printed]


def test_a_cell_of_a_report_is_no_markup():
    assert cell("a|b<script>\nc") == "a\\|b&lt;script&gt; c"


def test_labels_of_a_run(tmp_path):
    text = write_ratings(tmp_path / "r.csv").read_text().replace("\nu", "\n[/i8]\x1b[31m")
    (tmp_path / "r.csv").write_text(text)
    call("train", "recommend", tmp_path / "r.csv", "--out", tmp_path / "r", *QUICK, "--epochs", 1)
    user = text.splitlines()[1].split(",")[0]
    assert printable(user) in call("recommend", tmp_path / "r", user, "--items", 2)


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("3 is not 4; take 4"), "error: 3 is not 4; take 4\n"),
        (KeyError("users"), "error: KeyError: 'users'; an unexpected one: antembed --debug … says where, please report it\n"),
        (pl.exceptions.ComputeError("a\nb\x1b[31m"), "error: ComputeError: a b\\x1b[31m; an unexpected one: antembed --debug"),
        (RuntimeError("x" * 9000), "error: RuntimeError: xxx"),
        (MemoryError("10 GB"), "error: out of memory (10 GB); take fewer rows"),
        (FileNotFoundError(2, "No such file", "a.ant"), "error: a.ant does not exist; check the path\n"),
        (KeyboardInterrupt(), "interrupted\n"),
    ],
)
def test_every_error_is_one_line(error, line, capsys, monkeypatch):
    def fails():
        raise error

    monkeypatch.setattr("antembed.cli.app.app", fails)
    with pytest.raises(SystemExit) as left:
        cli.main()
    assert left.value.code == 1
    printed = capsys.readouterr().err
    assert printed.startswith(line)
    assert len(printed.splitlines()) == 1
    assert len(printed) < 1100


def test_debug_shows_where(tmp_path):
    words = [sys.executable, "-m", "antembed", "--debug", "inspect", str(tmp_path / "none.ant")]
    failed = subprocess.run(words, capture_output=True, text=True)
    assert failed.returncode == 1
    assert failed.stderr.startswith("Traceback")
    assert failed.stderr.splitlines()[-1].startswith("error: ")
    words.remove("--debug")
    assert len(subprocess.run(words, capture_output=True, text=True).stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "contents", "said"),
    [
        (("compress", "{}.npy", "{}.ant"), b"", r"is empty \(0 bytes\); give a file of vectors"),
        (("compress", "{}.ant", "{}-2.ant"), b"x", "is compressed already; to compress it anew, first: antembed export"),
        (("train", "language", "{}.txt"), b"", r"is empty \(0 bytes\); give a file of text"),
        (("train", "classify", "{}.txt"), b"__label__a some words\n", "0 documents with a class are too few, 10 are enough"),
    ],
)
def test_files_without_contents(tmp_path, words, contents, said):
    stem = str(tmp_path / "given")
    words = [word.format(stem) for word in words]
    Path(next(word for word in words if word.startswith(stem))).write_bytes(contents)
    more = ["--out", tmp_path / "run"] if words[0] == "train" else []
    with pytest.raises(ValueError, match=said):
        call(*words, *more)
