"""Look-up beside its peers: 25 600 ids, Zipf and uniform, of 500 000 vectors of 256 numbers; medians of turns.

    python benchmarks/serving.py [--objects 500000] [--repeats 7] [--threads 2] [--coded] [--record results/serving.jsonl]

Ours: sparse files (50 anchors, 2 a row; 100, 4; 500, 8), the same in int8, and with --coded the entropy-coded files at 16x and
64x of a table of 24 smooth dimensions (fitted here, some minutes), without and with 50 000 kept vectors. Peers: nn.Embedding,
NumPy rows in fp32 and fp16, int8 rows with a scale each, and faiss' product quantizer (64 bytes a row) if it is installed.
"""

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from antembed.compression import compress
from antembed.data.synthetic import zipf
from antembed.experiments.bench import interleave
from antembed.serving import load_table
from antembed.serving.table import serialize
from common import publish

IDS, WIDTH, SETTINGS, KEPT = 25_600, 256, ((50, 2), (100, 4), (500, 8)), 50_000
Lookup = Callable[[np.ndarray], object]


def sparse_table(V: int, K: int, per_row: int, values: str, folder: Path) -> tuple[Lookup, int]:
    rng = np.random.default_rng(K)
    T = np.zeros((V, K), np.float32)
    np.put_along_axis(T, rng.integers(0, K, (V, per_row)), rng.exponential(1, (V, per_row)).astype(np.float32), 1)
    A = rng.normal(size=(K, WIDTH)).astype(np.float32)
    file = folder / f"{K}-{values}.ant"
    file.write_bytes(serialize(T, A, values=values, encoding="csr"))
    table = load_table(file)
    return table.__getitem__, table.size


def peers(V: int) -> dict[str, tuple[Lookup, int]]:
    rng = np.random.default_rng(0)
    E = rng.normal(size=(V, WIDTH)).astype(np.float32)
    half, scales = E.astype(np.float16), np.abs(E).max(1, keepdims=True) / 127
    whole = np.rint(E / scales).astype(np.int8)
    layer = torch.nn.Embedding.from_pretrained(torch.from_numpy(E))

    def torch_rows(ids: np.ndarray) -> object:
        with torch.no_grad():
            return layer(torch.from_numpy(ids))

    found: dict[str, tuple[Lookup, int]] = {
        "nn.Embedding": (torch_rows, E.nbytes),
        "NumPy fp32": (lambda ids: E[ids], E.nbytes),
        "NumPy fp16 → fp32": (lambda ids: half[ids].astype(np.float32), half.nbytes),
        "NumPy int8 → fp32": (lambda ids: whole[ids] * scales[ids], whole.nbytes + scales.nbytes),
    }
    try:
        import faiss
    except ImportError:
        return found
    quantizer = faiss.ProductQuantizer(WIDTH, 64, 8)
    quantizer.train(E[:20_000])
    codes = quantizer.compute_codes(E)
    return found | {"faiss PQ, 64 bytes": (lambda ids: quantizer.decode(codes[ids]), codes.nbytes + 256 * WIDTH * 4)}


def coded(V: int, folder: Path) -> dict[str, tuple[Lookup, int]]:
    rng = np.random.default_rng(1)
    E = (rng.normal(size=(V, WIDTH)) * 0.97 ** np.arange(WIDTH)).astype(np.float32)
    found: dict[str, tuple[Lookup, int]] = {}
    for budget, method in (("16x", "transform"), ("64x", "sparse")):
        compress(E, budget=budget, method=method, split_norms=False).save(folder / "coded.ant")
        for kept in (0, KEPT):
            table = load_table(folder / "coded.ant", verify=True)
            table.keep(kept)
            name = f"ours, {budget} {method}" + (f", {kept} kept" if kept else "")
            found[name] = (table.__getitem__, table.size + 4 * WIDTH * kept)
        (folder / "coded.ant").unlink()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--objects", type=int, default=500_000)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--coded", action="store_true")
    parser.add_argument("--record")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    V = arguments.objects
    with tempfile.TemporaryDirectory() as temporary:
        contestants = {
            f"ours, {K} anchors, {per_row} a row, {values}": sparse_table(V, K, per_row, values, Path(temporary))
            for K, per_row in SETTINGS
            for values in ("fp32", "int8")
        }
        contestants = peers(V) | contestants | (coded(V, Path(temporary)) if arguments.coded else {})
        for drawn, popularity in (("Zipf", zipf(V, 1.0)), ("uniform", None)):
            rng = np.random.default_rng(2)
            order = rng.permutation(V)  # popular rows are anywhere
            batches = [order[rng.choice(V, IDS, p=popularity)] for _ in range(arguments.repeats + 1)]
            seconds = interleave({name: turns(find, batches) for name, (find, _) in contestants.items()}, arguments.repeats)
            for name, each in seconds.items():
                about = {"benchmark": "serving", "ids": drawn, "look-up": name, "objects": V, "threads": arguments.threads}
                about |= {"milliseconds": round(1000 * each, 3), "bytes": contestants[name][1]}
                about |= {"times_nn_embedding": round(each / seconds["nn.Embedding"], 2)}
                publish(arguments.record, about | {"times_smaller": round(4 * V * WIDTH / contestants[name][1], 1)})


def turns(find: Lookup, batches: list[np.ndarray]) -> Callable[[], int]:
    """Every turn has ids of its own."""
    left = iter(batches)

    def work() -> int:
        find(next(left))
        return 1

    return work


if __name__ == "__main__":
    main()
