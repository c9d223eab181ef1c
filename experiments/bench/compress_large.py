"""Seconds, error and peak memory of compressing a large made table, beside faiss' OPQ + PQ in the same run.

    python -m experiments bench compress_large [--rows 400000 --width 300 --ratio 16 --kind float32]

Rows are a low rank plus noise: deviations of their axes and their lengths fall as those of GloVe 6B (50 dimensions) do, and
axes are turned at random. Each contestant is a process of its own, which reads the same file; threads are the machine's.
"""

import json
import resource
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np

from antembed.compression import compress
from antembed.compression.quality import compare
from experiments.race import child, parse, publish

CHUNK = 1 << 16  # rows that are made, and decoded, at a time
RANK = 0.86  # of the axes carry the rows, as (axis + 1)^−.19; the others are noise: a tenth of the first
TRAINED = 100_000  # rows that faiss is trained on


def write(path: Path, V: int, d: int, kind: str, seed: int = 0) -> None:
    rng = np.random.default_rng(seed)
    deviations = np.where(np.arange(d) < RANK * d, (np.arange(d) + 1.0) ** -0.19, 0.1)
    turned = np.linalg.qr(rng.standard_normal((d, d)))[0] * deviations[:, None]
    out = np.lib.format.open_memmap(path, "w+", kind, (V, d))
    for first in range(0, V, CHUNK):
        n = min(CHUNK, V - first)
        lengths = np.exp(0.18 * rng.standard_normal((n, 1)))  # GloVe's vary so, as logarithms
        out[first : first + n] = lengths * (rng.standard_normal((n, d)).astype(np.float32) @ turned.astype(np.float32))
    out.flush()


def ours(path: Path, ratio: float) -> dict[str, float]:
    E = np.load(path, mmap_mode="r")
    started = time.perf_counter()
    table = compress(E, budget=f"{ratio}x")
    seconds = time.perf_counter() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
    return {"seconds": seconds, "peak_MiB": peak, "bytes": table.size, **compare(E, table), "method": table.encoding}


def faiss(path: Path, ratio: float) -> dict[str, float]:
    import faiss  # only here: of no other use to us

    E = np.asarray(np.load(path), np.float32)
    V, d = E.shape
    codes = max(n for n in range(1, d + 1) if d % n == 0 and n <= 4 * d / ratio)
    started = time.perf_counter()
    quantizer = faiss.index_factory(d, f"OPQ{codes},PQ{codes}x8")
    quantizer.train(E[np.random.default_rng(0).choice(V, min(V, TRAINED), replace=False)])
    packed = quantizer.sa_encode(E)
    seconds = time.perf_counter() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
    F = quantizer.sa_decode(packed)
    size = packed.nbytes + 2 * d * d + 2 * 256 * d
    return {"seconds": seconds, "peak_MiB": peak, "bytes": size, **compare(E, F), "method": "OPQ + PQ"}


def main(words: list[str]) -> None:
    options = {"rows": 400_000, "width": 300, "ratio": 16.0, "kind": "float32", "only": ["ours", "faiss"]}
    chosen = parse(words, __doc__, **options, one=None, file=None)
    if chosen.one:
        print(json.dumps({"ours": ours, "faiss": faiss}[chosen.one](Path(chosen.file), chosen.ratio)))
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "vectors.npy"
        write(path, chosen.rows, chosen.width, chosen.kind)
        for name in chosen.only:
            given = ["--one", name, "--file", str(path), "--ratio", str(chosen.ratio)]
            done = subprocess.run([*child("compress_large"), *given], check=True, capture_output=True, text=True)
            found = json.loads(done.stdout)
            setting = {"rows": chosen.rows, "width": chosen.width, "ratio": chosen.ratio, "kind": chosen.kind}
            publish(chosen.record, {"benchmark": "compress large", "contestant": name, **setting, **found})
