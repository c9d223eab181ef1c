"""Batches in pieces: together they are the batch, and a process fetches its own alone."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from antembed.classify.dataset import DocumentExamples
from antembed.classify.documents import documents_of
from antembed.language.dataset import Streams
from antembed.layer.optim.rules import ProximalSGD
from antembed.train.engine import PieceEngine
from antembed.train.examples import Examples, Pieces


def joined(name: str, parts: list[tuple[torch.Tensor, ...]]) -> tuple[torch.Tensor, ...]:
    """Pieces put together by each column's own rule."""
    if name == "ratings":
        return tuple(torch.cat(columns) for columns in zip(*parts, strict=True))
    if name == "text":
        words, starts, labels = zip(*parts, strict=True)
        lengths = torch.cat([own.diff() for own in starts])
        return torch.cat(words), torch.cat([torch.zeros(1, dtype=torch.long), lengths.cumsum(0)]), torch.cat(labels)
    words, begins, targets = zip(*parts, strict=True)
    after = torch.cat([own.view(some.shape) for own, some in zip(targets, words, strict=True)], 1)
    assert len({bool(begin) for begin in begins}) == 1
    return torch.cat(words, 1), begins[0], after.reshape(-1)


def source(name: str):
    random = np.random.default_rng(0)
    if name == "ratings":
        columns = (np.arange(50, dtype=np.int32), random.normal(size=50).astype(np.float32))
        return Examples(columns, random.permutation(50).astype(np.int32)[:41], threads=1)
    if name == "text":
        texts = [" ".join(random.choice(list("abcdef"), random.integers(0, 5))) for _ in range(30)]
        return DocumentExamples(documents_of(texts, ["x", "y"] * 15), random.permutation(30)[:23])
    return Streams(random.integers(0, 9, 260).astype(np.int32), length=5, first=3)


@pytest.mark.parametrize("n", [1, 3, 8])
@pytest.mark.parametrize("name", ["ratings", "text", "language"])
def test_pieces_are_the_batch(name, n):
    examples, size = source(name), 20
    batches, pieces = list(examples.batches(size)), list(examples.pieces(size, n))
    assert len(batches) == len(pieces) > 1
    for batch, cut in zip(batches, pieces, strict=True):
        parts = [cut.fetch(number) for number in range(len(cut.sizes))]
        assert cut.sizes == [len(part[-1]) for part in parts]
        assert sum(cut.sizes) == len(batch[-1])
        for whole, part in zip(batch, joined(name, parts), strict=True):
            assert torch.equal(whole, part)


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_a_process_fetches_its_own_pieces(rank):
    """Of batches in four pieces and in one, of three processes."""
    fetched: list[tuple[int, int]] = []

    def batch(number: int, n: int) -> Pieces:
        return Pieces([2] * n, lambda piece: fetched.append((number, piece)) or (weight.new_ones(2),))

    weight = torch.nn.Parameter(torch.ones(1))
    examples = SimpleNamespace(pieces=lambda size, n: iter([batch(0, 4), batch(1, 1)]))
    ranks = SimpleNamespace(rank=rank, size=3, sum=lambda values: values)
    engine = PieceEngine(
        ProximalSGD([weight], lr=0.1), lambda piece, step: (weight * piece[0]).mean(), SimpleNamespace(state=None), 4, 0, ranks
    )
    list(engine.run(examples, 8, 0, lambda step: 0.1, lambda step: 0.0))
    first = {0: [0, 3], 1: [1, 0], 2: [2, 0]}[rank]  # those without a piece look up the first with the others
    assert fetched == [(0, first[0]), (0, first[1]), (1, 0)]
