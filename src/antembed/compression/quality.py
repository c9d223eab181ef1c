"""How much of a table is left after compression: error, neighbours, word similarities and analogies; callbacks for progress."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from antembed.data.download import default_folder
from antembed.data.text_file import DataError
from antembed.files import JSON
from antembed.tables.word_evaluation import solved, spearman

Progress = Callable[[str, int, int], None]  # what is done, how far, of how much
Rows = Any  # (V, d) floats, of which some rows can be asked for: an array, perhaps mapped, a Table, Vectors
QUERIES, NEIGHBOURS = 1000, 10  # vectors whose ten nearest are compared


def quiet(what: str, done: int, total: int) -> None:
    """No progress is shown."""


def named(about: str, progress: Progress) -> Progress:
    """The same, `about` before what is done."""
    return lambda what, done, total: progress(about + what, done, total)


def chunks(shape: tuple[int, ...], numbers: int = 1 << 22) -> list[slice]:
    """Parts of a table's rows, of so many numbers: a table that is mapped need not fit into memory."""
    V, d = shape
    each = max(numbers // max(d, 1), 1)
    return [slice(first, min(first + each, V)) for first in range(0, V, each)]


def compare(E: Rows, F: Rows, seed: int = 0) -> dict[str, float]:
    """E, and what is left of it: ‖E − F‖²/‖E − mean‖², the mean cosine, and the share of the ten nearest neighbours that stay
    the nearest: of a thousand vectors drawn from all, and of as many drawn from the first tenth (of words, the frequent)."""
    V, parts = len(E), chunks(E.shape)
    mean = sum(np.asarray(E[part], np.float32).sum(0, dtype=np.float64) for part in parts) / V
    lost = centred = cosine = 0.0
    alike = 0
    for part in parts:
        before, after = np.asarray(E[part], np.float32), F[part]
        lost += float(((before - after) ** 2).sum(dtype=np.float64))
        centred += float(((before - mean) ** 2).sum())
        lengths = np.linalg.norm(before, axis=1) * np.linalg.norm(after, axis=1)
        cosine += float(((before * after).sum(1)[lengths > 0] / lengths[lengths > 0]).sum())
        alike += int((lengths > 0).sum())
    rng = np.random.default_rng(seed)
    queries = rng.choice(V, min(QUERIES, V), replace=False)
    first = rng.choice(-(-V // 10), min(QUERIES, -(-V // 10)), replace=False)
    kept = _kept(E, F, np.concatenate([queries, first]))
    return {
        "relative_error": lost / max(centred, 1e-300),
        "cosine": cosine / alike if alike else 1.0,
        "neighbours_kept": float(kept[: len(queries)].mean()),
        "neighbours_kept_first_tenth": float(kept[len(queries) :].mean()),
    }


def neighbours_kept(E: Rows, F: Rows, queries: np.ndarray) -> float:
    """The share of the ten nearest by cosine, of these rows, that are the same in both."""
    return float(_kept(E, F, queries).mean())


def _kept(E: Rows, F: Rows, queries: np.ndarray) -> np.ndarray:
    """By query."""
    k = min(NEIGHBOURS, len(E) - 1)
    if k < 1:
        return np.ones(len(queries))
    near, there = nearest(E, queries, k), nearest(F, queries, k)
    return np.array([len(np.intersect1d(a, b)) / k for a, b in zip(near, there, strict=True)])


def nearest(E: Rows, queries: np.ndarray, k: int) -> np.ndarray:
    """(queries, k): rows of largest cosine, each row itself left out."""
    asked, n = _normalized(np.asarray(E[queries], np.float32)), len(queries)
    best, found = np.full((n, k), -np.inf, np.float32), np.zeros((n, k), np.int64)
    for part in chunks((len(E), max(E.shape[1], n)), 1 << 24):
        scores = asked @ _normalized(np.asarray(E[part], np.float32)).T
        own = np.flatnonzero((queries >= part.start) & (queries < part.stop))
        scores[own, queries[own] - part.start] = -np.inf
        if part.start == 0:
            found = np.argpartition(-scores, k - 1, axis=1)[:, :k]
            best = np.take_along_axis(scores, found, 1)
            continue
        query, row = np.nonzero(scores > best.min(1)[:, None])  # the few that are nearer than the farthest so far
        queried, values = np.append(np.repeat(np.arange(n), k), query), np.append(best, scores[query, row])
        order = np.lexsort((-values, queried))
        starts = np.searchsorted(queried[order], np.arange(n))
        top = order[starts[:, None] + np.arange(k)]
        best, found = values[top], np.append(found, row + part.start)[top]
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


def changes(E: Rows, F: Rows, tests: list[WordTest], seed: int = 0) -> dict[str, JSON]:
    """By name: the rank correlation with people's scores, or the share of analogies that are solved, with E and with F."""
    found: dict[str, JSON] = {}
    both = [_normalized(np.asarray(X[:], np.float32)) for X in (E, F)] if tests else []
    for test in tests:
        words, n = test.words, len(test.words)
        if test.scores is None:
            words = words[np.sort(np.random.default_rng(seed).choice(n, min(n, ANALOGIES), replace=False))]
        before, after = (_score(unit, words, test.scores) for unit in both)
        of = "questions" if test.scores is None else "pairs"
        found[test.name] = {"before": before, "after": after, "asked": len(words), "of": of}
    return found


def _score(unit: np.ndarray, words: np.ndarray, scores: np.ndarray | None) -> float:
    if scores is None:
        return float(solved(unit, words).mean())
    return spearman((unit[words[:, 0]] * unit[words[:, 1]]).sum(1), scores)


def _normalized(X: np.ndarray) -> np.ndarray:
    return X / np.maximum(np.linalg.norm(X, axis=1, keepdims=True), 1e-12)
