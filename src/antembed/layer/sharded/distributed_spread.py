"""Where the row of an id is stored: row (a·id) mod V, cut into equal ranges, one a process.

Ids are often sorted by frequency, and a range of them would make rank 0 serve most of the rows. The place does not depend on
the number of processes, so that a checkpoint can be cut anew.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

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
