"""One training step (look-up, backward, update, exact prox) on a large vocabulary with Zipf ids, against its peers.

    python benchmarks/step.py [--record results/bench.jsonl]

Peers: the full table as nn.Embedding(sparse=True) + SparseAdam, and the anchored layer with dense gradients and the prox over
all of T (the way it is usually written).
"""

import argparse

import numpy as np
import torch

import antembed as ant
from antembed.experiments.bench import interleave
from common import publish

V, d, K, IDS = 500_000, 256, 100, 25_600


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--record", help="append the result to this JSONL file")
    options.add_argument("--threads", type=int, default=2)
    options.add_argument("--repeats", type=int, default=15)
    chosen = options.parse_args()
    torch.set_num_threads(chosen.threads)
    torch.manual_seed(0)

    rng = np.random.default_rng(0)
    popularity = 1 / np.arange(1, V + 1)
    popularity /= popularity.sum()
    batches = [torch.from_numpy(rng.choice(V, IDS, p=popularity)) for _ in range(16)]
    arriving = torch.randn(IDS, d) * 1e-3  # the gradient that the rest of a model would send back

    full = torch.nn.Embedding(V, d, sparse=True)
    lazy = ant.AnchorEmbedding(V, d, num_anchors=K, sparse=True)
    dense = ant.AnchorEmbedding(V, d, num_anchors=K)
    optimizers = {
        "full, SparseAdam": (full, torch.optim.SparseAdam(full.parameters(), lr=1e-3)),
        "anchored, lazy": (lazy, ant.ProximalYogi(lazy.param_groups(l1_penalty=1e-6))),
        "anchored, dense prox": (dense, ant.ProximalYogi(dense.param_groups(l1_penalty=1e-6))),
    }
    turn = dict.fromkeys(optimizers, 0)

    def step(name: str) -> int:
        layer, optimizer = optimizers[name]
        ids = batches[turn[name] % len(batches)]
        turn[name] += 1
        layer(ids).backward(arriving)
        optimizer.step()
        optimizer.zero_grad()
        return 1

    seconds = interleave({name: lambda name=name: step(name) for name in optimizers}, chosen.repeats)
    ours = seconds["anchored, lazy"]
    publish(
        chosen.record,
        {
            "benchmark": "training step",
            "setting": f"V={V:,}, d={d}, K={K}, {IDS:,} Zipf ids",
            "milliseconds": {name: round(1e3 * s, 2) for name, s in seconds.items()},
            "ratios": {
                "full, SparseAdam": round(seconds["full, SparseAdam"] / ours, 2),
                "anchored, dense prox": round(seconds["anchored, dense prox"] / ours, 1),
            },
            "repeats": chosen.repeats,
        },
    )


if __name__ == "__main__":
    main()
