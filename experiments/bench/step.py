"""One training step (look-up, backward, update, exact prox) on a large vocabulary, against its peers.

    python -m experiments bench step [--busy 1] [--record results/bench.jsonl]

Peers: the full table as nn.Embedding(sparse=True) + SparseAdam, and the anchored layer with dense gradients and the prox over
all of T (the way it is usually written; on Zipf ids only, it takes long). The limit is to move the touched rows of T and its
two moments, to write the vectors and to read their gradients, and to do nothing with them. `--busy` is the number of other
processes that compute all the time.
"""

import itertools
from collections.abc import Callable

import numpy as np
import torch
from numba import njit

import antembed as ant
from antembed.native.threads import parallel_for
from experiments.race import Others, Work, busy_processes, compare, counted, parse, publish, take_turns, training

V, d, IDS = 500_000, 256, 25_600
SETTINGS = ((100, "Zipf"), (128, "uniform"))
OURS, PEER, DENSE, LIMIT = "anchored, lazy", "full, SparseAdam", "anchored, dense prox", "moving rows and vectors"


def batches_of(kind: str) -> list[torch.Tensor]:
    rng = np.random.default_rng(0)
    popularity = 1 / np.arange(1, V + 1) if kind == "Zipf" else np.ones(V)
    return [torch.from_numpy(rng.choice(V, IDS, p=popularity / popularity.sum())) for _ in range(16)]


@njit(nogil=True)
def move(start, stop, ids, table):
    for i in ids[start:stop]:
        row = table[i]
        for k in range(row.shape[0]):
            row[k] += np.float32(1)


@njit(nogil=True)
def write_and_read(start, stop, vectors, gradients):
    for p in range(start, stop):
        target, source = vectors[p], gradients[p]
        for k in range(target.shape[0]):
            target[k] = source[k]


def moving(K: int, batches: list[torch.Tensor], threads: int) -> Work:
    """The rows of T and of its moments, and the vectors of a batch."""
    tables = [np.ones((V, K), np.float32) for _ in range(3)]
    vectors, gradients = np.ones((2, IDS, d), np.float32)
    distinct = [np.unique(batch.numpy()) for batch in batches]
    order = itertools.cycle(distinct)

    def move_all() -> None:
        ids = next(order)
        for table in tables:
            parallel_for(on(move, ids, table), len(ids), K, threads)
        parallel_for(on(write_and_read, vectors, gradients), IDS, d, threads)

    return counted(move_all)


def on(kernel: Callable[..., None], *arrays: np.ndarray) -> Callable[[int, int], None]:
    return lambda start, stop: kernel(start, stop, *arrays)


def main(words: list[str]) -> None:
    chosen = parse(words, __doc__, threads=2, repeats=15, busy=0, no_dense=False)
    torch.set_num_threads(chosen.threads)
    torch.manual_seed(0)
    for K, kind in SETTINGS:
        batches, arriving = batches_of(kind), torch.randn(IDS, d) * 1e-3
        lazy, full = ant.AnchorEmbedding(V, d, num_anchors=K, sparse=True), torch.nn.Embedding(V, d, sparse=True)
        contestants = {
            OURS: training(lazy, ant.ProximalYogi(lazy.param_groups(l1_penalty=1e-6)), batches, arriving),
            PEER: training(full, torch.optim.SparseAdam(full.parameters(), lr=1e-3), batches, arriving),
            LIMIT: moving(K, batches, chosen.threads),
        }
        if kind == "Zipf" and not chosen.no_dense:
            dense = ant.AnchorEmbedding(V, d, num_anchors=K)
            contestants[DENSE] = training(dense, ant.ProximalYogi(dense.param_groups(l1_penalty=1e-6)), batches, arriving)
        for work in contestants.values():  # compile, allocate
            work(), work()
        with busy_processes(chosen.busy):
            others, times = Others(), take_turns(contestants, chosen.repeats)
            busy_cores = others()
        name = "training step" + ", uniform ids" * (kind == "uniform") + f", {chosen.busy} busy" * (chosen.busy > 0)
        publish(
            chosen.record,
            {
                "benchmark": name,
                "setting": f"V={V:,}, d={d}, K={K}, {IDS:,} {kind} ids, {chosen.threads} threads",
                "rows": compare(times, OURS, LIMIT, chosen.busy),
                "busy_cores_of_others": busy_cores,
                "repeats": chosen.repeats,
            },
        )
