"""A size in the user's words: "40x" (times smaller), "400k" (parameters) or "2MB" (bytes of the files)."""

import re
from dataclasses import dataclass

UNITS = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9}
SLACK = 0.02  # a budget is missed when it is exceeded by this share


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


def parse_budget(text: str, dense_bytes: float) -> Budget:
    """ "40x": the bytes of dense tables in fp32 divided by 40; "400k", "1.5M": parameters; "2MB", "40KB": bytes of files."""
    match = re.fullmatch(r"\s*(\d+\.?\d*|\.\d+)\s*(x|([kmg]?)(b?))\s*", str(text).lower())
    if match is None or float(match[1]) == 0:
        raise BudgetError(f"{text!r} is no budget; say 40x (times smaller), 400k (parameters) or 2MB (bytes of the files)")
    number = float(match[1])
    if match[2] == "x":
        return Budget(dense_bytes / number, "bytes")
    return Budget(number * UNITS[match[3]], "bytes" if match[4] else "parameters")


def counts_bytes(budget: str) -> bool:
    """Whether there is a budget, and it is one of bytes."""
    return bool(budget) and parse_budget(budget, 1.0).unit == "bytes"
