"""A budget that is met while training goes on: the penalty is adjusted after each epoch, what is too much is removed."""

from collections.abc import Callable

from antembed.config.budget import Budget, BudgetError
from antembed.files import JSON

RAMP = 0.7  # share of the adjusted epochs over which the size falls to the budget
EXPONENT = 1.2  # sizes fall about as penalty^−0.7 (MovieLens 1M), so this is a little less than Newton's step
LARGEST_STEP = 3.0  # the most by which a penalty changes at once


def target(first: float, budget: float, share: float) -> float:
    """The size to be at after this share of the way from `first` to the budget, down in equal factors."""
    return min(first, budget) if share >= 1 or first <= budget else first * (budget / first) ** share


def adjusted(penalty: float, size: float, wanted: float) -> float:
    """The next penalty, when this one has led to `size`."""
    return penalty * min(max((size / wanted) ** EXPONENT, 1 / LARGEST_STEP), LARGEST_STEP)


class BudgetController:
    """The penalty that meets a budget.

    `measure` says the size of the model as it would be exported now. `aim` is where the size is led to, as a share of the
    budget: what is a little too much is removed at the end, by `trim`. `epochs`: how many are adjusted.
    """

    def __init__(self, budget: Budget, measure: Callable[[], float], penalty: float, epochs: int, aim: float):
        self.budget, self.measure, self.penalty, self.epochs, self.aim = budget, measure, penalty, epochs, aim
        self.first_size = 0.0

    def adjust(self, epoch: int, size: float) -> None:
        """After an epoch that has led to this size: the penalty of the next."""
        self.first_size = self.first_size or size
        share = (epoch + 1) / (RAMP * self.epochs)
        self.penalty = adjusted(self.penalty, size, target(self.first_size, self.aim * self.budget.amount, share))

    def trim(self, count: int, keep: Callable[[int], None]) -> None:
        """Keep as many of `count` weights as the budget allows; `keep(n)` leaves the n that are worth most."""

        def size(n: int) -> float:
            keep(n)
            return self.measure()

        if (empty := size(0)) > self.budget.amount:
            raise BudgetError(f"a budget of {self.budget} cannot be met: {empty:,.0f} are left of empty tables")
        if count == 0:
            raise BudgetError(
                f"on the way to a budget of {self.budget} every weight was lost: empty tables have {empty:,.0f}, and "
                "a few weights more than that; allow more, or take fewer anchors or dimensions"
            )
        if size(count) <= self.budget.amount:
            return
        low, high = 0, count
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if size(middle) <= self.budget.amount else (low, middle)
        if low == 0:
            raise BudgetError(f"a budget of {self.budget} leaves no weight at all: one alone makes {size(1):,.0f}; allow more")
        keep(low)

    def state(self) -> JSON:
        return {"penalty": self.penalty, "first_size": self.first_size}

    def load(self, state: JSON) -> None:
        self.penalty, self.first_size = state["penalty"], state["first_size"]
