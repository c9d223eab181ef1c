"""The budget of a run, in the user's words (antembed/budget.py)."""

from antembed.budget import SLACK, Budget, BudgetError, counts_bytes, parse_budget

__all__ = ["SLACK", "Budget", "BudgetError", "counts_bytes", "parse_budget"]
