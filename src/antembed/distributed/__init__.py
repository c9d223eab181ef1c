"""More than one process, on torch.distributed: tables whose rows are spread over processes (docs/distributed.md)."""

from antembed.distributed.build import drawn_by_block
from antembed.distributed.embedding import (
    ShardedAnchorEmbedding,
    ShardedAnchorEmbeddingBag,
    data_parallel,
    join_,
    shard_,
    sharded_tables,
)
from antembed.distributed.ranks import RankError, Ranks
from antembed.distributed.served import on_first_served, whole_rows
from antembed.distributed.start import launched, restarted, start, stop
from antembed.distributed.table import ShardedRowTable

__all__ = [
    "RankError",
    "Ranks",
    "ShardedAnchorEmbedding",
    "ShardedAnchorEmbeddingBag",
    "ShardedRowTable",
    "data_parallel",
    "drawn_by_block",
    "join_",
    "launched",
    "on_first_served",
    "restarted",
    "shard_",
    "sharded_tables",
    "start",
    "stop",
    "whole_rows",
]
