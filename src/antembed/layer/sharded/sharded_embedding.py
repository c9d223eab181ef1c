"""ShardedAnchorEmbedding: E = T·A with the rows of T spread over processes; every process has A.

No process draws all of T: each block of rows has a generator of its own, by the seed and its number.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from typing import NoReturn

import numpy as np
import torch
from torch import Tensor, nn

from antembed.layer.anchor import DEFAULT_ANCHORS, AnchorEmbedding
from antembed.layer.bag import AnchorEmbeddingBag
from antembed.layer.embedding import Embedding
from antembed.layer.full import FullEmbedding
from antembed.layer.row_table import RowTable, check_sizes, making_rows
from antembed.layer.sharded.collectives import Ranks
from antembed.layer.sharded.sharded_table import ShardedRowTable, Spread

BLOCK = 4096  # rows that are drawn together
T_DRAW, A_DRAW, DRAWS = 0, 1, 2  # numbers of the random streams of a table, and how many there are
START, ADDED = 0, 1  # rows that a table starts with, rows that are added


class ShardedAnchorEmbedding(AnchorEmbedding):
    """AnchorEmbedding for a T that one process cannot hold: ids (*batch) → vectors (*batch, d).

    All processes call it at the same time, each with its own ids, perhaps none, and make the same optimizer steps. Wrap the
    model in DistributedDataParallel by `data_parallel`, which leaves T alone: its gradients arrive at their owner, averaged
    over the processes as DDP does. They are row-sparse; use ProximalYogi or ProximalSGD. `seed` decides the start, whatever the
    number of processes. (Bags: AnchorEmbeddingBag in `drawn_by_block`, or `shard_`.)"""

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        *,
        seed: int = 0,
        ranks: Ranks | None = None,
        num_anchors: int = DEFAULT_ANCHORS,
        dtype: torch.dtype | None = None,
    ):
        Embedding.__init__(self)  # AnchoredTable would draw all of T
        V, d, K = num_embeddings, embedding_dim, num_anchors
        check_sizes(V, d, K, dtype)
        ranks = ranks or Ranks()
        sizes = {"num_embeddings": V, "embedding_dim": d, "num_anchors": K, "seed": seed}
        sizes["padding_idx"] = -1 if padding_idx is None else padding_idx
        ranks.check_same(sizes, "build the same layer on every rank")
        rows = draw_rows(*Spread(V, ranks.size).range(ranks.rank), V, K, seed, dtype)
        self.rows = ShardedRowTable(rows, V, padding_idx, ranks)
        self.rows.noise = partial(normal_rows, seed, 0, ADDED)
        self.anchors = nn.Parameter(draw_anchors(K, d, seed, dtype))

    def reset_parameters(self) -> NoReturn:
        raise NotImplementedError("a sharded layer is drawn by its seed; build a new one")


@contextmanager
def drawn_by_block(seed: int, ranks: Ranks | None) -> Iterator[None]:
    """Anchored layers and full tables that are built inside start alike whatever the number of processes, one (None) among
    them. Each process has its own rows only; they look up together, also while they build."""
    numbers = count()

    def make(V: int, K: int, padding_idx: int | None, sparse: bool, dtype: torch.dtype | None, std: float | None) -> RowTable:
        number = next(numbers)
        if ranks is None:
            rows = draw_rows(0, V, V, K, seed, dtype, number, std)
            table = RowTable(rows[Spread(V, 1).rows(torch.arange(V))], padding_idx, sparse)
        else:
            own = draw_rows(*Spread(V, ranks.size).range(ranks.rank), V, K, seed, dtype, number, std)
            table = ShardedRowTable(own, V, padding_idx, ranks, sparse)
        table.noise = partial(normal_rows, seed, number, ADDED)
        return table

    with making_rows(make):
        yield


def draw_rows(
    first: int, stop: int, V: int, K: int, seed: int, dtype: torch.dtype | None = None, table: int = 0, std: float | None = None
) -> Tensor:
    """Rows first … stop of a model's table number `table` as they start: N(0, std²), or |N(0, 1)|·√(2/V)."""
    rows = normal_rows(seed, table, START, first, stop, K, dtype)
    return rows.abs_().mul_(math.sqrt(2 / max(V, 1))) if std is None else rows.mul_(std)


def normal_rows(seed: int, table: int, time: int, first: int, stop: int, K: int, dtype: torch.dtype | None) -> Tensor:
    """Ids first … stop of N(0, 1) for a model's table number `table`: each block of ids has a generator of its own, and those
    that are ADDED later have others than those at the START."""
    rows = torch.empty(stop - first, K, dtype=dtype)
    for block in range(first // BLOCK, -(-stop // BLOCK) if stop > first else 0):
        at = block * BLOCK
        drawn = torch.randn(BLOCK, K, generator=_generator(seed, DRAWS * table + T_DRAW, block, time), dtype=dtype)
        low, high = max(at, first), min(at + BLOCK, stop)
        rows[low - first : high - first] = drawn[low - at : high - at]
    return rows


def draw_anchors(K: int, d: int, seed: int, dtype: torch.dtype | None = None) -> Tensor:
    """A as it starts, |N(0, 1)|·√(2/K)."""
    return torch.randn(K, d, generator=_generator(seed, A_DRAW, 0, START), dtype=dtype).abs_().mul_(math.sqrt(2 / K))


def _generator(seed: int, draw: int, block: int, time: int) -> torch.Generator:
    state = np.random.SeedSequence((seed, draw, block, time)).generate_state(1, np.uint64)
    return torch.Generator().manual_seed(int(state[0] >> np.uint64(1)))


def shard_(model: nn.Module, ranks: Ranks | None = None) -> nn.Module:
    """Cut the tables of a model that every process has made alike; each keeps its own rows."""
    ranks = ranks or Ranks()
    for name, layer in model.named_modules():
        if not isinstance(layer, Embedding):
            continue
        if not isinstance(layer, AnchorEmbedding | AnchorEmbeddingBag | FullEmbedding):
            raise ValueError(
                f"{name or 'the model'} is a {type(layer).__name__}, which cannot be cut into rows; use AnchorEmbedding"
            )
        if not layer.rows.shared:
            layer.rows = ShardedRowTable.cut(layer.rows, ranks)
    return model


def join_(model: nn.Module) -> nn.Module:
    """The opposite: full tables in every process; all processes call it."""
    for layer in model.modules():
        if isinstance(layer, AnchorEmbedding | AnchorEmbeddingBag | FullEmbedding) and isinstance(layer.rows, ShardedRowTable):
            layer.rows = layer.rows.joined()
    return model


def sharded_tables(model: nn.Module) -> dict[str, ShardedRowTable]:
    """The shared tables of a model, by name."""
    return {name: table for name, table in model.named_modules() if isinstance(table, ShardedRowTable)}


def data_parallel(model: nn.Module, **options: object) -> nn.parallel.DistributedDataParallel:
    """The model under DistributedDataParallel, which leaves the shared tables alone."""
    names = [f"{name}.weight" if name else "weight" for name in sharded_tables(model)]
    nn.parallel.DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, names)
    return nn.parallel.DistributedDataParallel(model, **options)  # type: ignore[arg-type]
