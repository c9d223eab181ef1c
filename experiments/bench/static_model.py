"""A static model made small: sentences and words beside the original's, without and with texts that say which tokens matter.

    python -m experiments bench static_model VECTORS TOKENIZER.json TRAIN.csv TEST.csv OTHER.txt WORDSIM [--ratio 16]

VECTORS is anything that `antembed compress` reads; the .csv files are AG-News' (class, title, description), OTHER.txt has texts
of another kind, one a line, WORDSIM is a folder of `word word score` files. Of sentences: Spearman's correlation of cosines of
all pairs with the original's. Of words: that of their cosines with people's scores, in points, original and small.
"""

import csv
import time
from pathlib import Path

import numpy as np
from scipy.stats import spearmanr

from antembed.compression import as_array, compress
from antembed.compression.quality import compare
from antembed.compression.sources import read_source, read_tokens
from antembed.compression.texts import compress_for_texts, rank_correlation
from antembed.tables.static_model import StaticModel
from antembed.tables.table import Table
from experiments.race import parse, publish

# Test texts that were looked at when the constants in compression/texts.py were chosen: for MiniLM, and beside five others.
LOOKED_AT, TESTED, SHORTEST = 1500, 1000, 9


def of_csv(file: str, first: int, last: int) -> list[str]:
    with open(file, newline="") as opened:
        return [f"{title}. {text}" for _, title, text in list(csv.reader(opened))[first:last]]


def unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)


class Judge:
    """Sentences and words, by the original."""

    def __init__(self, E: np.ndarray, sentences: dict[str, list[str]], words: Path, model: StaticModel):
        self.sentences = {name: [ids for ids in model.tokenize(texts) if ids] for name, texts in sentences.items()}
        self.tests = {}
        for file in sorted(words.glob("*.txt")):
            lines = [line.split() for line in file.read_text().splitlines()]
            tokens = [model.tokenize([line[side] for line in lines]) for side in (0, 1)]
            self.tests[file.stem] = (*tokens, [float(line[2]) for line in lines])
        self.wanted = {name: self._means(E, ids) for name, ids in self.sentences.items()}

    @staticmethod
    def _means(E: np.ndarray, ids: list[list[int]]) -> np.ndarray:
        return unit(np.stack([E[tokens].mean(0) for tokens in ids]))

    def sentence_figures(self, F: np.ndarray) -> dict[str, float]:
        return {name: rank_correlation(self._means(F, ids), self.wanted[name]) for name, ids in self.sentences.items()}

    def word_figures(self, F: np.ndarray) -> dict[str, float]:
        return {
            name: round(100 * float(spearmanr((self._means(F, a) * self._means(F, b)).sum(1), scores).statistic), 2)
            for name, (a, b, scores) in self.tests.items()
        }


def main(words: list[str]) -> None:
    given = parse(words, __doc__, "vectors", "tokenizer", "train", "test", "other", "wordsim", ratio=16.0, texts=20_000)
    E = as_array(read_source(given.vectors).vectors)
    tokens, how = read_tokens(given.tokenizer, len(E)), {"budget": f"{given.ratio:g}x", "by_frequency": False}
    started = time.perf_counter()
    plain = compress(E, **how)
    made: dict[str, tuple[Table, float]] = {"without": (plain, time.perf_counter() - started)}
    started = time.perf_counter()
    tuned = compress_for_texts(E, tokens, of_csv(given.train, 0, given.texts), how=how).table
    made["with"] = tuned, time.perf_counter() - started
    other = [line.strip() for line in Path(given.other).read_text().splitlines() if len(line.split()) >= SHORTEST]
    sentences = {"same kind": of_csv(given.test, LOOKED_AT, LOOKED_AT + TESTED), "other kind": other[-TESTED:]}
    judge = Judge(E, sentences, Path(given.wordsim), StaticModel(plain, tokens))
    original = judge.word_figures(E)
    for name, (table, seconds) in made.items():
        F = table[:]
        about = {"benchmark": "static model", "texts": name, "vectors": len(E), "embedding_dim": E.shape[1]}
        about |= {"bytes": table.size, "ratio": 4 * E.size / table.size, "sentences": judge.sentence_figures(F)}
        about |= {"words_original": original, "words": judge.word_figures(F), "seconds": round(seconds)}
        publish(given.record, about | compare(E, F))
