"""What the anchors of a model of words stand for: the words they induce, and the words that need no vector."""

from pathlib import Path

import numpy as np

from antembed.data.vocabulary import SPECIAL, Vocabulary
from antembed.files import JSON
from antembed.tables.model_folder import RunError, check_files, read_description
from antembed.tables.save import load_table
from antembed.tables.table import Table

MOST = 10  # largest weights, and words without a vector, that are shown


def explain_run(folder: Path, top: int, items: Path | None) -> tuple[JSON, list[str]]:
    """Of a run or an export: anchors (their word, if they have one, and the words with the largest part of them), the largest
    (word, anchor) pairs, and words whose row is all zero; and the same as lines."""
    if items is not None:
        raise RunError(f"{items} describes items, and {folder} is a model of text; leave out --items")
    check_files(folder, "words.ant")
    facts, vocabulary = read_description(folder)["data"], Vocabulary.read(folder / "vocabulary.parquet")
    parts = contributions(load_table(folder / "words.ant"))
    parts[: len(SPECIAL)] = 0
    words, named = np.array(vocabulary.words, object), facts["anchor_words"]
    if named is not None and len(named) != parts.shape[1]:
        named = None  # some were dropped: their numbers are not those of the words any more
    anchors = []
    for k, column in enumerate(parts.T):
        best = np.argsort(-column, kind="stable")[:top]
        about = {"anchor": k, "word": None if named is None else named[k], "words": int((column > 0).sum())}
        anchors.append(about | {"best": [str(words[word]) for word in best if column[word] > 0]})
    flat = np.argsort(-parts, axis=None, kind="stable")[:MOST]
    largest = [
        (str(words[word]), named[k] if named is not None else f"anchor {k}", float(parts[word, k]))
        for word, k in zip(*np.unravel_index(flat, parts.shape), strict=True)
    ]
    found: JSON = {"anchors": anchors, "largest": largest, "zero_rows": zero_rows(parts, vocabulary)}
    return found, _lines(found)


def zero_rows(parts: np.ndarray, vocabulary: Vocabulary) -> JSON:
    """Words without a vector."""
    zero = np.flatnonzero(~parts.any(1))[len(SPECIAL) :]
    counts = vocabulary.counts[zero]
    frequent = zero[np.argsort(-counts, kind="stable")][:MOST]
    return {
        "words": len(zero),
        "seen_once": float((counts == 1).mean()) if len(zero) else 0.0,
        "most_frequent": [f"{vocabulary.words[word]} {vocabulary.counts[word]}" for word in frequent],
    }


def _lines(found: JSON) -> list[str]:
    lines = []
    for anchor in found["anchors"]:
        word = "" if anchor["word"] is None else f" ({anchor['word']})"
        lines += [f"anchor {anchor['anchor']}{word}: {anchor['words']} words", f"    {' · '.join(anchor['best'])}"]
    zero = found["zero_rows"]
    return [
        *lines,
        "largest: " + ", ".join(f"{word} ← {anchor} {weight:.2f}" for word, anchor, weight in found["largest"]),
        f"words without a vector: {zero['words']:,}, {zero['seen_once']:.0%} of them seen once",
        f"    the most frequent: {' · '.join(zero['most_frequent'])}",
    ]


def contributions(table: Table) -> np.ndarray:
    """t_k·‖a_k‖: the part of each anchor in each object's vector, (V, K)."""
    if table.anchors is None:
        raise ValueError("full tables have no anchors to explain; train with --embedding anchor")
    return table.rows(np.arange(len(table))) * np.linalg.norm(table.anchors, axis=1)
