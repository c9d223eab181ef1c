"""How much worse than the dense model a small one may be, in the user's words: "1%"."""

import re

from antembed.budget import BudgetError


def parse_tolerance(text: str) -> float:
    """ "1%" → 0.01. A bare number might mean either, so the sign is required."""
    match = re.fullmatch(r"\s*(\d+\.?\d*|\.\d+)\s*%\s*", str(text))
    if match is None:
        raise BudgetError(f"{text!r} is no tolerance; say 1% or 0.5%: how much worse than the dense model the small one may be")
    return float(match[1]) / 100
