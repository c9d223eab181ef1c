"""What comes without options on files of many shapes, each beside a plain method.

    python -m experiments bench shapes [NAME …] [--record results/shapes.jsonl]

Ratings must beat biases alone, text must not lose to ℓ1 logistic regression on words (scikit-learn, its strength chosen on a
held-out tenth), events must beat the most popular items. Files are made by generators below; those of `wordnet-*` are
definitions of WordNet 3.0 from ANTEMBED_DATA, to be sorted by their lexicographer's file.
"""

import csv
import json
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import polars as pl
from tests.synthetic_text import LETTERS, names, topics

from antembed.files import JSON
from antembed.recommend.synthetic import planted, ratings, zipf
from experiments.race import antembed, parse, publish

CYRILLIC = "абвгдежзийклмнопрстуфхцчшщ"
STRENGTHS = (0.1, 1.0, 10.0, 100.0)
Documents = tuple[list[str], list[str]]  # texts, labels


def rated(n: int, users: int, items: int, *, low: float, high: float, noise: float = 0.1, tail: float = 0.8) -> pl.DataFrame:
    """Planted ratings, moved and stretched to a scale."""
    sides = planted(users, 8, exponent=tail), planted(items, 8, exponent=tail, seed=1)
    found = ratings(*sides, n, noise=noise)
    values = (found.values - found.values.min()) / np.ptp(found.values)
    return pl.DataFrame({"user": found.users, "item": found.items, "rating": low + (high - low) * values})


def lonely(n: int) -> pl.DataFrame:
    """Most users and items with one or two ratings, from 0 to 10, and little to be learned but biases."""
    rng = np.random.default_rng(3)
    users = np.where(rng.random(n) < 0.8, rng.integers(0, n, n), rng.choice(500, n, p=zipf(500, 0.7)))
    items = np.where(rng.random(n) < 0.5, rng.integers(0, n, n), rng.choice(2000, n, p=zipf(2000, 0.9)))
    bias = rng.normal(0, 1.5, n)[users] + rng.normal(0, 1.5, n)[items]
    return pl.DataFrame({"user": users, "item": items, "rating": np.clip(np.round(6 + bias + rng.normal(0, 2, n)), 0, 10)})


def noise_only(n: int) -> pl.DataFrame:
    rng = np.random.default_rng(4)
    return pl.DataFrame({"user": rng.integers(0, 300, n), "item": rng.integers(0, 200, n), "rating": rng.normal(0, 1, n)})


def events(n: int) -> pl.DataFrame:
    """Users who choose among the items of one of 12 groups, popular ones more often."""
    rng = np.random.default_rng(5)
    users = rng.choice(2000, n, p=zipf(2000, 0.5))
    within = rng.choice(100, n, p=zipf(100, 0.9))
    return pl.DataFrame({"user": users, "item": within * 12 + users % 12}).unique(maintain_order=True)


RATINGS: dict[str, Callable[[], pl.DataFrame]] = {
    "tiny": lambda: rated(1_000, 60, 40, low=1, high=5),
    "a dozen": lambda: rated(12, 4, 4, low=1, high=5),
    "planted, 0 to 10": lambda: rated(60_000, 2_000, 1_000, low=0, high=10),
    "planted, -10 to 10": lambda: rated(60_000, 2_000, 1_000, low=-10, high=10),
    "planted, 1 to 1,000,000": lambda: rated(60_000, 2_000, 1_000, low=1, high=1e6),
    "planted, 0 to 0.001": lambda: rated(60_000, 2_000, 1_000, low=0, high=1e-3),
    "planted, noisy": lambda: rated(60_000, 2_000, 1_000, low=1, high=5, noise=1.0),
    "one or two ratings each": lambda: lonely(200_000),
    "noise": lambda: noise_only(20_000),
    "constant": lambda: rated(5_000, 200, 100, low=3, high=3),
}
EVENTS: dict[str, Callable[[], pl.DataFrame]] = {"events": lambda: events(40_000)}


def invented(n: int, V: int, **how: float) -> Documents:
    frame = pl.concat(topics(n, V, **how))  # type: ignore[arg-type]
    return (frame["title"] + " " + frame["text"]).to_list(), [f"c{label}" for label in frame["class"]]


def unbalanced(n: int) -> Documents:
    """One class in twenty."""
    texts, labels = invented(2 * n, 3_000, classes=2, length=30, purity=0.2)
    rng = np.random.default_rng(6)
    kept = [k for k, label in enumerate(labels) if label == "c1" or rng.random() < 0.05][:n]
    return [texts[k] for k in kept], [labels[k] for k in kept]


def spelled(documents: Documents, letters: str, space: str = " ") -> Documents:
    """The same in another script."""
    table = str.maketrans(dict(zip(LETTERS, letters, strict=True)) | {" ": space})
    return [text.translate(table) for text in documents[0]], documents[1]


def chinese(n: int) -> Documents:
    """A script without spaces: words of one or two of 600 characters."""
    texts, labels = invented(n, 500, classes=5, length=25, purity=0.2)
    rng = np.random.default_rng(7)
    characters = [chr(0x4E00 + k) for k in range(600)]
    words = {name: "".join(rng.choice(characters, 1 + k % 2)) for k, name in enumerate(names(500))}
    return ["".join(words[word] for word in text.split()) + "。" for text in texts], labels


def wordnet(kind: str, most: int) -> Documents:
    """Definitions and their lexicographer's file (45 classes, very unbalanced), or their part of speech."""
    folder = Path(os.environ["ANTEMBED_DATA"]) / "wordnet-3.0" / "dict"
    texts, labels = [], []
    for part in ("noun", "verb", "adj", "adv"):
        for line in (folder / f"data.{part}").read_text().splitlines():
            found = re.match(r"\d{8} (\d\d) .* \| (.*)", line)
            if found and found[2].strip():
                texts.append(found[2].split('; "')[0])
                labels.append(part if kind == "part" else f"file {found[1]}")
    chosen = np.random.default_rng(8).permutation(len(texts))[:most]
    return [texts[k] for k in chosen], [labels[k] for k in chosen]


TEXT: dict[str, Callable[[], Documents]] = {
    "200 documents": lambda: invented(200, 500, classes=2, length=20, purity=0.4),
    "5 words": lambda: invented(6_000, 2_000, classes=4, length=5, purity=0.6),
    "2,000 words": lambda: invented(600, 20_000, classes=3, length=2_000, purity=0.02),
    "2 classes": lambda: invented(4_000, 5_000, classes=2, length=40, purity=0.1),
    "200 classes": lambda: invented(12_000, 8_000, classes=200, length=30, purity=0.3),
    "unbalanced": lambda: unbalanced(6_000),
    "Cyrillic": lambda: spelled(invented(4_000, 3_000, classes=4, length=20, purity=0.15), CYRILLIC),
    "without spaces": lambda: chinese(4_000),
    "wordnet-files": lambda: wordnet("file", 40_000),
    "wordnet-parts": lambda: wordnet("part", 20_000),
}


def trained(command: list[str], folder: Path) -> JSON:
    """The result of an `antembed train` command without options, in a process of its own."""
    return json.loads(antembed(["train", *command, "--out", str(folder / "run"), "--overwrite", "--json"]))


def words_of(text: str) -> list[str]:
    """Words as scikit-learn finds them, and characters where there are no spaces."""
    found = re.findall(r"\w+", text.lower())
    return [character for word in found for character in word] if max(map(len, found), default=0) > 20 else found


def regression(train: Documents, test: Documents) -> float:
    """Test accuracy of ℓ1 logistic regression on words, its strength chosen on a tenth of the training documents."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.multiclass import OneVsRestClassifier

    def fit(documents: Documents, strength: float) -> Callable[[Documents], float]:
        words = TfidfVectorizer(tokenizer=words_of, token_pattern=None, lowercase=False)
        model = OneVsRestClassifier(LogisticRegression(l1_ratio=1.0, solver="liblinear", C=strength, max_iter=300))
        model.fit(words.fit_transform(documents[0]), documents[1])
        return lambda other: float(model.score(words.transform(other[0]), other[1]))

    cut = max(len(train[0]) // 10, 1)
    held, rest = (train[0][:cut], train[1][:cut]), (train[0][cut:], train[1][cut:])
    best = max(STRENGTHS, key=lambda strength: fit(rest, strength)(held))
    return fit(train, best)(test)


def contests(wanted: list[str], folder: Path) -> Iterator[JSON]:
    def record(name: str, kind: str, result: JSON, rival: str, other: float, seconds: float) -> JSON:
        ours = result["test"][{"ratings": "mse", "events": "ndcg@10", "text": "accuracy"}[kind]]
        size = {"examples": result["test"]["examples"], "bytes": result["bytes"], "seconds": round(seconds, 1)}
        return {"bench": "shapes", "shape": name, "kind": kind, "ours": ours, "beside": rival, "other": other, **size}

    for name, make in (*RATINGS.items(), *EVENTS.items()):
        if wanted and name not in wanted:
            continue
        kind = "events" if name in EVENTS else "ratings"
        make().write_csv(folder / "data.csv")
        started = time.perf_counter()
        result = trained(["recommend", str(folder / "data.csv")], folder)
        seconds = time.perf_counter() - started
        rival = "the most popular items" if kind == "events" else "biases alone"
        yield record(name, kind, result, rival, result["baselines"][rival], seconds)
    for name, make_text in TEXT.items():
        if (wanted and name not in wanted) or (name.startswith("wordnet") and not os.environ.get("ANTEMBED_DATA")):
            continue
        texts, labels = make_text()
        cut = len(texts) * 4 // 5
        parts = {"train": (texts[:cut], labels[:cut]), "test": (texts[cut:], labels[cut:])}
        for part, (some, classes) in parts.items():
            with open(folder / f"{part}.csv", "w", newline="") as file:
                csv.writer(file).writerows([("label", "text"), *zip(classes, some, strict=True)])
        started = time.perf_counter()
        result = trained(["classify", str(folder / "train.csv"), "--test", str(folder / "test.csv")], folder)
        seconds = time.perf_counter() - started
        yield record(name, "text", result, "ℓ1 regression", regression(parts["train"], parts["test"]), seconds)


def main(words: list[str]) -> None:
    chosen = parse(words, __doc__, "shapes*")
    with tempfile.TemporaryDirectory() as folder:
        for result in contests(chosen.shapes, Path(folder)):
            publish(chosen.record, result)
