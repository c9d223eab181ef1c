"""`antembed train classify` (and `classify-ngrams`) on a file of DBPedia's size: peak memory, time, and the speed of reading.

    python -m experiments bench large_text [--models cnn,mean,ngrams] [--record results/large-text.jsonl]

560 000 synthetic documents of 14 classes and 563 000 words (tests/synthetic_text.py), one epoch;
each model in a process of its own.
"""

import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.synthetic_text import write_topics

from antembed.classify.documents import read_documents
from antembed.files import JSON
from experiments.race import parse, publish

DOCUMENTS, WORDS, CLASSES, LENGTH = 560_000, 563_000, 14, 50
COMMANDS = {
    "cnn": ["classify", "--model", "cnn", "--anchors", "10", "--epochs", "1"],
    "mean": ["classify", "--model", "mean", "--anchors", "10", "--epochs", "1"],
    "ngrams": ["classify-ngrams", "--budget", "500KB"],
}
# Run the command line, and say at its end how much memory it took at most (KiB on Linux).
MEASURED = """
import atexit, resource, sys
atexit.register(lambda: print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr))
from antembed.cli.app import app
app()
"""


def trained(model: str, file: Path, folder: Path, threads: int) -> JSON:
    task, *options = COMMANDS[model]
    options += [] if task == "classify-ngrams" else ["--threads", str(threads)]
    words = ["train", task, file.name, *options, "--out", model, "--json"]
    start = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", MEASURED, *words], capture_output=True, text=True, check=True, cwd=folder)
    seconds = time.perf_counter() - start
    result = json.loads(done.stdout)
    return {
        "model": model,
        "peak_gigabytes": int(done.stderr.split()[-1]) * 1024 / 1e9,
        "seconds": seconds,
        "accuracy": result["test"]["accuracy"],
        "bytes": result["bytes"],
        "config": result["config"],
    }


def main(words: list[str]) -> None:
    given = parse(words, __doc__, models="cnn,mean", threads=2)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        file = folder / "large.csv"
        write_topics(file, DOCUMENTS, WORDS, classes=CLASSES, length=LENGTH, seed=1)
        megabytes = file.stat().st_size / 1e6
        about = {"bench": "large text", "documents": DOCUMENTS, "file_megabytes": megabytes, "threads": given.threads}
        for times in ("first", "second"):  # the first compiles, or waits for what was compiled before
            start = time.perf_counter()
            words = len(read_documents(file).vocabulary)
            seconds = time.perf_counter() - start
            memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
            read = {"peak_gigabytes": memory, "seconds": seconds, "megabytes_a_second": megabytes / seconds, "words": words}
            publish(given.record, about | {"model": f"reading, {times} time"} | read)
        for model in given.models.split(","):
            publish(given.record, about | trained(model, file, folder, given.threads))
