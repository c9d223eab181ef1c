"""The end of a run of several processes: rank 0 evaluates and writes, the others send it the rows that it looks up.

So no process holds the whole T. Before each exchange rank 0 says which table is read and how; the others wait for that.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from antembed.layer.sharded.collectives import RankError, Ranks
from antembed.layer.sharded.sharded_embedding import sharded_tables
from antembed.layer.sharded.sharded_table import ADD_UP, LOG_TOTAL, LOOK_UP, ShardedRowTable
from antembed.train.checkpoint import Rows

DONE, FAILED = -1, -2  # instead of the number of a table
Result = TypeVar("Result")


def on_first_served(model: nn.Module, ranks: Ranks, work: Callable[[], Result]) -> Result | None:
    """`work` on rank 0, with a model whose tables can be looked up and counted (not trained); None elsewhere, when it is
    done. What goes wrong on rank 0 is raised everywhere."""
    model.eval()  # rows are up to date from here on
    tables = list(sharded_tables(model).values())
    if not ranks.first:
        _serve(tables, ranks)
        return None
    for number, table in enumerate(tables):
        table.ask = partial(_say, ranks, number)
    try:
        result = work()
    except RankError:
        raise  # nobody is left to tell
    except BaseException:
        _say(ranks, FAILED, 0)
        raise
    finally:
        for table in tables:
            table.ask = None
    _say(ranks, DONE, 0)
    return result


@dataclass(frozen=True)
class WholeRows:
    """A shared table for the file of a checkpoint (checkpoint.Rows), read block by block in the order of the ids."""

    table: ShardedRowTable

    @property
    def dtype(self) -> torch.dtype:
        return self.table.weight.dtype

    @property
    def shape(self) -> tuple[int, int]:
        return self.table.num_embeddings, self.table.embedding_dim

    def blocks(self) -> Iterator[Tensor]:
        return self.table.blocks()


def whole_rows(model: nn.Module) -> dict[str, Rows]:
    """The shared tables of a model, by their names in a checkpoint; none if it is not shared."""
    return {f"model/{name}.weight": WholeRows(table) for name, table in sharded_tables(model).items()}


def _say(ranks: Ranks, number: int, how: int) -> list[int]:
    """What rank 0 says, in every process."""
    said = torch.tensor([number, how])
    with ranks.reporting("asking rank 0"):
        dist.broadcast(said, group=ranks.group, group_src=0)
    return [int(value) for value in said]


@torch.no_grad()
def _serve(tables: list[ShardedRowTable], ranks: Ranks) -> None:
    nothing = torch.empty(0, dtype=torch.long)
    while (said := _say(ranks, DONE, 0))[0] >= 0:
        table, how = tables[said[0]], said[1]
        if how == LOOK_UP:
            table(nothing)
        elif how == ADD_UP:
            table.count_by_column()
        else:
            assert how == LOG_TOTAL
            table.serve_log_total()
    if said[0] == FAILED:
        raise RankError("rank 0 has failed after training; its error says why")
