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
from experiments.race import Others, Work, parse, publish, rounded, take_turns

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
    batches, turn = np.random.default_rng(0).integers(0, V, (4, ids)), 0
    arriving = torch.full((ids, d), 1e-3)

    def work() -> int:
        nonlocal turn
        turn += 1
        layer(torch.from_numpy(batches[turn % 4])).backward(arriving)
        optimizer.step()
        optimizer.zero_grad()
        return 1

    return work


def stored(nonzeros: int) -> Work:
    V, K, d, ids = BASE.values()
    rng, n = np.random.default_rng(0), nonzeros * V
    columns, values = rng.integers(0, K, n).astype(np.uint8), np.ones(n, np.float32)
    starts, wanted = np.arange(0, n + 1, nonzeros, dtype=np.int32), rng.integers(0, V, ids)
    anchors, out, damaged = np.ones((K, d), np.float32), np.empty((ids, d), np.float32), np.full(1, -1)

    def work() -> int:
        mix_csr(0, ids, wanted, starts, columns, values, anchors, out, damaged)
        return 1

    return work


def measured(works: dict[str, Work], repeats: int, clock: object = time.process_time) -> dict[str, object]:
    for work in works.values():  # compile, allocate
        work(), work()
    return {name: rounded(1e3 * median(found)) for name, found in take_turns(works, repeats, clock).items()}


def with_threads(n: int, work: Work) -> Work:
    def set_and_work() -> int:
        torch.set_num_threads(n)
        return work()

    return set_and_work


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
