"""Words a second of training on a corpus of Penn Treebank's shape, the whole step: table, LSTM-200, softmax, optimizer.

    python -m experiments bench language_epoch [--record results/language-speed.jsonl] [--threads 2] [--repeats 7]

plain      nn.Embedding, nn.LSTM, tied full softmax, Adam, as people write it in PyTorch
full       ours, full softmax over a T of 10 non-zeros a row (500 anchors), zeros frozen: the epochs after a budget is met
sampled    ours, 1 000 negatives, T dense (500 anchors): the epochs before
"""

import itertools
from collections.abc import Callable, Iterator

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from antembed.language.config import LanguageConfig
from antembed.language.corpus import Corpus, corpus_of
from antembed.language.dataset import make_splits
from antembed.language.task import Language
from antembed.train.options import from_options
from antembed.train.stochastic import Stochastic
from experiments.race import median_turns, parse, publish

V, TOKENS, WIDTH, ANCHORS, NONZEROS = 10_000, 929_589, 200, 500, 10
STEPS = 12  # of a contestant in its turn


def corpus(seed: int = 0) -> Corpus:
    """Words by Zipf's law, no more: a step takes as long as with real ones."""
    rng = np.random.default_rng(seed)
    share = 1 / (np.arange(V) + 2.7)
    ids = rng.choice(V, TOKENS, p=share / share.sum())
    names = np.array([f"w{n}" for n in range(V)])
    few = names[ids[:1000]].tolist()
    return corpus_of({"train": names[ids].tolist(), "validation": few, "test": few})


class Plain(nn.Module):
    """Zaremba's LSTM, tied."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.table, self.lstm = nn.Embedding(vocabulary, WIDTH), nn.LSTM(WIDTH, WIDTH, 2, dropout=0.3)
        self.bias = nn.Parameter(torch.zeros(vocabulary))
        self.state: tuple[Tensor, Tensor] | None = None

    def loss(self, words: Tensor, targets: Tensor) -> Tensor:
        if self.state is not None and self.state[0].shape[1] != words.shape[1]:
            self.state = None
        x = F.dropout(self.table(words), 0.3)
        y, (h, c) = self.lstm(x, self.state)
        self.state = (h.detach(), c.detach())
        return F.cross_entropy(F.linear(F.dropout(y, 0.3).flatten(0, 1), self.table.weight, self.bias), targets)


def plain(splits: object) -> Iterator[int]:
    model = Plain(len(splits.vocabulary))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for words, _, targets in itertools.chain.from_iterable(splits.train.batches(1400) for _ in itertools.count()):
        loss = model.loss(words, targets)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        loss.item()
        yield len(targets)


def ours(splits: object, threads: int, softmax: str) -> Iterator[int]:
    options = {"softmax": softmax, "anchors": ANCHORS, "epochs": 10, "threads": threads, "l1_penalty": 0.0}
    config = from_options(LanguageConfig, options)
    task = Language()
    solver = Stochastic(task, config, task.build(config, splits), splits)
    if softmax == "full":
        rows = solver.model.words.rows
        kept = rows.weight.topk(NONZEROS, dim=1).indices
        solver.loop.optimizer.freeze_support(rows.weight, torch.zeros_like(rows.weight).scatter_(1, kept, 1).bool())
    solver.model.train()
    for _ in itertools.count():
        engine = solver._engine()
        for examples, _ in engine.run(splits.train, 1400, 0, solver.loop.lr, solver.loop.l1):
            yield examples


def turns(steps: Iterator[int]) -> Callable[[], int]:
    return lambda: sum(itertools.islice(steps, STEPS))


def main(words: list[str]) -> None:
    given = parse(words, __doc__, threads=2, repeats=7)
    torch.set_num_threads(given.threads)
    splits = make_splits(corpus(), from_options(LanguageConfig, {"threads": given.threads}))
    contestants = {
        "plain": turns(plain(splits)),
        "full": turns(ours(splits, given.threads, "full")),
        "sampled": turns(ours(splits, given.threads, "sampled")),
    }
    seconds = median_turns(contestants, given.repeats)
    rates = {name: round(1 / found) for name, found in seconds.items()}
    ratios = {f"{name} ÷ plain": round(rates[name] / rates["plain"], 2) for name in ("full", "sampled")}
    shape = {"V": V, "d": WIDTH, "K": ANCHORS, "nonzeros": NONZEROS, "threads": given.threads, "repeats": given.repeats}
    publish(given.record, {"bench": "words a second", **shape, "words a second": rates, **ratios})
