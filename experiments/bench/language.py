"""The two ends of a language model with a large vocabulary, side by side with what people take instead.

    python -m experiments bench language [--threads 2] [--repeats 5] [--only step|logits]

logits     256 states against 267,735 words: `table.scores` of a file with a sparse T, and h·Eᵀ with a dense E (and their
           memory); and what perplexity needs, the log of Σ exp(score), without the scores
step       sampled softmax, 8,192 words and 4,096 negatives, the network left out: ours with Yogi's lazy rows (and the memory
           that it takes, beside T and its two moments), and nn.Embedding with SparseAdam; beside the full softmax (of 512
           words, times 16) and the adaptive softmax, both without their optimizer's step
"""

import resource
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import antembed as ant
from antembed.language.model import LanguageModel, Network, State
from antembed.language.softmax import Noise, Sampled
from antembed.language.softmax_kernel import sparse_log_totals
from antembed.layer.anchor import AnchorEmbedding
from antembed.tables.number_formats import Nonzeros
from antembed.tables.save import read_table, serialized
from experiments.race import counted, median_turns, parse, publish

V, D, K, NONZEROS = 267_735, 400, 500, 10
WORDS, NEGATIVES, STATES = 8192, 4096, 256
FEWER = 16  # words of the full softmax: all scores of all words are 9 GB


def turns(contestants: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Median seconds of each, in turns."""
    return median_turns({name: counted(run) for name, run in contestants.items()}, repeats)


def peak_memory() -> int:
    """Bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def logits(threads: int, repeats: int) -> dict[str, object]:
    rng = np.random.default_rng(0)
    columns = np.sort(rng.integers(0, K, (V, NONZEROS)).astype(np.int16), 1).reshape(-1)
    values = rng.random(V * NONZEROS).astype(np.float32)
    starts = np.arange(0, V * NONZEROS + 1, NONZEROS, dtype=np.int32)
    A, hidden = rng.normal(size=(K, D)).astype(np.float32), rng.normal(size=(STATES, D)).astype(np.float32)
    bias = np.zeros(V, np.float32)
    E, h = torch.from_numpy(rng.normal(size=(V, D)).astype(np.float32)), torch.from_numpy(hidden)
    T = Nonzeros(K, np.full(V, NONZEROS, np.uint16), columns.astype(np.uint16), values)
    table = read_table(b"".join(bytes(piece) for piece in serialized(T, A, encoding="csr")))
    found = turns(
        {
            "sparse": lambda: table.scores(hidden),
            "dense": lambda: h @ E.T,
            "sparse, log of the total": lambda: sparse_log_totals(hidden @ A.T, (starts, columns, values), bias, threads),
            "dense, log of the total": lambda: (h @ E.T).logsumexp(1),
        },
        repeats,
    )
    memory = {"sparse": table.size, "dense": E.numel() * 4}
    ratios = {
        "times faster": found["dense"] / found["sparse"],
        "times faster, log of the total": found["dense, log of the total"] / found["sparse, log of the total"],
        "times less memory": memory["dense"] / memory["sparse"],
    }
    shape = {"V": V, "d": D, "K": K, "nonzeros": NONZEROS, "states": STATES, "threads": threads}
    return {"bench": "logits", **shape, "seconds": found, "bytes": memory, **ratios}


class Nothing(Network):
    def forward(self, x: Tensor, state: State | None) -> tuple[Tensor, State]:
        return x, ()


def steps(repeats: int) -> dict[str, object]:
    rng = np.random.default_rng(0)
    counts = 1e7 / (np.arange(V) + 10)
    share = counts / counts.sum()
    ids = torch.from_numpy(rng.choice(V, WORDS, p=share))
    targets = torch.from_numpy(np.maximum(rng.choice(V, WORDS, p=share), 1))
    noise = Noise(counts, "unigram", NEGATIVES)
    sampled = Sampled(noise)
    before = peak_memory()
    model = LanguageModel(AnchorEmbedding(V, D, 0, num_anchors=K, sparse=True), Nothing())
    optimizer = ant.ProximalYogi(ant.param_groups(model, l1_penalty=1e-6), lr=1e-3)

    def ours() -> None:
        sampled(model, model.words(ids), targets).backward()
        optimizer.step()
        optimizer.zero_grad()

    for _ in range(3):
        ours()
    taken = peak_memory() - before
    table, bias = nn.Embedding(V, D, sparse=True), nn.Embedding(V, 1, sparse=True)
    others = torch.optim.SparseAdam([*table.parameters(), *bias.parameters()], lr=1e-3)

    def full_table() -> None:
        negatives = noise.draw()
        states = table(ids)
        right = (states * table(targets)).sum(-1) + bias(targets)[:, 0] - noise.log_expected[targets]
        wrong = states @ table(negatives).T + bias(negatives)[:, 0] - noise.log_expected[negatives]
        wrong = wrong.masked_fill(targets[:, None] == negatives, -torch.inf)
        F.cross_entropy(torch.cat([right[:, None], wrong], 1), torch.zeros_like(targets)).backward()
        others.step()
        others.zero_grad()

    adaptive = nn.AdaptiveLogSoftmaxWithLoss(D, V, [V // 50, V // 10])
    weights = [*adaptive.parameters()]

    def adaptive_softmax() -> None:
        adaptive(table(ids).detach(), targets).loss.backward()
        for weight in weights:
            weight.grad = None

    weight = nn.Parameter(table.weight.detach())

    def full_softmax() -> None:
        some = slice(WORDS // FEWER)
        F.cross_entropy(weight[ids[some]] @ weight.T, targets[some]).backward()
        weight.grad = None

    contestants = {"ours": ours, "nn.Embedding, SparseAdam": full_table, "adaptive softmax": adaptive_softmax}
    found = turns(contestants | {"full softmax": full_softmax}, repeats)
    found["full softmax"] *= FEWER
    state = 3 * 4 * V * K  # T, momentum, second moment
    memory = {"T and state": state, "memory": taken, "memory ÷ T and state": round(taken / state, 2)}
    return {"bench": "step", "V": V, "d": D, "K": K, "words": WORDS, "negatives": NEGATIVES, "seconds": found, **memory}


def main(words: list[str]) -> None:
    given = parse(words, __doc__, threads=2, repeats=5, only=None)
    torch.set_num_threads(given.threads)
    if given.only != "logits":
        publish(given.record, steps(given.repeats))  # first: its memory is that of the process so far
    if given.only != "step":
        publish(given.record, logits(given.threads, given.repeats))
