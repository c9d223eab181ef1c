"""Error at equal bytes: our entropy-coded files beside whole numbers, low rank and (if faiss is there) product quantization.

    python benchmarks/compress.py VECTORS --name GloVe [--ratios 8 16 32 64] [--frequency] [--only coded OPQ …] [--record FILE]

VECTORS is anything that `antembed compress` reads. Bytes are those of files for ours. For the others they are codes plus
codebooks and rotations, counted as fp16 although they are used in fp32. Words are counted nowhere. `--frequency`: rows that
come first weigh more, in ours. Beside the figures of `antembed compress` there is `neighbours_kept_first_20000`: of 2 000 of
the first 20 000 rows, among these.
"""

import argparse
import time
from collections.abc import Callable

import numpy as np

from antembed.compression import as_array, compare, compress, read_source
from antembed.compression.report import neighbours_kept
from common import publish

Method = Callable[[np.ndarray, float, bool], tuple[np.ndarray, int]]
FIRST, QUERIES = 20_000, 2000


def ours(method: str) -> Method:
    def run(E: np.ndarray, ratio: float, frequency: bool) -> tuple[np.ndarray, int]:
        table = compress(E, budget=f"{ratio}x", by_frequency=frequency, method=method)
        return table[:], table.size

    return run


def whole_numbers(E: np.ndarray, ratio: float, frequency: bool) -> tuple[np.ndarray, int]:
    """As many bits a number as fit, a grid for each column."""
    bits = int(32 / ratio)
    if bits < 2:
        raise ValueError("less than 2 bits a number")
    largest = 2 ** (bits - 1) - 1
    scale = np.abs(E).max(0) / largest
    return np.clip(np.rint(E / scale), -largest, largest) * scale, E.size * bits // 8 + 4 * E.shape[1]


def low_rank(E: np.ndarray, ratio: float, frequency: bool) -> tuple[np.ndarray, int]:
    """Principal axes, int8."""
    mean = E.mean(0)
    V, d = E.shape
    rank = max(int((4 * V * d / ratio - 2 * d) / (V + 2 * d)), 1)
    _, vectors = np.linalg.eigh((E - mean).T.astype(np.float64) @ (E - mean))
    axes = vectors[:, ::-1][:, :rank].astype(np.float32)
    Y = (E - mean) @ axes
    scale = np.abs(Y).max(0) / 127
    return np.rint(Y / scale) * scale @ axes.T + mean, V * rank + 2 * d * rank + 2 * d


def _quantizer(kind: str) -> Method:
    def run(E: np.ndarray, ratio: float, frequency: bool) -> tuple[np.ndarray, int]:
        import faiss

        V, d = E.shape
        target = 4 * V * d / ratio
        if kind in ("RQ", "LSQ"):
            codes = max(int(target / (V + 2 * 256 * d)), 1)
            index = faiss.ResidualQuantizer(d, codes, 8) if kind == "RQ" else faiss.LocalSearchQuantizer(d, codes, 8)
            index.train(E)
            return index.decode(index.compute_codes(E)), V * codes + 2 * 256 * d * codes
        turned = 2 * d * d if kind == "OPQ" else 0
        codes = min(max(int((target - 2 * 256 * d - turned) / V), 1), d)
        X = np.pad(E, ((0, 0), (0, -d % codes)))  # zeros, so that every number of codes divides the width
        rotation = faiss.OPQMatrix(X.shape[1], codes)
        rotation.niter, rotation.max_train_points = 20, 50_000
        if kind == "OPQ":
            rotation.train(X)
            X = rotation.apply(X)
        index = faiss.ProductQuantizer(X.shape[1], codes, 8)
        index.train(X)
        found = index.decode(index.compute_codes(X))
        return (rotation.reverse_transform(found) if kind == "OPQ" else found)[:, :d], V * codes + 2 * 256 * d + turned

    return run


METHODS: dict[str, Method] = {
    "auto": ours("auto"),
    "transform": ours("transform"),
    "sparse": ours("sparse"),
    "whole numbers": whole_numbers,
    "low rank, int8": low_rank,
    **{kind: _quantizer(kind) for kind in ("PQ", "OPQ", "RQ", "LSQ")},
}


def measured(E: np.ndarray, F: np.ndarray) -> dict[str, float]:
    queries = np.random.default_rng(0).choice(min(len(E), FIRST), min(len(E), QUERIES), replace=False)
    return {**compare(E, F), "neighbours_kept_first_20000": neighbours_kept(E[:FIRST], F[:FIRST], queries)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("vectors")
    parser.add_argument("--name", required=True, help="of the table, in records")
    parser.add_argument("--ratios", type=float, nargs="*", default=[8, 16, 32, 64])
    parser.add_argument("--only", nargs="*", choices=list(METHODS), default=[name for name in METHODS if name != "LSQ"])
    parser.add_argument("--frequency", action="store_true")
    parser.add_argument("--record")
    arguments = parser.parse_args()
    E = as_array(read_source(arguments.vectors).vectors)
    about = {"benchmark": "compress", "table": arguments.name, "vectors": len(E), "embedding_dim": E.shape[1]}
    for ratio in arguments.ratios:
        for name in arguments.only:
            started = time.perf_counter()
            try:
                F, size = METHODS[name](E, ratio, arguments.frequency)
            except (ImportError, ValueError) as error:
                print(f"{name}, {ratio}x: {error}")
                continue
            seconds = round(time.perf_counter() - started, 1)
            found = {
                "method": name,
                "frequency": arguments.frequency,
                "ratio": 4 * E.size / size,
                "wanted": ratio,
                "bytes": size,
            }
            publish(arguments.record, about | found | measured(E, F) | {"seconds": seconds})


if __name__ == "__main__":
    main()
