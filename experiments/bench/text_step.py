"""One training step of the paper's network on a batch of 256 documents with Zipf words, against nn.Embedding and nn.Conv1d.

    python -m experiments bench text_step [--record results/text-step.jsonl]

All do look-up, filters, backward and update. Peers: nn.Embedding and nn.Conv1d over documents padded to the longest of them,
with SparseAdam and Adam (`plain`) or Adam throughout (`plain, dense Adam`, as most write it).
"""

import itertools
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

import antembed as ant
from antembed.classify.model import TextCNN
from experiments.race import Work, counted, median_turns, parse, publish

V, d, K, DOCUMENTS, WIDTHS, FILTERS, CLASSES = 62_000, 256, 10, 256, (3, 4, 5), 100, 4
Batch = tuple[Tensor, Tensor, Tensor]


class Plain(nn.Module):
    """What one writes first."""

    def __init__(self, sparse: bool):
        super().__init__()
        self.embedding = nn.Embedding(V, d, 0, sparse=sparse)
        self.filters = nn.ModuleList(nn.Conv1d(d, FILTERS, width) for width in WIDTHS)
        self.head = nn.Linear(FILTERS * len(WIDTHS), CLASSES)

    def forward(self, padded: Tensor) -> Tensor:
        vectors = self.embedding(padded).transpose(1, 2)
        pooled = torch.cat([conv(vectors).amax(2) for conv in self.filters], 1)
        return self.head(nn.functional.dropout(pooled.relu(), 0.5))


def batches(n: int) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Words, starts, and the same padded; lengths as in AG-News."""
    rng = np.random.default_rng(0)
    popularity = 1 / np.arange(1, V)
    popularity /= popularity.sum()
    made = []
    for _ in range(n):
        lengths = np.clip(rng.normal(36, 11, DOCUMENTS).astype(int), 5, 100)
        starts = torch.from_numpy(np.concatenate([[0], np.cumsum(lengths)]))
        words = torch.from_numpy(1 + rng.choice(V - 1, int(starts[-1]), p=popularity).astype(np.int32))
        padded = nn.utils.rnn.pad_sequence([part.long() for part in words.split(lengths.tolist())], batch_first=True)
        made.append((words, starts, padded))
    return made


def contestant(name: str) -> Callable[[Batch], Tensor]:
    """→ a function that takes one step with a batch."""
    torch.manual_seed(0)
    if name.startswith("plain"):
        model: nn.Module = Plain(sparse=name == "plain")
        rest = [p for n, p in model.named_parameters() if not n.startswith("embedding")]
        table = torch.optim.SparseAdam if name == "plain" else torch.optim.Adam
        optimizers = [table(model.embedding.parameters(), lr=1e-3), torch.optim.Adam(rest, lr=1e-3)]
    else:
        full, anchored = ant.baselines.FullEmbedding, partial(ant.AnchorEmbedding, num_anchors=K)
        model = TextCNN((full if name == "full" else anchored)(V, d, 0, sparse=True), CLASSES)
        optimizers = [ant.ProximalYogi(ant.param_groups(model, l1_penalty=1e-5), lr=1e-3, eps=1e-5, initial_second=1e-10)]
    labels = torch.randint(0, CLASSES, (DOCUMENTS,))

    def step(batch: Batch) -> Tensor:
        words, starts, padded = batch
        loss = nn.functional.cross_entropy(model(padded) if name.startswith("plain") else model(words, starts), labels)
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        return loss

    return step


def main(words: list[str]) -> None:
    chosen = parse(words, __doc__, threads=2, repeats=15)
    torch.set_num_threads(chosen.threads)
    made, names = batches(8), ("plain", "plain, dense Adam", "full", f"anchored, K={K}")

    def steps(name: str) -> Work:
        step, order = contestant(name), itertools.cycle(made)
        return counted(lambda: step(next(order)))

    seconds = median_turns({name: steps(name) for name in names}, chosen.repeats)
    publish(
        chosen.record,
        {
            "benchmark": "step of the text network",
            "setting": f"V={V:,}, d={d}, {DOCUMENTS} documents of some 36 words, {chosen.threads} threads",
            "milliseconds": {name: round(1e3 * s, 1) for name, s in seconds.items()},
            "ratios": {ours: {peer: round(seconds[peer] / seconds[ours], 2) for peer in names[:2]} for ours in names[2:]},
            "repeats": chosen.repeats,
        },
    )
