"""How the cost of a layer's step, and of a look-up in a stored table, grows: with V, K, d, ids, threads, and non-zeros a row.

    python -m experiments bench step_growth [--record results/step-growth.jsonl]

One thing varies, the rest stays at BASE. Milliseconds of the processor on one thread, and by the clock where threads vary.
"""

import time
from statistics import median

import numpy as np
import torch

import antembed as ant
from antembed.native.threads import usable_cpus
from antembed.tables.sparse_product_kernel import mix_csr
from experiments.race import Others, Work, counted, parse, publish, rounded, take_turns, training

BASE = {"V": 100_000, "K": 48, "d": 128, "ids": 8192}
VARIED = {
    "V": (10_000, 100_000, 1_000_000),
    "K": (12, 24, 48, 96, 192),
    "d": (32, 64, 128, 256, 512),
    "ids": (2048, 8192, 32_768),
}
NONZEROS = (1, 2, 4, 8, 16, 32)


def step(V: int, K: int, d: int, ids: int) -> Work:
    layer = ant.AnchorEmbedding(V, d, num_anchors=K, sparse=True)
    optimizer = ant.ProximalYogi(layer.param_groups(l1_penalty=1e-6))
    batches = [torch.from_numpy(batch) for batch in np.random.default_rng(0).integers(0, V, (4, ids))]
    return training(layer, optimizer, batches, torch.full((ids, d), 1e-3))


def stored(nonzeros: int) -> Work:
    V, K, d, ids = BASE.values()
    rng, n = np.random.default_rng(0), nonzeros * V
    columns, values = rng.integers(0, K, n).astype(np.uint8), np.ones(n, np.float32)
    starts, wanted = np.arange(0, n + 1, nonzeros, dtype=np.int32), rng.integers(0, V, ids)
    anchors, out, damaged = np.ones((K, d), np.float32), np.empty((ids, d), np.float32), np.full(1, -1)
    return counted(lambda: mix_csr(0, ids, wanted, starts, columns, values, anchors, out, damaged))


def measured(works: dict[str, Work], repeats: int, clock: object = time.process_time) -> dict[str, object]:
    for work in works.values():  # compile, allocate
        work(), work()
    return {name: rounded(1e3 * median(found)) for name, found in take_turns(works, repeats, clock).items()}


def with_threads(n: int, work: Work) -> Work:
    return lambda: (torch.set_num_threads(n), work())[1]


def main(words: list[str]) -> None:
    chosen = parse(words, __doc__, repeats=7)
    torch.set_num_threads(1)
    found, others = {}, Others()
    for name, values in VARIED.items():
        found[name] = measured({str(value): step(**(BASE | {name: value})) for value in values}, chosen.repeats)
    found["non-zeros a row of a stored table"] = measured({str(n): stored(n) for n in NONZEROS}, chosen.repeats)
    threads = {str(n): with_threads(n, step(**BASE)) for n in range(1, usable_cpus() + 1)}
    found["threads"] = measured(threads, chosen.repeats, time.perf_counter)
    setting = ", ".join(f"{name}={value:,}" for name, value in BASE.items())
    row = {"benchmark": "growth of a step", "setting": setting, "milliseconds": found, "repeats": chosen.repeats}
    publish(chosen.record, row | {"busy_cores_of_others": others()})
