"""Seconds, memory and accuracy of the hashed n-gram classifier: AG-News, and 560 000 documents of DBPedia's shape.

    python -m experiments bench ngram_speed [--data ag-news dbpedia] [--budget 50KB] [--record results/ngram-speed.jsonl]

Each is fitted in a process of its own, whose peak of memory is said. AG-News is read from ANTEMBED_DATA; the others, of 14
classes, are made from a seed (recommend/synthetic.py), and 20 000 more of them are asked about. Seconds are of the fit alone,
with kernels compiled before.
"""

import json
import os
import resource
import subprocess
import time
from pathlib import Path
from statistics import median

import numpy as np
from tests.synthetic_text import labelled_documents

from antembed.classify.documents import Documents, read_documents
from antembed.classify.ngram_fit import NgramSettings, fit_ngrams
from antembed.classify.predictor import word_hashes
from antembed.files import JSON
from experiments.race import child, parse, publish

HELD_OUT = 20_000


def documents_of(data: str, documents: int) -> tuple[Documents, Documents]:
    """To learn from, and to be asked about."""
    if data == "ag-news":
        folder = Path(os.environ["ANTEMBED_DATA"]) / data
        train = read_documents(folder / "train.csv")
        return train, read_documents(folder / "test.csv", classes=train.classes)
    whole = labelled_documents(documents + HELD_OUT, 14)
    return whole.take(np.arange(documents)), whole.take(np.arange(documents, len(whole)))


def fitted(data: str, budget: str, documents: int, repeats: int) -> JSON:
    train, test = documents_of(data, documents)
    fit_ngrams(train.take(np.arange(2000)), NgramSettings(size="8KB"))  # compiles
    before, times, cpu = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, [], []
    for _ in range(repeats):
        wall, own = time.perf_counter(), time.process_time()
        classifier = fit_ngrams(train, NgramSettings(size=budget))
        times.append(time.perf_counter() - wall)
        cpu.append(time.process_time() - own)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    accuracy = float((classifier.scores(word_hashes(test), test.starts).argmax(1) == test.labels).mean())
    return {
        "documents": len(train),
        "words": len(train.tokens),
        "classes": len(train.classes),
        "seconds": round(median(times), 2),
        "cpu_seconds": round(median(cpu), 2),
        "peak_gigabytes": round(peak / 1e6, 2),
        "gigabytes_before": round(before / 1e6, 2),
        "accuracy": round(accuracy, 4),
        "bytes": len(classifier.to_bytes()),
    }


def main(words: list[str]) -> None:
    given = parse(words, __doc__, data=["ag-news", "dbpedia"], budget="50KB", documents=560_000, repeats=1, child=False)
    if given.child:
        print(json.dumps(fitted(given.data[0], given.budget, given.documents, given.repeats)))
        return
    for data in given.data:
        words = [*child("ngram_speed"), "--child", "--data", data, "--budget", given.budget]
        words += ["--documents", str(given.documents), "--repeats", str(given.repeats)]
        found: JSON = json.loads(subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True).stdout)
        publish(given.record, {"benchmark": "hashed n-grams", "data": data, "budget": given.budget, "seed": 0, **found})
