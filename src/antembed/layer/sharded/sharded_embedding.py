"""ShardedAnchorEmbedding and its bag: E = T·A with the rows of T spread over processes; every process has A."""

import torch
from torch import nn

from antembed.layer.anchor import DEFAULT_ANCHORS, AnchoredTable, AnchorEmbedding
from antembed.layer.bag import AnchorEmbeddingBag
from antembed.layer.embedding import Embedding
from antembed.layer.full import FullEmbedding
from antembed.layer.row_table import check_sizes
from antembed.layer.sharded.collectives import Ranks
from antembed.layer.sharded.draw import BlockNoise, draw_anchors, draw_rows
from antembed.layer.sharded.placement import Spread
from antembed.layer.sharded.sharded_table import ShardedRowTable


class ShardedAnchorEmbedding(AnchorEmbedding):
    """AnchorEmbedding for a T that one process cannot hold: ids (*batch) → vectors (*batch, d).

    All processes call it at the same time, each with its own ids, perhaps none, and make the same optimizer steps. Wrap the
    model in DistributedDataParallel by `data_parallel`, which leaves T alone: its gradients arrive at their owner, averaged
    over the processes as DDP does. They are row-sparse; use ProximalYogi or ProximalSGD. `seed` decides the start, whatever the
    number of processes.
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        *,
        num_anchors: int = DEFAULT_ANCHORS,
        seed: int = 0,
        ranks: Ranks | None = None,
        dtype: torch.dtype | None = None,
    ):
        Embedding.__init__(self)  # AnchoredTable would draw the whole T
        _init_shard(self, num_embeddings, embedding_dim, padding_idx, num_anchors, seed, ranks, dtype)

    def reset_parameters(self) -> None:
        raise NotImplementedError("a sharded layer is drawn by its seed; build a new one")


class ShardedAnchorEmbeddingBag(AnchorEmbeddingBag):
    """AnchorEmbeddingBag with the rows of T spread over processes; the same rules as for ShardedAnchorEmbedding."""

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        *,
        num_anchors: int = DEFAULT_ANCHORS,
        mode: str = "mean",
        include_last_offset: bool = False,
        seed: int = 0,
        ranks: Ranks | None = None,
        dtype: torch.dtype | None = None,
    ):
        if mode not in ("sum", "mean"):
            raise ValueError(f"mode is 'sum' or 'mean', not {mode!r}: a maximum does not commute with the anchors")
        Embedding.__init__(self)
        _init_shard(self, num_embeddings, embedding_dim, padding_idx, num_anchors, seed, ranks, dtype)
        self.mode, self.include_last_offset = mode, include_last_offset

    def reset_parameters(self) -> None:
        raise NotImplementedError("a sharded layer is drawn by its seed; build a new one")


def _init_shard(
    layer: AnchoredTable,
    V: int,
    d: int,
    padding_idx: int | None,
    K: int,
    seed: int,
    ranks: Ranks | None,
    dtype: torch.dtype | None,
) -> None:
    check_sizes(V, d, K, dtype)
    ranks = ranks or Ranks()
    sizes = {"num_embeddings": V, "embedding_dim": d, "num_anchors": K, "seed": seed}
    ranks.check_same(sizes | {"padding_idx": -1 if padding_idx is None else padding_idx}, "build the same layer on every rank")
    rows = draw_rows(*Spread(V, ranks.size).range(ranks.rank), V, K, seed, dtype)
    layer.rows = ShardedRowTable(rows, V, padding_idx, ranks)
    layer.rows.noise = BlockNoise(seed, 0)
    layer.anchors = nn.Parameter(draw_anchors(K, d, seed, dtype))


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
    """The opposite: the whole tables in every process; all processes call it."""
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
