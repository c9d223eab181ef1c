"""The budget of a solver: the controller of antembed/budget.py, once an epoch."""

from antembed.budget import BudgetController, adjusted, target

__all__ = ["BudgetController", "adjusted", "target"]
