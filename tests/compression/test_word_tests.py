"""Similarities and analogies before and after."""

import json

import numpy as np
import pytest
from tests.command import call

from antembed.compression.quality import changes, find_tests
from antembed.data.text_file import DataError

WORDS = ["man", "woman", "king", "queen", "apple", "pear", *(f"w{n}" for n in range(60))]


def table():
    """Two sexes, two ranks, two fruits."""
    E = np.random.default_rng(0).normal(size=(len(WORDS), 12)).astype(np.float32)
    E[:6] = np.eye(12)[:6]
    E[1], E[3], E[5] = E[0] + E[6], E[2] + E[6], E[4] + 0.1 * E[7]
    return E


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "sims.txt").write_text("apple pear 9\nman king 5\nman apple 1\nman unknown 3\nMan woman 8\n")
    (tmp_path / "tests" / "questions.txt").write_text(": sexes\nMan Woman King Queen\nman king woman queen\nman a b c\n")
    return tmp_path / "tests"


def test_by_hand(folder):
    E = table()
    questions, sims = find_tests(folder, WORDS)
    assert [questions.name, sims.name] == ["questions", "sims"]
    assert questions.words.tolist() == [[0, 1, 2, 3], [0, 2, 1, 3]]
    assert sims.words.tolist() == [[4, 5], [0, 2], [0, 4], [0, 1]]
    assert sims.scores.tolist() == [9, 5, 1, 8]
    broken = E.copy()
    broken[3], broken[5] = -E[3], -E[5]
    found = changes(E, broken, [questions, sims])
    assert found["questions"] == {"before": 1.0, "after": 0.0, "asked": 2, "of": "questions"}
    cosines, lost = [0.995, 0.0, 0.0, 0.707], [-0.995, 0.0, 0.0, 0.707]
    assert found["sims"]["before"] == pytest.approx(rank(cosines, [9, 5, 1, 8]), abs=1e-6)
    assert found["sims"]["after"] == pytest.approx(rank(lost, [9, 5, 1, 8]), abs=1e-6)


def rank(x, y):
    """Spearman: Pearson's correlation of ranks, ties shared."""
    ranks = [[np.mean([k for k, v in enumerate(sorted(a)) if v == u]) for u in a] for a in (x, y)]
    return np.corrcoef(ranks)[0, 1]


def test_on_the_command_line(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("ANTEMBED_DATA", str(tmp_path / "none"))
    np.save(tmp_path / "v.npy", table())
    (tmp_path / "words.txt").write_text("\n".join(WORDS))
    plain = ("compress", tmp_path / "v.npy", tmp_path / "v.ant", "--tolerance", "1%", "--overwrite")
    assert json.loads(call(*plain, "--json"))["word_tests"] == {}
    found = json.loads(call(*plain, "--json", "--word-tests", folder))["word_tests"]
    assert set(found) == {"sims", "questions"}
    assert "questions: 100.0% → " in call(*plain, "--word-tests", folder)
    monkeypatch.setenv("ANTEMBED_DATA", str(tmp_path))
    folder.rename(tmp_path / "wordsim")
    assert set(json.loads(call(*plain, "--json"))["word_tests"]) == {"sims", "questions"}


def test_what_is_no_test_is_refused(folder, tmp_path):
    with pytest.raises(DataError, match="these vectors have no words"):
        find_tests(folder, None)
    with pytest.raises(DataError, match="has no"):
        find_tests(tmp_path / "words", WORDS)
    (folder / "sims.txt").write_text("a b c\n")
    assert [test.name for test in find_tests(folder, WORDS)] == ["questions"]
    (folder / "sims.txt").write_text("man king much\n")
    with pytest.raises(DataError, match="a score that is no number"):
        find_tests(folder, WORDS)
    (folder / "sims.txt").write_text("man king 1 2 3\n")
    with pytest.raises(DataError, match=r"here \[5\]"):
        find_tests(folder, WORDS)
