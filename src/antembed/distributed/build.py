"""Models whose T no process draws as a whole: each block of rows has a generator of its own, by the seed and its number."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

import numpy as np
import torch
from torch import Tensor

from antembed.distributed.ranks import Ranks
from antembed.distributed.spread import Spread
from antembed.distributed.table import ShardedRowTable
from antembed.embedding.new_rows import making_rows
from antembed.embedding.table import RowTable

BLOCK = 4096  # rows that are drawn together
T_DRAW, A_DRAW, DRAWS = 0, 1, 2


@contextmanager
def drawn_by_block(seed: int, ranks: Ranks | None) -> Iterator[None]:
    """Anchored layers that are built inside start with the same T whatever the number of processes, one (None) among them. Each
    process has its own rows only; they look up together, also while they build."""
    numbers = count()

    def make(V: int, K: int, padding_idx: int | None, sparse: bool, dtype: torch.dtype | None) -> RowTable:
        table = next(numbers)
        if ranks is None:
            whole = draw_rows(0, V, V, K, seed, dtype, table)
            return RowTable(whole[Spread(V, 1).places(torch.arange(V))], padding_idx, sparse)
        own = draw_rows(*Spread(V, ranks.size).range(ranks.rank), V, K, seed, dtype, table)
        return ShardedRowTable(own, V, padding_idx, ranks, sparse)

    with making_rows(make):
        yield


def draw_rows(first: int, stop: int, V: int, K: int, seed: int, dtype: torch.dtype | None = None, table: int = 0) -> Tensor:
    """Rows first … stop of a model's T number `table` as they start, |N(0, 1)|·√(2/V)."""
    rows = torch.empty(stop - first, K, dtype=dtype)
    for block in range(first // BLOCK, -(-stop // BLOCK) if stop > first else 0):
        at = block * BLOCK
        drawn = torch.randn(BLOCK, K, generator=_generator(seed, DRAWS * table + T_DRAW, block), dtype=dtype)
        low, high = max(at, first), min(at + BLOCK, stop)
        rows[low - first : high - first] = drawn[low - at : high - at]
    return rows.abs_().mul_(math.sqrt(2 / max(V, 1)))


def draw_anchors(K: int, d: int, seed: int, dtype: torch.dtype | None = None) -> Tensor:
    """A as it starts, |N(0, 1)|·√(2/K)."""
    return torch.randn(K, d, generator=_generator(seed, A_DRAW, 0), dtype=dtype).abs_().mul_(math.sqrt(2 / K))


def _generator(seed: int, draw: int, block: int) -> torch.Generator:
    state = np.random.SeedSequence((seed, draw, block)).generate_state(1, np.uint64)
    return torch.Generator().manual_seed(int(state[0] >> np.uint64(1)))
