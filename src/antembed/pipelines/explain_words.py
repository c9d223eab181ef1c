"""What the anchors of a text classifier have come to mean: the words they induce, and the words that need no vector."""

from pathlib import Path
from typing import Any

import numpy as np

from antembed.data.vocabulary import SPECIAL, Vocabulary
from antembed.pipelines.classify import settings_of
from antembed.pipelines.explain import contributions
from antembed.serving import load_table
from antembed.training import RunFolder

MOST = 10


def explain_words(run: str | Path, top: int = 5) -> dict[str, Any]:
    """→ anchors (their word, if they have one, and the words with the largest part of them), the largest (word, anchor) pairs,
    and words whose row is all zero."""
    folder = RunFolder(run)
    settings, remembered = settings_of(folder)
    if settings.model == "tiny":
        raise ValueError(f"{folder.path} is a tiny classifier: it knows hashes, no words, and has no anchors to name")
    folder.must_be_finished()
    vocabulary = Vocabulary.read(folder.path / "vocabulary.parquet")
    parts = contributions(load_table(folder.path / "words.ant"))
    parts[: len(SPECIAL)] = 0
    words, named = np.array(vocabulary.words, object), remembered["anchor_words"]
    if named is not None and len(named) != parts.shape[1]:
        named = None  # some were dropped: their numbers are not those of the words any more
    anchors = []
    for k, column in enumerate(parts.T):
        best = np.argsort(-column, kind="stable")[:top]
        anchors.append(
            {
                "anchor": k,
                "word": f" ({named[k]})" if named is not None else "",
                "words": int((column > 0).sum()),
                "best": [str(words[word]) for word in best if column[word] > 0],
            }
        )
    flat = np.argsort(-parts, axis=None, kind="stable")[:MOST]
    largest = [
        (str(words[word]), named[k] if named is not None else f"anchor {k}", float(parts[word, k]))
        for word, k in zip(*np.unravel_index(flat, parts.shape), strict=True)
    ]
    zero = np.flatnonzero(~parts.any(1))[len(SPECIAL) :]
    counts = vocabulary.counts[zero]
    return {
        "anchors": anchors,
        "largest": largest,
        "zero_rows": {
            "words": len(zero),
            "seen_once": float((counts == 1).mean()) if len(zero) else 0.0,
            "most_frequent": [
                f"{words[word]} {vocabulary.counts[word]}" for word in zero[np.argsort(-counts, kind="stable")][:MOST]
            ],
        },
    }
