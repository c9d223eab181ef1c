"""Error at equal bytes: our entropy-coded files beside whole numbers, low rank and (if faiss is there) product quantization.

    python -m experiments bench compress VECTORS --name GloVe [--ratios 8 16 32 64] [--frequency] [--only coded OPQ …]

VECTORS is anything that `antembed compress` reads. Bytes are those of files for ours. For the others they are codes plus
codebooks and rotations, counted as fp16 although they are used in fp32. Words are counted nowhere. `--frequency`: rows that
come first weigh more, in the peers as in ours; faiss, which takes no weights, is trained on rows drawn by them. Beside the
figures of `antembed compress` there is `neighbours_kept_first_20000`: of 2 000 of the first 20 000 rows, among these.
"""

import time
from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import Any

import numpy as np

from antembed.compression import METHOD_OF, WEIGHTING, as_array, compress
from antembed.compression.quality import compare, neighbours_kept
from antembed.compression.sources import read_source
from antembed.tables.entropy_rows import row_weights
from experiments.race import parse, publish

Method = Callable[[np.ndarray, float, bool], tuple[Any, ...]]  # → vectors, bytes, and of `auto` the method that it took
FIRST, QUERIES = 20_000, 2000
TURNS = 30  # of OPQ


def faiss() -> ModuleType:
    """Where it is installed."""
    return import_module("faiss")


def ours(method: str) -> Method:
    def run(E: np.ndarray, ratio: float, frequency: bool) -> tuple[np.ndarray, int, str]:
        table = compress(E, budget=f"{ratio}x", by_frequency=frequency, method=method)
        return table[:], table.size, METHOD_OF[table.encoding]

    return run


def weights(n: int, frequency: bool) -> np.ndarray:
    """What the squared errors of rows count, in sum 1: as in ours."""
    counted = row_weights(np.arange(n), WEIGHTING if frequency else 0.0, 1.0).astype(np.float64) ** 2
    return counted / counted.sum()


def whole_numbers(E: np.ndarray, ratio: float, frequency: bool) -> tuple[np.ndarray, int]:
    """As many bits a number as fit; a grid for each column, around its mean, as fine as loses least."""
    bits = int(32 / ratio)
    if bits < 1:
        raise ValueError("less than 1 bit a number")
    share, half = weights(len(E), frequency)[:, None], 2 ** (bits - 1)
    mean = (share * E).sum(0)
    best, least = np.zeros_like(E), np.full(E.shape[1], np.inf)
    for part in np.linspace(0.1, 1, 19):  # of the largest number that the grid reaches
        step = np.abs(E - mean).max(0) * part / half
        F = ((np.clip(np.floor((E - mean) / step), -half, half - 1) + 0.5) * step + mean).astype(np.float32)
        error = (share * (E - F) ** 2).sum(0)
        best[:, error < least], least = F[:, error < least], np.minimum(error, least)
    return best, E.size * bits // 8 + 4 * E.shape[1]


def low_rank(E: np.ndarray, ratio: float, frequency: bool) -> tuple[np.ndarray, int]:
    """Principal axes, int8."""
    V, d = E.shape
    share = weights(V, frequency)[:, None]
    mean = (share * E).sum(0).astype(np.float32)
    rank = min(max(int((4 * V * d / ratio - 2 * d) / (V + 2 * d)), 1), d)
    _, vectors = np.linalg.eigh(((E - mean) * share).T @ (E - mean))
    axes = vectors[:, ::-1][:, :rank].astype(np.float32)
    Y = (E - mean) @ axes
    scale = np.abs(Y).max(0) / 127
    return np.rint(Y / scale) * scale @ axes.T + mean, V * rank + 2 * d * rank + 2 * d


def drawn(E: np.ndarray, frequency: bool) -> np.ndarray:
    """What faiss, which takes no weights here, is trained on: all rows, or as many drawn by their weights."""
    if not frequency:
        return E
    return E[np.random.default_rng(0).choice(len(E), len(E), p=weights(len(E), True))]


class Product:
    """faiss' product quantizer, for any number of codes: parts of the columns, of which the first are one wider."""

    def __init__(self, d: int, codes: int):
        wide = d % codes
        sizes = [(d // codes + 1, wide), (d // codes, codes - wide)]
        self.parts = [faiss().ProductQuantizer(width * many, many, 8) for width, many in sizes if many]
        self.cuts = np.cumsum([0, *(part.d for part in self.parts)])

    def train(self, X: np.ndarray, rounds: int, again: bool = False) -> None:
        for part, piece in self._pieces(X):
            part.cp.niter, part.cp.max_points_per_centroid = rounds, 1 << 20
            part.train_type = part.Train_hot_start if again else part.Train_default
            part.train(piece)

    def __call__(self, X: np.ndarray) -> np.ndarray:
        return np.hstack([part.decode(part.compute_codes(piece)) for part, piece in self._pieces(X)])

    def _pieces(self, X: np.ndarray) -> list[tuple[Any, np.ndarray]]:
        return [(part, np.ascontiguousarray(X[:, a : a + part.d])) for part, a in zip(self.parts, self.cuts, strict=False)]


def product(rotated: bool) -> Method:
    """PQ, or OPQ: a rotation and codes that take turns."""

    def run(E: np.ndarray, ratio: float, frequency: bool) -> tuple[np.ndarray, int]:
        V, d = E.shape
        size = 2 * 256 * d + (2 * d * d if rotated else 0)
        codes = min(max(int((4 * V * d / ratio - size) / V), 1), d)
        sample, quantizer, R = drawn(E, frequency), Product(d, codes), np.eye(d, dtype=np.float32)
        if rotated:
            R = balanced_axes(sample, codes)
        quantizer.train(sample @ R, 25)
        for _ in range(TURNS if rotated else 0):
            left, _, right = np.linalg.svd(sample.T @ quantizer(sample @ R))  # the rotation nearest to what is decoded
            R = left @ right
            quantizer.train(sample @ R, 3, again=True)
        return quantizer(E @ R) @ R.T, V * codes + size

    return run


def balanced_axes(X: np.ndarray, codes: int) -> np.ndarray:
    """Principal axes (d, d), dealt out so that the products of the variances of all parts are alike: OPQ's usual start."""
    variances, axes = np.linalg.eigh(np.cov(X.T).astype(np.float64))
    rooms = [len(part) for part in np.array_split(np.arange(X.shape[1]), codes)]
    dealt: list[list[int]] = [[] for _ in rooms]
    logs = np.zeros(codes)
    for axis in np.argsort(-variances):
        free = [part for part in range(codes) if len(dealt[part]) < rooms[part]]
        chosen = min(free, key=lambda part: logs[part])
        dealt[chosen].append(int(axis))
        logs[chosen] += np.log(max(variances[axis] / variances.min(), 1.0)) + 1e-9
    return np.ascontiguousarray(axes[:, [axis for part in dealt for axis in part]], np.float32)


def additive(kind: str) -> Method:
    """RQ or LSQ, with codes of 6 or 8 bits: what loses less. Few bits have small books, which leaves more codes."""

    def run(E: np.ndarray, ratio: float, frequency: bool) -> tuple[np.ndarray, int]:
        V, d = E.shape
        sample, found = drawn(E, frequency), []
        for bits in (6, 8):
            book = 2 * 2**bits * d
            codes = int(4 * V * d / ratio / (V * bits / 8 + book))
            if codes < 1:
                continue
            if kind == "RQ":
                index = faiss().ResidualQuantizer(d, codes, bits)
                index.max_beam_size = 8
            else:
                index = faiss().LocalSearchQuantizer(d, codes, bits)
            index.train(sample)
            F = index.decode(index.compute_codes(E))
            error = (weights(V, frequency)[:, None] * (E - F) ** 2).sum()
            found.append((float(error), -bits, F, V * index.code_size + book * codes))
        if not found:
            raise ValueError("a single book takes more")
        return min(found, key=lambda each: each[:2])[2:]

    return run


METHODS: dict[str, Method] = {
    "auto": ours("auto"),
    "transform": ours("transform"),
    "sparse": ours("sparse"),
    "whole numbers": whole_numbers,
    "low rank, int8": low_rank,
    "PQ": product(rotated=False),
    "OPQ": product(rotated=True),
    "RQ": additive("RQ"),
    "LSQ": additive("LSQ"),
}


def measured(E: np.ndarray, F: np.ndarray) -> dict[str, float]:
    queries = np.random.default_rng(0).choice(min(len(E), FIRST), min(len(E), QUERIES), replace=False)
    return {**compare(E, F), "neighbours_kept_first_20000": neighbours_kept(E[:FIRST], F[:FIRST], queries)}


def main(words: list[str]) -> None:
    given = parse(
        words,
        __doc__,
        "vectors",
        name=None,
        ratios=[8.0, 16.0, 32.0, 64.0],
        only=[name for name in METHODS if name != "LSQ"],
        frequency=False,
    )
    E = as_array(read_source(given.vectors).vectors)
    about = {"benchmark": "compress", "table": given.name, "vectors": len(E), "embedding_dim": E.shape[1]}
    for ratio in given.ratios:
        for name in given.only:
            started, busy = time.perf_counter(), time.process_time()
            try:
                F, size, *method = METHODS[name](E, ratio, given.frequency)
            except (ImportError, ValueError) as error:
                print(f"{name}, {ratio}x: {error}")
                continue
            seconds = {"seconds": round(time.perf_counter() - started, 1), "cpu_seconds": round(time.process_time() - busy, 1)}
            found = {
                "method": (*method, name)[0],
                "frequency": given.frequency,
                "ratio": 4 * E.size / size,
                "wanted": ratio,
                "bytes": size,
            }
            publish(given.record, about | found | measured(E, F) | seconds)
