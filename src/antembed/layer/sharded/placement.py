"""Rows that change their holders, when a table that processes share grows: row (a·id) mod V is elsewhere for another V.

Each process sends every row that it holds, or has drawn, to its holder of the larger table. Ids do not travel: sender and
receiver know from the two spreads which rows these are, and in which order they come.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from antembed.layer.sharded.collectives import Ranks

# MERGED Where the row of an id is stored: row (a·id) mod V, cut into equal ranges, one a process.
#
# Ids are often sorted by frequency, and a range of them would make rank 0 serve most of the rows. The place does not depend on
# the number of processes, so that a checkpoint can be cut anew.

GOLDEN = (5**0.5 - 1) / 2  # its multiples are spread most evenly


@dataclass(frozen=True)
class Spread:
    """V rows over n processes."""

    V: int
    n: int

    @cached_property
    def factor(self) -> int:
        """a: coprime to V, near V times the golden ratio, and such that a·id fits into 64 bits."""
        a = max(min(int(GOLDEN * self.V), (2**63 - 1) // max(self.V, 1)), 1)
        while math.gcd(a, self.V) != 1 and a > 1:
            a -= 1
        return a

    @property
    def size(self) -> int:
        """Rows of a process; the last ones may have fewer. The cut of torch.chunk and DTensor."""
        return -(-self.V // self.n)

    def range(self, rank: int) -> tuple[int, int]:
        """The rows that a process holds."""
        return min(rank * self.size, self.V), min((rank + 1) * self.size, self.V)

    def places(self, ids: Tensor) -> Tensor:
        """ids → rows."""
        return ids.long() * self.factor % max(self.V, 1)

    def ids(self, rank: int) -> Tensor:
        """The ids whose rows a process holds, in their order."""
        return self.ids_at(torch.arange(*self.range(rank)))

    def ids_at(self, places: Tensor) -> Tensor:
        """rows → ids."""
        inverse = pow(self.factor, -1, self.V) if self.V > 1 else 0
        if inverse * self.V < 2**63:
            return places * inverse % max(self.V, 1)
        return torch.tensor([place * inverse % self.V for place in places.tolist()], dtype=torch.long)


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
