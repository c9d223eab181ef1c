"""Where a step of AnchorEmbedding goes, by the processor's time on one thread: the compiled passes and the same in torch.

python -m experiments bench step_profile [--record results/step-profile.jsonl]
"""

import time
from statistics import median

import numpy as np
import torch

from antembed.layer import lookup_kernel as anchored
from antembed.layer.optim.lazy_kernel import Groups, Step, group, read_rows, step_rows
from experiments.bench.instructions import rows_of
from experiments.race import Work, counted, parse, publish, rounded, take_turns

V, d, K, IDS = 500_000, 256, 100, 25_600


def parts() -> dict[str, Work]:
    popularity = 1 / np.arange(1, V + 1)
    ids = np.random.default_rng(0).choice(V, IDS, p=popularity / popularity.sum())
    slot, (rows, rule) = np.full(V, -1, np.int32), rows_of(V, K)
    groups: Groups = group(ids, slot)
    unique, group_of, _, _ = groups
    U = len(unique)
    anchors, arriving, out = np.ones((K, d), np.float32), np.ones((IDS, d), np.float32), np.empty((IDS, d), np.float32)
    read = anchored.look_up(groups, rows, rule, 4, anchors, out, 1)
    A, T, index = torch.from_numpy(anchors), torch.from_numpy(read[:U]), torch.from_numpy(group_of)
    summed, gradient, positions = torch.empty(U, d), np.ones((U, K), np.float32), np.arange(U + 1, dtype=np.int32)

    calls = {
        "grouping of ids": lambda: group(ids, slot),
        "look-up, compiled pass": lambda: anchored.look_up(groups, rows, rule, 4, anchors, out, 1),
        "gradients, compiled pass": lambda: anchored.gradients(groups, read, anchors, arriving, 1),
        "update and prox, compiled pass": lambda: step_rows(
            0, U, unique, positions, positions, gradient, rows, rule, 4, Step(1.0, 0.01, 1e-9)
        ),
        "look-up, part: rows up to date": lambda: read_rows(0, U, unique, read, rows, rule, 4),
        "look-up, part in torch: T·A": lambda: T @ A,
        "look-up, part in torch: to their positions": lambda: summed.index_select(0, index),
        "gradients, part: sums of equal ids": lambda: summed.zero_().index_add_(0, index, torch.from_numpy(arriving)),
        "gradients, part in torch: of T": lambda: summed @ A.T,
        "gradients, part in torch: of A": lambda: T.T @ summed,
    }
    return {name: counted(call) for name, call in calls.items()}


def main(words: list[str]) -> None:
    chosen = parse(words, __doc__, repeats=9)
    torch.set_num_threads(1)
    times = take_turns(parts(), chosen.repeats, time.process_time)
    found = {name: rounded(1e3 * median(each)) for name, each in times.items()}
    setting = f"V={V:,}, d={d}, K={K}, {IDS:,} Zipf ids, 1 thread"
    publish(
        chosen.record, {"benchmark": "parts of a step", "setting": setting, "milliseconds": found, "repeats": chosen.repeats}
    )
