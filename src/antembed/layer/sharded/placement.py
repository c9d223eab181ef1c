"""Rows that change their holders, when a table that processes share grows: row (a·id) mod V is elsewhere for another V.

Each process sends every row that it holds, or has drawn, to its holder of the larger table. Ids do not travel: sender and
receiver know from the two spreads which rows these are, and in which order they come.
"""

import torch
from torch import Tensor

from antembed.layer.sharded.collectives import Ranks
from antembed.layer.sharded.distributed_spread import Spread

WIDTH = 8  # columns that travel at a time: what is on its way needs memory, too


class Move:
    """From the rows of `old` and new ones, `drawn[r]` by rank r, to the rows of `new`; made and called by all processes."""

    def __init__(self, ranks: Ranks, old: Spread, drawn: list[int]):
        self.ranks, self.new = ranks, Spread(old.V + sum(drawn), ranks.size)
        ends = old.V + torch.tensor(drawn).cumsum(0)
        mine = torch.arange(int(ends[ranks.rank]) - drawn[ranks.rank], int(ends[ranks.rank]))
        places = self.new.places(torch.cat([old.ids(ranks.rank), mine]))
        self.order = places.argsort()  # by holder
        self.send = self._counts(places // max(self.new.size, 1))
        held = self.new.ids(ranks.rank)
        from_old = old.places(held.clamp(max=max(old.V - 1, 0))) // max(old.size, 1)
        sender = torch.where(held < old.V, from_old, torch.searchsorted(ends, held, right=True))
        self.receive = self._counts(sender)
        self.arrival = sender.argsort(stable=True)  # by sender; of one sender, in the order of the places

    def _counts(self, owners: Tensor) -> list[int]:
        return [int(count) for count in torch.bincount(owners, minlength=self.ranks.size)]

    def __call__(self, rows: Tensor, drawn: Tensor) -> Tensor:
        """Of (m, K) rows held here and those drawn here: the rows held here afterwards."""
        found = rows.new_empty(len(self.arrival), rows.shape[1])
        for first in range(0, rows.shape[1], WIDTH):
            some = slice(first, first + WIDTH)
            leaving = torch.cat([rows[:, some], drawn[:, some].to(rows)])[self.order]
            found[self.arrival, some] = self.ranks.swap(leaving, self.send, self.receive, "moving rows")
        return found
