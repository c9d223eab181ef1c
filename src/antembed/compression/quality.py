"""How much of a table is left after compression: error, neighbours, word similarities and analogies; callbacks for progress."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from antembed.data.download import default_folder
from antembed.data.text_file import DataError
from antembed.files import JSON
from antembed.tables.word_evaluation import solved, spearman

Progress = Callable[[str, int, int], None]  # what is done, how far, of how much
QUERIES, NEIGHBOURS = 1000, 10  # vectors whose ten nearest are compared


def quiet(what: str, done: int, total: int) -> None:
    """No progress is shown."""


def named(about: str, progress: Progress) -> Progress:
    """The same, `about` before what is done."""
    return lambda what, done, total: progress(about + what, done, total)


def compare(E: np.ndarray, F: np.ndarray, seed: int = 0) -> dict[str, float]:
    """E, and what is left of it: ‖E − F‖²/‖E − mean‖², the mean cosine, and the share of the ten nearest neighbours that stay
    the nearest: of a thousand vectors drawn from all, and of as many drawn from the first tenth (of words, the frequent)."""
    centred = float(((E - E.mean(0)) ** 2).sum(dtype=np.float64))
    lengths = np.linalg.norm(E, axis=1) * np.linalg.norm(F, axis=1)
    cosine = (E * F).sum(1)[lengths > 0] / lengths[lengths > 0]
    rng = np.random.default_rng(seed)
    queries = rng.choice(len(E), min(QUERIES, len(E)), replace=False)
    first = rng.choice(-(-len(E) // 10), min(QUERIES, -(-len(E) // 10)), replace=False)
    return {
        "relative_error": float(((E - F) ** 2).sum(dtype=np.float64)) / max(centred, 1e-300),
        "cosine": float(cosine.mean()) if len(cosine) else 1.0,
        "neighbours_kept": neighbours_kept(E, F, queries),
        "neighbours_kept_first_tenth": neighbours_kept(E, F, first),
    }


def neighbours_kept(E: np.ndarray, F: np.ndarray, queries: np.ndarray) -> float:
    """The share of the ten nearest by cosine, of these rows, that are the same in both."""
    k = min(NEIGHBOURS, len(E) - 1)
    if k < 1:
        return 1.0
    near, there = nearest(E, queries, k), nearest(F, queries, k)
    return float(np.mean([len(np.intersect1d(a, b)) / k for a, b in zip(near, there, strict=True)]))


def nearest(E: np.ndarray, queries: np.ndarray, k: int) -> np.ndarray:
    """(queries, k): rows of largest cosine, each row itself left out."""
    unit = _normalized(E)
    found = np.empty((len(queries), k), np.int64)
    for start in range(0, len(queries), 256):
        some = queries[start : start + 256]
        scores = unit[some] @ unit.T
        scores[np.arange(len(some)), some] = -np.inf
        found[start : start + 256] = np.argpartition(-scores, k - 1, axis=1)[:, :k]
    return found


ANALOGIES = 2000  # that are asked of each file
FOLDERS = ("wordsim", "analogy")  # of ANTEMBED_DATA


@dataclass(frozen=True)
class WordTest:
    """A file of pairs of words with people's scores, or of analogies."""

    name: str
    words: np.ndarray  # (n, 2) or (n, 4) rows of the table
    scores: np.ndarray | None  # (n,), of pairs


def find_tests(folder: Path | None, words: list[str] | None) -> list[WordTest]:
    """All in a folder whose words are known; by default those of ANTEMBED_DATA, if there are some."""
    if words is None:
        if folder is not None:
            raise DataError(f"--word-tests {folder}: these vectors have no words; give --words FILE too")
        return []
    folders = [default_folder() / name for name in FOLDERS] if folder is None else [folder]
    files = sorted(file for place in folders for file in place.glob("*.txt"))
    if folder is not None and not files:
        raise DataError(f"{folder} has no .txt files; a test has lines `word word score`, or of four words")
    rows = {word: row for row, word in reversed(list(enumerate(words)))}  # of equal words, the first
    found = [_read(file, rows) for file in files]
    return [test for test in found if len(test.words) > 1]


def _read(file: Path, rows: dict[str, int]) -> WordTest:
    lines = [line.split() for line in file.read_text(encoding="utf-8").splitlines() if line.strip() and line[0] not in ":#"]
    widths = {len(line) for line in lines}
    if widths not in ({3}, {4}):
        parts = f"a line has 3 (word word score) or 4 (analogy) parts, here {sorted(widths)}"
        raise DataError(f"{file} is no test of words: {parts}")
    n = 2 if widths == {3} else 4
    asked = [(line, [rows.get(word, rows.get(word.lower())) for word in line[:n]]) for line in lines]
    known = [(line, ids) for line, ids in asked if None not in ids]
    try:
        scores = np.array([float(line[2]) for line, _ in known]) if n == 2 else None
    except ValueError as error:
        raise DataError(f"{file} has a score that is no number ({error}); a line is `word word score`") from error
    return WordTest(file.stem, np.array([ids for _, ids in known], np.int64).reshape(-1, n), scores)


def changes(E: np.ndarray, F: np.ndarray, tests: list[WordTest], seed: int = 0) -> dict[str, JSON]:
    """By name: the rank correlation with people's scores, or the share of analogies that are solved, with E and with F."""
    found: dict[str, JSON] = {}
    for test in tests:
        words, n = test.words, len(test.words)
        if test.scores is None:
            words = words[np.sort(np.random.default_rng(seed).choice(n, min(n, ANALOGIES), replace=False))]
        before, after = (_score(_normalized(X), words, test.scores) for X in (E, F))
        of = "questions" if test.scores is None else "pairs"
        found[test.name] = {"before": before, "after": after, "asked": len(words), "of": of}
    return found


def _score(unit: np.ndarray, words: np.ndarray, scores: np.ndarray | None) -> float:
    if scores is None:
        return float(solved(unit, words).mean())
    return spearman((unit[words[:, 0]] * unit[words[:, 1]]).sum(1), scores)


def _normalized(X: np.ndarray) -> np.ndarray:
    return X / np.maximum(np.linalg.norm(X, axis=1, keepdims=True), 1e-12)
