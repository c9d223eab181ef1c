"""Error at equal bytes: our entropy-coded files beside whole numbers, low rank and (if faiss is there) product quantization.

    python benchmarks/compress.py VECTORS [--ratios 8 16 32] [--frequency] [--only coded OPQ …] [--record FILE]

VECTORS is anything that `antembed compress` reads. Bytes are those of files for ours, and codes plus codebooks for the others,
which cannot have every size: the ratio they come to is in the record. Words are counted nowhere. `--frequency`: rows that come
first weigh more, in ours.
"""

import argparse
import time
from collections.abc import Callable

import numpy as np

from antembed.compression import as_array, compare, compress, read_source
from common import publish


def coded(E: np.ndarray, ratio: float, frequency: bool) -> tuple[np.ndarray, int]:
    table = compress(E, budget=f"{ratio}x", by_frequency=frequency)
    return table[:], table.size


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


def _faiss(kind: str) -> Callable[[np.ndarray, float, bool], tuple[np.ndarray, int]]:
    def run(E: np.ndarray, ratio: float, frequency: bool) -> tuple[np.ndarray, int]:
        import faiss

        V, d = E.shape
        codes = max(round(4 * d / ratio - 4 * 256 * d / V), 1)
        if kind == "RQ":
            codes = max(int(4 * V * d / ratio / (V + 4 * 256 * d)), 1)
            index = faiss.ResidualQuantizer(d, codes, 8)
            index.train(E)
            return index.decode(index.compute_codes(E)), V * codes + 4 * 256 * d * codes
        codes = max(n for n in range(1, codes + 1) if d % n == 0)
        rotation = faiss.OPQMatrix(d, codes) if kind == "OPQ" else None
        if rotation is not None:
            rotation.train(E)
        X = E if rotation is None else rotation.apply(E)
        index = faiss.ProductQuantizer(d, codes, 8)
        index.train(X)
        found = index.decode(index.compute_codes(X))
        turned = 4 * d * d if rotation is not None else 0
        return (found if rotation is None else rotation.reverse_transform(found)), V * codes + 4 * 256 * d + turned

    return run


METHODS = {"coded": coded, "whole numbers": whole_numbers, "low rank, int8": low_rank} | {
    kind: _faiss(kind) for kind in ("PQ", "OPQ", "RQ")
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("vectors")
    parser.add_argument("--ratios", type=float, nargs="*", default=[8, 16, 32])
    parser.add_argument("--only", nargs="*", default=list(METHODS))
    parser.add_argument("--frequency", action="store_true")
    parser.add_argument("--record")
    arguments = parser.parse_args()
    E = as_array(read_source(arguments.vectors).vectors)
    for ratio in arguments.ratios:
        for name in arguments.only:
            started = time.perf_counter()
            try:
                F, size = METHODS[name](E, ratio, arguments.frequency)
            except (ImportError, ValueError) as error:
                print(f"{name}, {ratio}x: {error}")
                continue
            seconds = round(time.perf_counter() - started, 1)
            about = {"benchmark": "compress", "vectors": len(E), "embedding_dim": E.shape[1], "frequency": arguments.frequency}
            found = {
                "method": name,
                "ratio": 4 * E.size / size,
                "wanted": ratio,
                "bytes": size,
                **compare(E, F),
                "seconds": seconds,
            }
            publish(arguments.record, about | found)


if __name__ == "__main__":
    main()
