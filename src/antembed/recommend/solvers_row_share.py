"""Which rows of a side a process works on, if several descend together; what they find is handed to all of them.

Rows are T (K wide) or, before there are anchors, vectors; the anchors' systems are added up. So every process has the same
state after each turn, and one process alone has it, too, up to the order of sums.
"""

import numpy as np
import torch
import torch.distributed as dist

from antembed.layer.sharded.collectives import Ranks


class RowShare:
    """The work of this process; `ranks` is None where there is one alone."""

    def __init__(self, ranks: Ranks | None = None):
        self.ranks = ranks

    def rows(self, cuts: np.ndarray, rank: int | None = None) -> tuple[int, int]:
        """The rows that this process (or `rank`) works on: some of the parts that `cuts` are the bounds of."""
        if self.ranks is None:
            return 0, int(cuts[-1])
        parts, rank = len(cuts) - 1, self.ranks.rank if rank is None else rank
        return int(cuts[parts * rank // self.ranks.size]), int(cuts[parts * (rank + 1) // self.ranks.size])

    def gather(self, cuts: np.ndarray, *arrays: np.ndarray) -> None:
        """Take the rows of all arrays from those who have worked on them, in place."""
        if self.ranks is None:
            return
        for array in arrays:
            for rank in range(self.ranks.size):
                first, stop = self.rows(cuts, rank)
                if first < stop:
                    self._broadcast(array[first:stop], rank)

    def same(self, *arrays: np.ndarray) -> None:
        """Take these arrays from rank 0, in place: other processors round otherwise."""
        if self.ranks is not None:
            for array in arrays:
                self._broadcast(array, 0)

    def _broadcast(self, array: np.ndarray, rank: int) -> None:
        assert self.ranks is not None
        with self.ranks.reporting("sending rows"):
            dist.broadcast(torch.from_numpy(array), group=self.ranks.group, group_src=rank)

    def summed(self, array: np.ndarray) -> np.ndarray:
        """The sum over processes."""
        return array if self.ranks is None else self.ranks.sum(torch.from_numpy(array)).numpy()

    def agreed(self, number: float) -> float:
        """That of rank 0, so that all decide alike."""
        return number if self.ranks is None else float(self.ranks.from_first({"number": number})["number"])


ALONE = RowShare()
