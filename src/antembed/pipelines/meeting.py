"""A budget met by stochastic steps: λ2 is steered after each epoch, then the smallest weights go, and the rest is polished."""

from typing import TYPE_CHECKING

from antembed.embedding import AnchorEmbedding, keep_largest
from antembed.training import RunFolder
from antembed.training.budget import BudgetError, steered, target
from antembed.training.grower import pruned

if TYPE_CHECKING:
    from antembed.pipelines.steps import Work

RAMPED = 0.7  # share of the steered epochs over which the size falls to the budget
AIM = 1.1  # of the budget: what is a little too much goes before polishing


class Meeting:
    """The budget of a run. Sizes are those of the tables pruned as at the end: gradient noise keeps small weights alive."""

    def __init__(self, work: "Work", folder: RunFolder, epochs: int):
        self.work, self.folder, self.epochs, self.budget = work, folder, epochs, work.budget()
        self.tables = [table for table in work.tables.values() if isinstance(table, AnchorEmbedding)]

    def size(self) -> float:
        return self.work.size(self.budget.unit)

    def steer(self, epoch: int) -> dict[str, float]:
        """After an epoch: the next λ2, and the size it comes from. What was before is in the log."""
        with pruned(self.tables, self.work.settings.prune):
            size = self.size()
        before = self.folder.rows()
        first, strength = (before[0]["size"], before[-1]["strength"]) if before else (size, self.work.settings.l1)
        wanted = target(first, AIM * self.budget.amount, (epoch + 1) / (RAMPED * self.epochs))
        return {"strength": steered(strength, size, wanted), "size": size}

    def trim(self) -> None:
        """Keep as many of the largest contributions as the budget allows."""
        for table in self.tables:
            table.prune(self.work.settings.prune)
        kept = [table.rows.weight.detach().clone() for table in self.tables]

        def cut(n: int) -> float:
            for table, weight in zip(self.tables, kept, strict=True):
                table.rows.weight.data.copy_(weight)
            keep_largest(self.tables, n)
            return self.size()

        low, high = 0, sum(int(weight.count_nonzero()) for weight in kept)
        if cut(0) > self.budget.amount:
            raise BudgetError(f"a budget of {self.budget} cannot be met: {self.size():,.0f} are left of empty tables")
        if high == 0:
            raise BudgetError(
                f"on the way to a budget of {self.budget} every weight was lost: empty tables have {self.size():,.0f}, and "
                "a few weights more than that; allow more, or take fewer anchors or dimensions"
            )
        if cut(high) <= self.budget.amount:
            return
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if cut(middle) <= self.budget.amount else (low, middle)
        if low == 0:
            raise BudgetError(f"a budget of {self.budget} leaves no weight at all: one alone makes {cut(1):,.0f}; allow more")
        cut(low)
