"""Models whose tables no process draws whole: each block of rows has a generator of its own, by the seed and its number."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count

import numpy as np
import torch
from torch import Tensor

from antembed.layer.row_table import RowTable, making_rows
from antembed.layer.sharded.collectives import Ranks
from antembed.layer.sharded.placement import Spread
from antembed.layer.sharded.sharded_table import ShardedRowTable

BLOCK = 4096  # rows that are drawn together
T_DRAW, A_DRAW, DRAWS = 0, 1, 2
START, ADDED = 0, 1  # rows that a table starts with, rows that are added


@contextmanager
def drawn_by_block(seed: int, ranks: Ranks | None) -> Iterator[None]:
    """Anchored layers and full tables that are built inside start alike whatever the number of processes, one (None) among
    them. Each process has its own rows only; they look up together, also while they build."""
    numbers = count()

    def make(V: int, K: int, padding_idx: int | None, sparse: bool, dtype: torch.dtype | None, std: float | None) -> RowTable:
        number = next(numbers)
        if ranks is None:
            whole = draw_rows(0, V, V, K, seed, dtype, number, std)
            table = RowTable(whole[Spread(V, 1).places(torch.arange(V))], padding_idx, sparse)
        else:
            own = draw_rows(*Spread(V, ranks.size).range(ranks.rank), V, K, seed, dtype, number, std)
            table = ShardedRowTable(own, V, padding_idx, ranks, sparse)
        table.noise = BlockNoise(seed, number)
        return table

    with making_rows(make):
        yield


def draw_rows(
    first: int,
    stop: int,
    V: int,
    K: int,
    seed: int,
    dtype: torch.dtype | None = None,
    table: int = 0,
    std: float | None = None,
) -> Tensor:
    """Rows first … stop of a model's table number `table` as they start: N(0, std²), or |N(0, 1)|·√(2/V)."""
    rows = _normal(first, stop, K, seed, DRAWS * table + T_DRAW, START, dtype)
    return rows.abs_().mul_(math.sqrt(2 / max(V, 1))) if std is None else rows.mul_(std)


@dataclass(frozen=True)
class BlockNoise:
    """Of rows that are added later to a model's table number `table` (embedding.table.Noise): blocks of ids have generators,
    which no block of the start has."""

    seed: int
    table: int

    def normal(self, first: int, stop: int, K: int, dtype: torch.dtype) -> Tensor:
        return _normal(first, stop, K, self.seed, DRAWS * self.table + T_DRAW, ADDED, dtype)


def _normal(first: int, stop: int, K: int, seed: int, draw: int, time: int, dtype: torch.dtype | None) -> Tensor:
    """Rows first … stop of N(0, 1), each block by its own generator."""
    rows = torch.empty(stop - first, K, dtype=dtype)
    for block in range(first // BLOCK, -(-stop // BLOCK) if stop > first else 0):
        at = block * BLOCK
        drawn = torch.randn(BLOCK, K, generator=_generator(seed, draw, block, time), dtype=dtype)
        low, high = max(at, first), min(at + BLOCK, stop)
        rows[low - first : high - first] = drawn[low - at : high - at]
    return rows


def draw_anchors(K: int, d: int, seed: int, dtype: torch.dtype | None = None) -> Tensor:
    """A as it starts, |N(0, 1)|·√(2/K)."""
    return torch.randn(K, d, generator=_generator(seed, A_DRAW, 0, START), dtype=dtype).abs_().mul_(math.sqrt(2 / K))


def _generator(seed: int, draw: int, block: int, time: int) -> torch.Generator:
    state = np.random.SeedSequence((seed, draw, block, time)).generate_state(1, np.uint64)
    return torch.Generator().manual_seed(int(state[0] >> np.uint64(1)))
