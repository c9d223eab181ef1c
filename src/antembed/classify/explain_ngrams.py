"""Which n-grams speak for which class: of a classifier, kept as text when it is fitted, and of one text."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from antembed.classify.documents import Documents
from antembed.classify.ngram_file import HashedNgrams, buckets_of, ngram_hashes
from antembed.classify.predictor import NGRAMS, NgramPredictor, TextPredictor, word_hashes
from antembed.files import JSON, write_atomically
from antembed.tables.model_folder import TOP_NGRAMS, RunError, check_files, read_json

KEPT = 50  # n-grams of each class
PIECE = 4096  # documents at a time
Occurrences = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def top_ngrams(classifier: HashedNgrams, documents: Documents, kept: int = KEPT) -> JSON:
    """The n-grams with the highest score for each class, less its mean over classes, and how often the documents have them.

    Equal scores are in the order of these counts. A bucket that several n-grams share is shown by the most frequent one.
    """
    scores = classifier.object_scores()
    counts = np.zeros(len(scores), np.int64)
    for objects, *_ in _occurrences(classifier, documents):
        counts += np.bincount(objects, minlength=len(counts))
    best = [np.lexsort((-counts, -column))[:kept] for column in scores.T]
    best = [rows[(scores[rows, c] > 0) & (counts[rows] > 0)] for c, rows in enumerate(best)]
    texts = _texts(classifier, documents, np.unique(np.concatenate(best)))
    classes = [
        {"class": name, "ngrams": [[texts[row], round(float(scores[row, c]), 4), int(counts[row])] for row in rows.tolist()]}
        for c, (name, rows) in enumerate(zip(classifier.classes, best, strict=True))
    ]
    return {"classes": classes}


def _occurrences(classifier: HashedNgrams, documents: Documents) -> Iterator[Occurrences]:
    """N-grams of the documents that have a code, a piece at a time: object, hash, first token, words (0: a prefix)."""
    hashes = word_hashes(documents, classifier.prefix)
    row_of = np.full(1 << classifier.bits, -1, np.int32)
    row_of[classifier.objects] = np.arange(len(classifier.objects), dtype=np.int32)
    for at in range(0, len(documents), PIECE):
        starts = documents.starts[at : at + PIECE + 1]
        found, _ = ngram_hashes(hashes[starts[0] : starts[-1]], starts - starts[0], classifier.orders)
        owners = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
        # In the order of ngram_hashes: all words, then all runs of two, …, then prefixes
        begins = [np.arange(len(owners)), *(np.flatnonzero(owners[:-n] == owners[n:]) for n in range(1, classifier.orders))]
        lengths = np.repeat(np.arange(1, len(begins) + 1), [len(some) for some in begins])
        if classifier.prefix:
            begins.append(np.flatnonzero(hashes[starts[0] : starts[-1], 1]))
            lengths = np.concatenate([lengths, np.zeros(len(begins[-1]), lengths.dtype)])
        objects = row_of[buckets_of(found, classifier.bits)]
        coded = objects >= 0
        yield objects[coded], found[coded], np.concatenate(begins)[coded] + starts[0], lengths[coded]


def _texts(classifier: HashedNgrams, documents: Documents, wanted: np.ndarray) -> dict[int, str]:
    """The most frequent n-gram of each of these objects; of equally frequent ones, the first in the documents."""
    is_wanted = np.zeros(len(classifier.objects), bool)
    is_wanted[wanted] = True
    seen: dict[tuple[int, int], list[int]] = {}  # (object, hash) → occurrences, first token, words
    for occurrences in _occurrences(classifier, documents):
        objects, hashes, begins, lengths = (part[is_wanted[occurrences[0]]] for part in occurrences)
        _, firsts, counts = np.unique(hashes, return_index=True, return_counts=True)
        for first, count in zip(firsts.tolist(), counts.tolist(), strict=True):
            entry = seen.setdefault((int(objects[first]), int(hashes[first])), [0, int(begins[first]), int(lengths[first])])
            entry[0] += count
    words, texts = documents.vocabulary.words, dict[int, str]()
    for (row, _), (_, begin, length) in sorted(seen.items(), key=lambda item: (-item[1][0], item[1][1])):
        run = " ".join(words[token] for token in documents.tokens[begin : begin + length])
        texts.setdefault(row, run or f"{words[documents.tokens[begin]][: classifier.prefix]}…")
    return texts


def write_top(folder: Path, top: JSON) -> None:
    """Write ngrams.json. It is for people: predictions do not need it."""
    write_atomically(folder / TOP_NGRAMS, json.dumps(top, ensure_ascii=False).encode())


def explain_ngrams(folder: Path, top: int) -> tuple[JSON, list[str]]:
    """The n-grams that speak most for each class of a run; and the same as lines."""
    file = folder / TOP_NGRAMS
    if top > KEPT:
        raise ValueError(f"--top {top}: a run keeps the {KEPT} n-grams that speak most for each class; ask for up to {KEPT}")
    if not file.is_file():
        raise RunError(f"{folder} has no {TOP_NGRAMS}: it was trained before n-grams were kept; train it anew, or give --text")
    kept = read_json(file)
    try:
        classes: list[JSON] = [
            {
                "class": str(one["class"]),
                "ngrams": [[str(text), float(score), int(n)] for text, score, n in one["ngrams"][:top]],
            }
            for one in kept["classes"]
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise RunError(f"{file} is damaged ({type(error).__name__}: {error}); copy it again, or train the run anew") from error
    lines = [line for one in classes for line in (one["class"], _line([(text, score) for text, score, _ in one["ngrams"]]))]
    return {"classes": classes}, lines


def explain_text(predictor: TextPredictor | None, text: str, top: int) -> tuple[JSON, list[str]]:
    """The probability of each class, and the n-grams of the text that speak for it, likeliest class first; and as lines."""
    if not isinstance(predictor, NgramPredictor):
        raise ValueError("--text explains a classifier of hashed n-grams, and this is another model; leave out --text")
    documents = predictor.read_texts([text])
    (chances,) = next(predictor.probabilities(documents))
    words = [documents.vocabulary.words[token] for token in documents.tokens]
    parts = [(ngram, scores - scores.mean()) for ngram, scores in predictor.classifier.explain(words)]
    classes, lines = list[JSON](), list[str]()
    for c in np.argsort(-chances, kind="stable").tolist():
        ranked = sorted(((ngram, float(scores[c])) for ngram, scores in parts if scores[c] > 0), key=lambda pair: -pair[1])
        classes.append({"class": predictor.classes[c], "probability": float(chances[c]), "ngrams": ranked[:top]})
        lines += [f"{predictor.classes[c]} {chances[c]:.4f}", _line(ranked[:top])]
    return {"classes": classes}, lines + predictor.remarks(documents)


def _line(ngrams: list[tuple[str, float]]) -> str:
    return "    " + (" · ".join(f"{text} {score:+.2f}" for text, score in ngrams) or "no n-gram speaks for it")


def explain_run(folder: Path, top: int, items: Path | None) -> tuple[JSON, list[str]]:
    """The n-grams that speak most for each class, of a run or an export."""
    if items is not None:
        raise RunError(f"{items} describes items, and {folder} is a model of text; leave out --items")
    check_files(folder, NGRAMS)
    return explain_ngrams(folder, top)
