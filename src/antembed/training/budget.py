"""A budget in the user's words ("40x", "400k", "2MB"), and the price that meets it, found while training goes on."""

import re
from dataclasses import dataclass

UNITS = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9}
SLACK = 0.02  # a budget is missed when it is exceeded by this share
EXPONENT = 1.2  # sizes fall about as price^−0.7 (MovieLens 1M), so this is a little less than Newton's step
STEP = 3.0  # the most by which a price changes at once


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
        """Raise if a final size misses it."""
        if size > (1 + SLACK) * self.amount:
            raise BudgetError(f"the result has {size:,.0f} {self.unit}, the budget is {self}; train longer, or allow more")


def parse_budget(text: str, full_bytes: float) -> Budget:
    """ "40x": the full tables' file in fp32 (`full_bytes`) divided by 40; "400k", "1.5M": parameters; "2MB", "40KB": bytes."""
    match = re.fullmatch(r"\s*(\d+\.?\d*|\.\d+)\s*(x|([kmg]?)(b?))\s*", str(text).lower())
    if match is None or float(match[1]) == 0:
        raise BudgetError(f"{text!r} is no budget; say 40x (times smaller), 400k (parameters) or 2MB (bytes of the files)")
    number = float(match[1])
    if match[2] == "x":
        return Budget(full_bytes / number, "bytes")
    return Budget(number * UNITS[match[3]], "bytes" if match[4] else "parameters")


def target(start: float, budget: float, share: float) -> float:
    """The size to be at after this share of the way from `start` to the budget, down in equal factors."""
    return min(start, budget) if share >= 1 or start <= budget else start * (budget / start) ** share


def steered(price: float, size: float, wanted: float) -> float:
    """The next price, when this one has led to `size`."""
    return price * min(max((size / wanted) ** EXPONENT, 1 / STEP), STEP)
