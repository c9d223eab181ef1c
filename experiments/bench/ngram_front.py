"""Accuracy against the bytes of the file: the hashed n-gram classifier beside ℓ1 logistic regression, from 10 KB on.

    python -m experiments bench ngram_front FOLDER [--budgets 10KB 50KB] [--seeds 0 1 2] [--record results/ngrams.jsonl]

FOLDER has train.csv and test.csv (class, title, text). Without --test, a tenth of the training file is held out and measured:
that is what settings are chosen by. The peers' bytes are counted three ways: words as UTF-8 with 5 bytes a weight; the same
with the words compressed by zlib; and, the smallest, hashed and packed as ours are (entropies, quantized, no head).
"""

import time
import zlib
from pathlib import Path

import numpy as np
import scipy.sparse as sparse
from sklearn.linear_model import LogisticRegression
from sklearn.multiclass import OneVsRestClassifier

from antembed.classify.config import NgramConfig
from antembed.classify.documents import Documents, read_documents
from antembed.classify.ngram_file import buckets_of, ngram_hashes
from antembed.classify.ngram_fit import NgramSettings, fit_ngrams
from antembed.classify.predictor import word_hashes
from antembed.files import JSON
from antembed.train.options import from_options
from antembed.train.splits import shares
from experiments.race import parse, publish

VALUES = 2.0 ** np.arange(-8, 0.1, 0.5)  # of the peer's weights when packed, times the largest


def features(documents: Documents, orders: int, bits: int) -> sparse.csr_matrix:
    """Binary rows of length 1 over the buckets; with 24 bits there are hardly collisions."""
    hashes, owners = ngram_hashes(word_hashes(documents), documents.starts, orders)
    X = sparse.csr_matrix((np.ones(len(hashes)), (owners, buckets_of(hashes, bits))), (len(documents), 1 << bits))
    X.data[:] = 1
    return sparse.diags_array(1 / np.sqrt(np.maximum(np.diff(X.indptr), 1))) @ X


def entropy(counts: np.ndarray) -> float:
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log2(shares)).sum())


def lasso(train: Documents, test: Documents, orders: int, C: float, bits: int, seed: int) -> JSON:
    """One regression: accuracy and bytes as it is, and packed."""
    start = time.perf_counter()
    X, Z = features(train, orders, bits), features(test, orders, bits)
    seen = np.flatnonzero(np.diff(X.tocsc().indptr) > 1)
    X, Z = X[:, seen], Z[:, seen]
    inner = LogisticRegression(l1_ratio=1, C=C, solver="liblinear", random_state=seed, tol=1e-3)
    model = OneVsRestClassifier(inner).fit(X, train.labels)
    W = np.stack([each.coef_[0] for each in model.estimators_], axis=1)
    bias = np.concatenate([each.intercept_ for each in model.estimators_])
    used = np.flatnonzero(W.any(1))
    scale = np.abs(W).max()
    codes = np.zeros(W.shape, np.int64)
    codes[used] = np.sign(W[used]) * (1 + np.abs(np.abs(W[used])[..., None] / scale - VALUES).argmin(-1))
    packed = np.sign(codes) * np.where(codes != 0, VALUES[np.maximum(np.abs(codes), 1) - 1], 0) * scale
    gaps = len(used) * (bits - np.log2(max(len(used), 1)) + 1.45)
    symbols = len(used) * sum(entropy(np.bincount(codes[used, c] + len(VALUES))) for c in range(W.shape[1]))
    return {
        "weights": int((W != 0).sum()),
        "accuracy": float(((Z @ W + bias).argmax(1) == test.labels).mean()),
        "accuracy_packed": float(((Z @ packed + bias).argmax(1) == test.labels).mean()),
        "bytes_packed": int((gaps + symbols) / 8),
        "seconds": time.perf_counter() - start,
        "buckets": seen[used],
    }


def letters(train: Documents, orders: int, bits: int, buckets: np.ndarray) -> tuple[int, int]:
    """Bytes of the objects' names, as they are and by zlib."""
    ids = train.tokens.astype(np.int64)
    hashes, _ = ngram_hashes(word_hashes(train), train.starts, orders)
    documents = np.repeat(np.arange(len(train)), train.lengths)
    first = np.concatenate([np.arange(len(ids)), np.flatnonzero(documents[:-1] == documents[1:])])[: len(hashes)]
    wanted, places = np.unique(buckets_of(hashes, bits), return_index=True)
    at = places[np.isin(wanted, buckets)]
    words = train.vocabulary.words
    names = [words[ids[first[p]]] + (" " + words[ids[first[p] + 1]] if p >= len(ids) else "") for p in at]
    text = "\n".join(sorted(names)).encode()
    return len(text), len(zlib.compress(text, 9))


def main(words: list[str]) -> None:
    given = parse(
        words,
        __doc__,
        "folder",
        budgets=["10KB", "22KB", "50KB", "110KB", "370KB"],
        lasso=[0.5, 1.0, 2.0, 4.0],
        seeds=[0, 1, 2],
        test=False,
    )
    given.folder = Path(given.folder)
    documents = read_documents(given.folder / "train.csv")
    if given.test:  # with a vocabulary of its own: the classifier knows its words by their hashes alone
        train, test = documents, read_documents(given.folder / "test.csv", classes=documents.classes)
    for seed in given.seeds:
        if not given.test:
            train, test = (documents.take(rows) for rows in shares(len(documents), (0.9, 0.1), seed))
        about = {"bench": "ngrams", "data": given.folder.name, "part": "test" if given.test else "validation", "seed": seed}
        files = {part: f"{given.folder.name}/{part}.csv" for part in ("train", "test")}
        for budget in given.budgets:
            options = {"data": files["train"], "test": files["test"] if given.test else "", "budget": budget, "seed": seed}
            config = from_options(NgramConfig, options).model_dump(mode="json")
            wall, cpu = time.perf_counter(), time.process_time()
            classifier = fit_ngrams(train, NgramSettings(size=budget, seed=seed))
            times = {"seconds": time.perf_counter() - wall, "cpu_seconds": time.process_time() - cpu}
            accuracy = float((classifier.scores(word_hashes(test), test.starts).argmax(1) == test.labels).mean())
            size = {"bytes": len(classifier.to_bytes()), "objects": len(classifier.objects), "anchors": len(classifier.B)}
            found = {"task": config["task"], **about, "model": "ngrams", "accuracy": accuracy, **size, **times}
            publish(given.record, found | {"config": config})
        for orders, bits in ((1, 24), (2, 24), (2, 20)) if seed == 0 else ():  # liblinear's answer hardly depends on a seed
            for C in given.lasso:
                row = lasso(train, test, orders, C, bits, seed)
                plain, squeezed = letters(train, orders, bits, row.pop("buckets"))
                weights = 5 * row["weights"]
                counted = {"bytes": plain + weights, "bytes_zlib": squeezed + weights, "orders": orders, "bits": bits, "C": C}
                publish(given.record, {**about, "model": "lasso", **row, **counted})
