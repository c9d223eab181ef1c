"""Budgets in words."""

import pytest

from antembed.budget import Budget, BudgetError, parse_budget
from antembed.recommend.config import RatingsConfig
from antembed.train.options import from_options


@pytest.mark.parametrize(
    ("text", "amount", "unit"),
    [("40x", 25.0, "bytes"), ("2.5X", 400.0, "bytes"), ("400k", 4e5, "parameters"), ("1.5M", 1.5e6, "parameters"),
     ("800", 800.0, "parameters"), ("2MB", 2e6, "bytes"), ("40 KB", 4e4, "bytes"), ("500b", 500.0, "bytes")],
)  # fmt: skip
def test_budgets_in_words(text, amount, unit):
    assert parse_budget(text, 1000.0) == Budget(amount, unit)


@pytest.mark.parametrize("text", ["", "x", "0x", "-3k", "2MiB", "40%", "many"])
def test_what_is_no_budget(text):
    with pytest.raises(BudgetError, match=r"is no budget; say 40x .*, 400k .* or 2MB"):
        parse_budget(text, 1000.0)


def test_a_forgotten_unit():
    with pytest.raises(BudgetError, match="a budget of 40 is 40 parameters, too few for any table; say 40x, 40k or 40KB"):
        parse_budget("40", 1.0)
    assert parse_budget("100", 1.0) == Budget(100, "parameters")


def test_a_budget_is_missed_from_two_percent_on():
    Budget(100, "bytes").check(102)
    with pytest.raises(BudgetError, match="the result has 103 bytes, the budget is 100 bytes"):
        Budget(100, "bytes").check(103)


@pytest.mark.parametrize(
    ("more", "wrong"),
    [({"l1_penalty": 0.0}, "starts from l1_penalty, which must be > 0, got 0.0"),
     ({"max_nonzeros": 9}, "a budget and max_nonzeros=9 both say how many weights are left"),
     ({"embedding": "full"}, "a budget is for --embedding anchor, not full"),
     ({"anchors": "auto"}, "takes no budget with anchors auto; give --anchors")],
)  # fmt: skip
def test_budgets_that_make_no_sense(more, wrong):
    with pytest.raises(ValueError, match=wrong):
        from_options(RatingsConfig, {"budget": "10x"} | more)


@pytest.mark.parametrize("solver", ["stochastic", "coordinate_descent"])
def test_bytes_are_counted_in_int8_and_packed_from_every_entrance(solver):
    def forms(**options):
        config = from_options(RatingsConfig, {"solver": solver} | options)
        return config.values, config.encoding

    assert forms() == ("fp32", "auto")
    assert forms(budget="2MB") == forms(budget="40x") == ("int8", "packed")
    assert forms(budget="2M") == ("fp32", "auto")
    assert forms(budget="2MB", values="fp16", encoding="csr") == ("fp16", "csr")
