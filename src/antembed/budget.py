"""Budgets ("40x", "400k", "2MB"), tolerances ("1%"), and the penalty that leads to a budget while training goes on."""

import re
from collections.abc import Callable
from dataclasses import dataclass

from antembed.files import JSON

FACTORS = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9}
FEWEST = 100  # parameters: less is a unit forgotten
RAMP = 0.7  # share of the adjusted epochs over which the size falls to the budget
EXPONENT = 1.2  # sizes fall about as penalty^−0.7 (MovieLens 1M), so this is a little less than Newton's step
LARGEST_STEP = 3.0  # the most by which a penalty changes at once
SLACK = 0.02  # a budget is missed when it is exceeded by this share
MANY, CLOSE = 1 << 20, 1e-3  # weights from which on a budget is met closely, not to the last of them, and how closely
ANCHORS_SHARE = 0.28  # of the parameters: on PTB 500 were good for 410 000, 300 for 200 000, 60 for 50 000 (d = 200)


def anchors_within(parameters: float, d: int) -> int:
    """How many anchors of d numbers suit a table of so many parameters."""
    return max(round(ANCHORS_SHARE * parameters / d), 1)


class BudgetError(ValueError):
    """A budget that cannot be met, or was not."""


@dataclass(frozen=True)
class Budget:
    """So many parameters, or so many bytes of the exported files."""

    amount: float
    unit: str  # "parameters" or "bytes"

    def __str__(self) -> str:
        return f"{self.amount:,.0f} {self.unit}"

    def check(self, size: float) -> None:
        if size > (1 + SLACK) * self.amount:
            raise BudgetError(f"the result has {size:,.0f} {self.unit}, the budget is {self}; train longer, or allow more")


def parse_budget(text: str, dense_bytes: float) -> Budget:
    """ "40x": the bytes of dense tables in fp32 divided by 40; "400k", "1.5M": parameters; "2MB", "40KB": bytes of files."""
    match = re.fullmatch(r"\s*(\d+\.?\d*|\.\d+)\s*(x|([kmg]?)(b?))\s*", str(text).lower())
    if match is None or float(match[1]) == 0:
        raise BudgetError(f"{text!r} is no budget; say 40x (times smaller), 400k (parameters) or 2MB (bytes of the files)")
    number = float(match[1])
    if not match[2] and number < FEWEST:
        raise BudgetError(f"a budget of {text} is {text} parameters, too few for any table; say {text}x, {text}k or {text}KB")
    if match[2] == "x":
        return Budget(dense_bytes / number, "bytes")
    return Budget(number * FACTORS[match[3]], "bytes" if match[4] else "parameters")


def counts_bytes(budget: str) -> bool:
    """Whether there is a budget, and it is one of bytes."""
    return bool(budget) and parse_budget(budget, 1.0).unit == "bytes"


def target(first: float, budget: float, share: float) -> float:
    """The size to be at after this share of the way from `first` to the budget, down in equal factors."""
    return min(first, budget) if share >= 1 or first <= budget else first * (budget / first) ** share


def adjusted(penalty: float, size: float, wanted: float, exponent: float = EXPONENT) -> float:
    """The next penalty, when this one has led to `size`."""
    return penalty * min(max((size / wanted) ** exponent, 1 / LARGEST_STEP), LARGEST_STEP)


class BudgetController:
    """The penalty that meets a budget.

    `measure` says the size of the model as it would be exported now. `aim` is where the size is led to, as a share of the
    budget: what is a little too much is removed at the end, by `trim`. `epochs`: how many are adjusted."""

    def __init__(self, budget: Budget, measure: Callable[[], float], penalty: float, epochs: int, aim: float):
        self.budget, self.measure, self.penalty, self.epochs, self.aim = budget, measure, penalty, epochs, aim
        self.first_size, self.exponent = 0.0, EXPONENT

    def wanted(self, epoch: int) -> float:
        """The size to be at after this epoch."""
        return target(self.first_size, self.aim * self.budget.amount, (epoch + 1) / (RAMP * self.epochs))

    def adjust(self, epoch: int, size: float) -> None:
        """After an epoch that has led to this size: the penalty of the next."""
        self.first_size = self.first_size or size
        self.penalty = adjusted(self.penalty, size, self.wanted(epoch), self.exponent)

    def trim(self, count: int, keep: Callable[[int], None]) -> None:
        """Keep as many of `count` weights as the budget allows; `keep(n)` leaves the n that are worth most."""

        def size(n: int) -> float:
            keep(n)
            return self.measure()

        if (empty := size(0)) > self.budget.amount:
            raise BudgetError(f"a budget of {self.budget} cannot be met: {empty:,.0f} are left of empty tables; allow more")
        if count == 0:
            raise BudgetError(
                f"on the way to a budget of {self.budget} every weight was lost: empty tables have {empty:,.0f}, and "
                "a few weights more than that; allow more, or take fewer anchors or dimensions"
            )
        if (full := size(count)) <= self.budget.amount:
            return
        low = self._most_within(size, (0, empty), (count, full))
        if low == 0:
            raise BudgetError(f"a budget of {self.budget} leaves no weight at all: one alone makes {size(1):,.0f}; allow more")
        keep(low)

    def _most_within(self, size: Callable[[int], float], low: tuple[int, float], high: tuple[int, float]) -> int:
        """Between these (weights, size): the most weights whose size is within the budget. From MANY on, a number close to it:
        sizes are nearly linear, so a few measurements are enough where each takes seconds."""
        near, turn = high[0] > MANY, 0
        wanted = (1 - CLOSE / 2) * self.budget.amount
        while high[0] - low[0] > 1 and not (near and low[1] >= (1 - CLOSE) * self.budget.amount):
            straight = near and turn % 3 < 2 and high[1] > low[1]
            share = (wanted - low[1]) / (high[1] - low[1]) if straight else 0.5
            n = min(max(low[0] + int(share * (high[0] - low[0])), low[0] + 1), high[0] - 1)
            found = n, size(n)
            low, high = (found, high) if found[1] <= self.budget.amount else (low, found)
            turn += 1
        return low[0]

    def state(self) -> JSON:
        return {"penalty": self.penalty, "first_size": self.first_size}

    def load(self, state: JSON) -> None:
        self.penalty, self.first_size = state["penalty"], state["first_size"]


def parse_tolerance(tolerance: str | float) -> float:
    """ "1%" or the number 0.01 → 0.01. Text without the sign might mean either, so the sign is required."""
    match = re.fullmatch(r"\s*(\d+\.?\d*|\.\d+)\s*%\s*", tolerance) if isinstance(tolerance, str) else None
    found = float(match[1]) / 100 if match else tolerance if isinstance(tolerance, float) else -1.0
    if not 0 <= found < 1:
        raise BudgetError(f"{tolerance!r} is no tolerance; say 1% or 0.5%: how much worse than the dense model it may be")
    return found
