"""Sentence similarities of a model whose embedding is small, beside the original's: without and with tuning on texts.

    python -m experiments bench distil MODEL TRAIN.csv TEST.csv [--ratio 16] [--method auto] [--texts 20000] [--record FILE]

MODEL is a folder of Hugging Face, the .csv files are AG-News' (class, title, description). `--method transform` leaves out the
comparison with sparse codes on a sample, which takes minutes. The folder is written, read back with AutoModel, and asked for
the test texts, which no step has seen: Spearman's correlation of the cosines of all pairs.
"""

import csv
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from scipy.stats import spearmanr
from transformers import AutoModel

import antembed.hf  # noqa: F401
from antembed.compression import METHOD_OF, compress
from antembed.compression.quality import compare
from antembed.hf.checkpoint_folder import read_model_folder, write_model_folder
from antembed.hf.distil import distil, load_original, pooling_of, sentence_vectors, tokenize
from experiments.race import parse, publish

LOOKED_AT, TESTED = 500, 1000  # the exponent in distil.py was chosen on the first 500 test texts: they are left out here


def texts_of(file: str, most: int) -> list[str]:
    with open(file, newline="") as opened:
        return [f"{title}. {text}" for _, (_, title, text) in zip(range(most), csv.reader(opened), strict=False)]


@torch.no_grad()
def similarities(model: torch.nn.Module, ids: list[list[int]], pooling: str) -> np.ndarray:
    vectors = torch.cat([sentence_vectors(model, ids[n : n + 16], pooling) for n in range(0, len(ids), 16)])
    return (vectors @ vectors.T).numpy()[np.triu_indices(len(ids), 1)]


def main(words: list[str]) -> None:
    given = parse(words, __doc__, "model", "train", "test", ratio=16.0, method="auto", texts=20_000)
    folder = read_model_folder(given.model)
    ids, pooling = (
        sorted(tokenize(folder, texts_of(given.test, LOOKED_AT + TESTED)[LOOKED_AT:]), key=len),
        pooling_of(folder.root),
    )
    wanted, E = similarities(load_original(folder), ids, pooling), folder.vectors().astype(np.float32)
    started = time.perf_counter()
    table = compress(E, budget=f"{given.ratio:g}x", by_frequency=False, method=given.method)
    seconds = {"without": round(time.perf_counter() - started)}
    tuned = distil(folder, table, texts_of(given.train, given.texts))
    seconds["with"] = round(time.perf_counter() - started)
    for name, made in (("without", table), ("with", tuned.table)):
        with tempfile.TemporaryDirectory() as parent:
            write_model_folder(folder, Path(parent) / "small", made)
            found = similarities(AutoModel.from_pretrained(Path(parent) / "small", dtype=torch.float32).eval(), ids, pooling)
        about = {
            "benchmark": "distil",
            "distillation": name,
            "method": METHOD_OF[made.encoding],
            "vectors": len(E),
            "embedding_dim": E.shape[1],
            "bytes": made.size,
        }
        about |= {"ratio": 4 * E.size / made.size, "ratio_of_stored": len(folder.embedding.data) / made.size}
        about |= {"spearman": float(spearmanr(found, wanted).statistic), "texts": TESTED, "seconds": seconds[name]}
        publish(given.record, about | compare(E, made[:]) | ({"held_out": tuned.spearman} if name == "with" else {}))
