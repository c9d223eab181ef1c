"""Text → words → ids and counts: our compiled pass beside Hugging Face's tokenizers and a plain regular expression.

    python -m experiments bench tokenizer [train.csv …] [--record results/bench.jsonl]

Without a file, on synthetic text (tests/synthetic_text.py). All count every word of every text; "from the file" is the way from
the file to documents, vocabulary and all. `tokenizers` knows the vocabulary already, the others find it.
"""

import os
import re
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
import polars as pl
from tests.synthetic_text import write_topics

from antembed.classify.documents import read_documents
from antembed.classify.labelled_text import LabelledText
from antembed.classify.tokenizer import Numberer, library_tokenizer
from experiments.race import median_turns, parse, publish

PATTERN = re.compile(r"[^\W_]+(?:(?<=[0-9])[.,](?=[0-9])[^\W_]+)*|'(?:s|t|d|m|re|ve|ll)\b")


def measure(name: str, file: Path, most: float, threads: int, repeats: int) -> dict[str, object]:
    texts = pl.concat(frame["text"] for frame in LabelledText(file))
    texts = texts.filter(texts.str.len_bytes().cum_sum() <= most * 1e6)
    megabytes, strings = texts.str.len_bytes().sum() / 1e6, texts.to_list()
    whole = sum(int(frame["text"].str.len_bytes().sum()) for frame in LabelledText(file)) / 1e6
    library = library_tokenizer(read_documents(file).vocabulary.words)

    def ours(threads: int) -> float:
        with Numberer(threads=threads) as numberer:
            numberer(texts, None)
            sum(lexicon.counts.sum() for lexicon in numberer.lexicons)
        return megabytes

    def from_the_file() -> float:
        read_documents(file, length=None, threads=threads)
        return whole

    def library_batch() -> float:
        np.bincount(np.concatenate([np.array(encoded.ids, np.int64) for encoded in library.encode_batch(strings)]))
        return megabytes

    def regex() -> float:
        counts: Counter[str] = Counter()
        for text in strings:
            counts.update(PATTERN.findall(text.lower()))
        return megabytes

    contestants = {
        f"antembed, {threads} threads": lambda: ours(threads),
        "antembed, 1 thread": lambda: ours(1),
        f"antembed from the file, {threads} threads": from_the_file,
        f"tokenizers, {threads} threads": library_batch,
        "Python regex, 1 thread": regex,
    }
    seconds = median_turns(contestants, repeats)
    first = next(iter(contestants))
    return {
        "benchmark": "words of text",
        "setting": f"{name}, {megabytes:.1f} MB of {whole:.0f}",
        "megabytes_a_second": {who: round(1 / each, 2) for who, each in seconds.items()},
        "ratios": {who: round(each / seconds[first], 2) for who, each in seconds.items() if who != first},
        "repeats": repeats,
    }


def main(words: list[str]) -> None:
    chosen = parse(words, __doc__, "files*", documents=100_000, words=100_000, megabytes=8.0, threads=2, repeats=3)
    os.environ["RAYON_NUM_THREADS"] = str(chosen.threads)  # of tokenizers
    with tempfile.TemporaryDirectory() as folder:
        files = {f"{file.parent.name}/{file.name}": file for file in chosen.files}
        if not files:
            file = Path(folder) / "topics.csv"
            write_topics(file, chosen.documents, chosen.words)
            files[f"synthetic, {chosen.documents:,} documents, V={chosen.words:,}"] = file
        for name, file in files.items():
            publish(chosen.record, measure(name, file, chosen.megabytes, chosen.threads, chosen.repeats))
