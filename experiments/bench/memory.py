"""Peak memory of training a table of five million objects, against the full table with SparseAdam.

    python -m experiments bench memory [--record results/bench.jsonl]

Each contestant trains in a process of its own; what torch and numba take without any table is measured the same way and
taken off.
"""

import resource
import subprocess

import torch

import antembed as ant
from experiments.race import child, parse, publish

V, d, K, IDS, STEPS = 5_000_000, 64, 16, 25_600, 10


def train(kind: str) -> None:
    torch.manual_seed(0)
    V_here = V if kind != "nothing" else 1000
    if kind == "full":
        layer = torch.nn.Embedding(V_here, d, sparse=True)
        optimizer = torch.optim.SparseAdam(layer.parameters(), lr=1e-3)
    else:
        layer = ant.AnchorEmbedding(V_here, d, num_anchors=K, sparse=True)
        optimizer = ant.ProximalYogi(layer.param_groups(l1_penalty=1e-6))
    for _ in range(STEPS):
        ids = (torch.rand(IDS).pow(3) * V_here).long()
        layer(ids).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)  # KiB on Linux


def main(words: list[str]) -> None:
    chosen = parse(words, __doc__, one=None)
    if chosen.one:
        train(chosen.one)
        return
    peak = {}
    for kind in ("nothing", "full", "anchored"):
        done = subprocess.run([*child("memory"), "--one", kind], check=True, capture_output=True, text=True)
        peak[kind] = int(done.stdout) / 1024
    table = {kind: peak[kind] - peak["nothing"] for kind in ("full", "anchored")}
    publish(
        chosen.record,
        {
            "benchmark": "training memory",
            "setting": f"V={V:,}, d={d}, K={K}",
            "peak_MiB": {kind: round(value) for kind, value in peak.items()},
            "ratios": {
                "full, SparseAdam": round(peak["full"] / peak["anchored"], 2),
                "full, SparseAdam, tables alone": round(table["full"] / table["anchored"], 2),
            },
        },
    )
