"""Tests of words: analogies, and correlation with similarities that people gave. NumPy alone."""

import logging
import math
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress

import numpy as np

from antembed.tables.table import Table

Correlation = tuple[float, float]  # and its p-value
Section = dict[str, str | list[tuple[str, ...]]]
log = logging.getLogger("antembed")
PIECE = 256  # analogies at once
NEGLIGIBLE = 1e-17  # a term of a series, beside its sum


class Vocabulary:
    """The words that a test may ask for, by their rows; in any case, the first of those that differ by it alone."""

    def __init__(self, words: Sequence[str], case_insensitive: bool):
        self.upper = case_insensitive
        self.rows: dict[str, int] = {}
        forms = (self.form(word) for word in words)
        self.same = np.array([self.rows.setdefault(word, row) for row, word in enumerate(forms)], np.int64)

    def form(self, word: str) -> str:
        """As it is compared."""
        return word.upper() if self.upper else word

    def knows(self, words: Sequence[str]) -> bool:
        return all(word in self.rows for word in words)


def unit_vectors(vectors: np.ndarray) -> np.ndarray:
    """Vectors of length 1; zeros stay."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.divide(vectors, lengths, out=np.zeros_like(vectors), where=lengths > 0)


def analogies_solved(
    table: Table, words: Vocabulary, file: str | os.PathLike[str], dummy4unknown: bool
) -> tuple[float, list[Section]]:
    """KeyedVectors.evaluate_word_analogies."""
    unit, unknown = unit_vectors(table[: len(words.same)]), 0
    sections: list[Section] = []
    total: Section = {"section": "Total accuracy", "correct": [], "incorrect": []}
    for name, lines in read_analogies(file):
        asked = [tuple(words.form(word) for word in line) for line in lines]
        known = [line for line in asked if words.knows(line)]
        rows = np.array([[words.rows[word] for word in line] for line in known], np.int64).reshape(-1, 4)
        right = dict(zip(known, solved(unit, rows, words.same).tolist(), strict=True))
        wrong = [line for line in (asked if dummy4unknown else known) if not right.get(line, False)]
        section: Section = {"section": name, "correct": [line for line in known if right[line]], "incorrect": wrong}
        sections.append(section)
        total = total | {key: [*total[key], *section[key]] for key in ("correct", "incorrect")}
        unknown += len(asked) - len(known)
    correct, incorrect = len(total["correct"]), len(total["incorrect"])
    if not correct + incorrect:
        raise ValueError(f"{file} has no analogy to ask, and {unknown} with unknown words; a line is `a b c d`")
    log.info("%s: %d of %d right, %d with unknown words", file, correct, correct + incorrect, unknown)
    return correct / (correct + incorrect), [*sections, total]


def pairs_followed(
    table: Table, words: Vocabulary, lines: list[tuple[str, str, float]], file: str, dummy4unknown: bool
) -> tuple[Correlation, Correlation, float]:
    """KeyedVectors.evaluate_word_pairs."""
    asked = [((words.form(a), words.form(b)), score) for a, b, score in lines]
    known = [words.knows(pair) for pair, _ in asked]
    kept = [line for line, there in zip(asked, known, strict=True) if there or dummy4unknown]
    if len(kept) < 2:
        found = f"{file} has {len(lines)} lines `word word score`, {known.count(False)} of them with unknown words"
        raise ValueError(f"{found}; two known ones or more are needed: is the delimiter right?")
    cosines, scores = np.zeros(len(kept)), np.array([score for _, score in kept])
    for n, (pair, _) in enumerate(kept):
        if words.knows(pair):
            a, b = unit_vectors(table[[words.rows[word] for word in pair]])
            cosines[n] = a @ b
    first, second = ((r, p_value(r, len(kept))) for r in (pearson(scores, cosines), spearman(scores, cosines)))
    return first, second, 100 * known.count(False) / len(lines)


def solved(unit: np.ndarray, questions: np.ndarray, same: np.ndarray | None = None) -> np.ndarray:
    """Whether b − a + c is nearest to d, of all words but the three: questions (n, 4), rows a, b, c, d → (n,) bool.

    unit: (V, d), of length 1. same: (V,), equal numbers for words that are taken as one (cat, Cat); None: all are different."""
    found = np.zeros(len(questions), bool)
    for start in range(0, len(questions), PIECE):
        a, b, c, d = questions[start : start + PIECE].T
        scores = (unit[b] - unit[a] + unit[c]) @ unit.T
        for given in (a, b, c):
            if same is None:
                scores[np.arange(len(a)), given] = -np.inf
            else:
                scores[same == same[given][:, None]] = -np.inf
        nearest = scores.argmax(1)
        found[start : start + PIECE] = nearest == d if same is None else same[nearest] == same[d]
    return found


def ranks(x: np.ndarray) -> np.ndarray:
    """1 … n by size; equal numbers share the mean of theirs."""
    _, where, counts = np.unique(x, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[where]


def pearson(x: np.ndarray, y: np.ndarray) -> float:
    """The correlation of two samples; nan if one of them is constant."""
    x, y = x - np.mean(x), y - np.mean(y)
    size = math.sqrt(float(x @ x) * float(y @ y))
    return min(max(float(x @ y) / size, -1.0), 1.0) if size else math.nan


def spearman(x: np.ndarray, y: np.ndarray) -> float:
    """The correlation of ranks."""
    return pearson(ranks(x), ranks(y))


def p_value(r: float, n: int) -> float:
    """Two-sided, of a correlation r of n pairs by Student's t: I(1 − r²; n/2 − 1, ½), I the regularized incomplete beta."""
    if n < 3 or math.isnan(r):
        return 1.0 if n == 2 and not math.isnan(r) else math.nan
    a, x = n / 2 - 1, 1 - r * r
    return _beta(x, a, 0.5) if x <= (a + 1) / (a + 2.5) else 1 - _beta(r * r, 0.5, a)


def _beta(x: float, a: float, b: float) -> float:
    """I(x; a, b) = xᵃ(1 − x)ᵇ/(a·B(a, b)) · Σ Π x(a + b + k)/(a + 1 + k), which converges fast below its mean."""
    if x <= 0:
        return 0.0
    term, total, k = 1.0, 1.0, 0
    while term > NEGLIGIBLE * total:
        term *= x * (a + b + k) / (a + 1 + k)
        total += term
        k += 1
    front = a * math.log(x) + b * math.log1p(-x) + math.lgamma(a + b) - math.lgamma(a + 1) - math.lgamma(b)
    return math.exp(front + math.log(total))


def read_analogies(file: str | os.PathLike[str]) -> Iterator[tuple[str, list[list[str]]]]:
    """Sections, `: name` and lines of four words each, as in questions-words.txt; other lines are left out."""
    name: str | None = None
    questions: list[list[str]] = []
    with open(file, encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if line.startswith(": "):
                if name is not None:
                    yield name, questions
                name, questions = line[2:].strip(), []
            elif len(words := line.split()) == 4:
                if name is None:
                    raise ValueError(f"{file}, line {number} comes before the first section; begin the file with `: name`")
                questions.append(words)
    if name is not None:
        yield name, questions


def read_pairs(file: str | os.PathLike[str], delimiter: str, encoding: str) -> list[tuple[str, str, float]]:
    """Lines `word word score`; other lines, and those that begin with #, are left out."""
    found = []
    with open(file, encoding=encoding) as lines:
        for line in lines:
            parts = line.rstrip("\n").split(delimiter)
            if not line.startswith("#") and len(parts) == 3:
                with suppress(ValueError):
                    found.append((parts[0], parts[1], float(parts[2])))
    return found
