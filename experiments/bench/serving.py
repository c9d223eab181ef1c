"""Look-up beside its peers: 25 600 ids, Zipf and uniform, of 500 000 vectors of 256 numbers; medians of turns.

    python -m experiments bench serving [--objects 500000] [--repeats 15] [--threads 2] [--coded transform sparse]
        [--fitted FOLDER]


Ours: sparse files (50 anchors, 2 a row; 100, 4; 500, 8), the same in int8, and with --coded the entropy-coded files at 16x and
64x of a table of 24 smooth dimensions (fitted here, some minutes), without and with 50 000 kept vectors. Peers: nn.Embedding,
NumPy rows in fp32 and fp16, int8 rows with a scale each, and, if installed, faiss' product quantizer (64 bytes a row) and
torchao's nn.Embedding in int8 (a scale a row) and int4 (a scale for 32 numbers; in memory a byte each).

In a turn all look the same ids up, in an order that is drawn anew. Each has looked other ids up just before, so it finds the
caches as it left them itself. Results are new arrays, whose memory was used before: the page faults of fresh memory would take
nn.Embedding 10 ms, now and then. Bytes are those in memory: the file, where its rows begin once that is known, kept vectors.

With --threads 1 CPU time is measured, which means something on a busy machine, too; with more, time by the clock, which does
not: waiting for a core costs the threads of nn.Embedding more than ours. All are bound to as many cores as there are threads.
"""

import ctypes
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from threadpoolctl import threadpool_limits

from antembed.compression import compress
from antembed.recommend.synthetic import zipf
from antembed.tables.entropy_rows import CodedRows
from antembed.tables.save import load_table, serialize
from antembed.tables.sparse_entropy_rows import SparseCodedRows
from experiments.race import parse, publish

IDS, WIDTH, SETTINGS, KEPT = 25_600, 256, ((50, 2), (100, 4), (500, 8)), 50_000
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # of malloc.h
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
    return found | faiss_peer(E) | torchao_peers(E)


def faiss_peer(E: np.ndarray) -> dict[str, tuple[Lookup, int]]:
    try:
        import faiss
    except ImportError:
        return {}
    quantizer = faiss.ProductQuantizer(WIDTH, 64, 8)
    quantizer.train(E[:20_000])
    codes = quantizer.compute_codes(E)
    return {"faiss PQ, 64 bytes": (lambda ids: quantizer.decode(codes[ids]), codes.nbytes + 256 * WIDTH * 4)}


def torchao_peers(E: np.ndarray) -> dict[str, tuple[Lookup, int]]:
    try:
        from torchao.quantization import IntxWeightOnlyConfig, PerAxis, PerGroup, quantize_
    except ImportError:
        return {}
    found: dict[str, tuple[Lookup, int]] = {}
    for bits, granularity in ((8, PerAxis(0)), (4, PerGroup(32))):
        model = torch.nn.Sequential(torch.nn.Embedding.from_pretrained(torch.from_numpy(E)))
        how = IntxWeightOnlyConfig(weight_dtype=getattr(torch, f"int{bits}"), granularity=granularity)
        quantize_(model, how, lambda module, name: isinstance(module, torch.nn.Embedding))
        weight = model[0].weight
        held = sum(part.nbytes for part in (weight.qdata, weight.scale, weight.zero_point))
        found[f"torchao int{bits}"] = (partial(torchao_rows, model), held)
    return found


def torchao_rows(model: torch.nn.Module, ids: np.ndarray) -> object:
    with torch.no_grad():
        return model(torch.from_numpy(ids))


def coded(V: int, methods: list[str], folder: Path) -> dict[str, tuple[Lookup, int]]:
    rng = np.random.default_rng(1)
    E = (rng.normal(size=(V, WIDTH)) * 0.97 ** np.arange(WIDTH)).astype(np.float32)
    found: dict[str, tuple[Lookup, int]] = {}
    for budget, method in (("16x", "transform"), ("64x", "sparse")):
        if method not in methods:
            continue
        file = folder / f"{V}-{budget}-{method}.ant"
        if not file.exists():
            compress(E, budget=budget, method=method, split_norms=False).save(file)
        for kept in (0, KEPT):
            table = load_table(file, verify=True)
            table.keep(kept)
            name = f"ours, {budget} {method}" + (f", {kept} kept" if kept else "")
            assert isinstance(table.rows, CodedRows | SparseCodedRows)
            found[name] = (table.__getitem__, table.size + table.rows.entries.nbytes + 4 * WIDTH * kept)
    return found


def main(words: list[str]) -> None:
    given = parse(words, __doc__, objects=500_000, repeats=15, threads=2, coded=[], fitted=None)
    torch.set_num_threads(given.threads)
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: given.threads])  # ours take all cores there are
    threadpool_limits(given.threads)
    clock = time.process_time if given.threads == 1 else time.perf_counter
    keep_freed_memory()
    V = given.objects
    with tempfile.TemporaryDirectory() as temporary:
        contestants = {
            f"ours, {K} anchors, {per_row} a row, {values}": sparse_table(V, K, per_row, values, Path(temporary))
            for K, per_row in SETTINGS
            for values in ("fp32", "int8")
        }
        contestants = peers(V) | contestants | coded(V, given.coded, Path(given.fitted or temporary))
        for drawn, popularity in (("Zipf", zipf(V, 1.0)), ("uniform", None)):
            rng = np.random.default_rng(2)
            order = rng.permutation(V)  # popular rows are anywhere
            batches = [order[rng.choice(V, IDS, p=popularity)] for _ in range(2 * given.repeats + 2)]
            seconds = race({name: find for name, (find, _) in contestants.items()}, batches, rng, clock)
            least = seconds["nn.Embedding"][1]
            for name, (each, fastest) in seconds.items():
                about = {"benchmark": "serving", "ids": drawn, "look-up": name, "objects": V, "threads": given.threads}
                about |= {"milliseconds": round(1000 * each, 3), "bytes": contestants[name][1]}
                about |= {"times_nn_embedding": round(each / seconds["nn.Embedding"][0], 2)}
                about |= {"least_milliseconds": round(1000 * fastest, 3), "least_times_nn_embedding": round(fastest / least, 2)}
                about |= {"load": round(os.getloadavg()[0], 1), "clock": clock.__name__}
                publish(given.record, about | {"times_smaller": round(4 * V * WIDTH / contestants[name][1], 1)})


def keep_freed_memory() -> None:
    """Tell glibc's malloc to take large arrays from the heap and never to give it back; other systems do as they do."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for option, value in ((M_MMAP_MAX, 0), (M_TRIM_THRESHOLD, 2**31 - 1)):
            mallopt(option, value)


def race(
    contestants: dict[str, Lookup], batches: list[np.ndarray], rng: np.random.Generator, clock: Callable[[], float]
) -> dict[str, tuple[float, float]]:
    """Median and least seconds; a turn takes two batches, of which the second is timed. The first turn does not count."""
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for before, timed in zip(batches[::2], batches[1::2], strict=True):
        for name in rng.permutation(list(contestants)).tolist():
            contestants[name](before)
            started = clock()
            contestants[name](timed)
            times[name].append(clock() - started)
    return {name: (statistics.median(found[1:]), min(found[1:])) for name, found in times.items()}
