"""A softmax over a table that processes share: what one process finds with the whole table, and T does not travel."""

from pathlib import Path
from unittest import mock

import pytest
import torch
from processes import succeed
from torch import Tensor

from antembed.layer.row_table import RowTable
from antembed.layer.sharded import sharded_table as module
from antembed.layer.sharded.collectives import Ranks
from antembed.layer.sharded.sharded_table import ShardedRowTable

V, K, PADDING = 23, 3, 7
COUNTS = (4, 0, 6, 1)  # states of each process


def made(rank: int) -> tuple[Tensor, Tensor]:
    """States of a process, and how much each counts in its loss."""
    random = torch.Generator().manual_seed(rank)
    states = torch.randn(COUNTS[rank], K, generator=random, dtype=torch.float64)
    return states.requires_grad_(), torch.randn(COUNTS[rank], generator=random, dtype=torch.float64)


def start() -> tuple[RowTable, Tensor]:
    random = torch.Generator().manual_seed(9)
    rows, bias = (torch.randn(*shape, generator=random, dtype=torch.float64) for shape in ((V, K), (V,)))
    return RowTable(rows, PADDING, sparse=False), bias.requires_grad_()


def alone(n: int, learn_padding: bool) -> tuple[Tensor, list[tuple[Tensor, ...]]]:
    """By one process: the mean gradient of T, and of each process its result and the gradients of states and bias."""
    table, _ = start()
    found = []
    for rank in range(n):
        (states, scales), bias = made(rank), start()[1]
        totals = table.log_totals(states, bias, learn_padding)
        (totals * scales).sum().backward()
        found.append((totals.detach(), states.grad, bias.grad))
    return table.weight.grad / n, found


def work(ranks: Ranks, folder: Path) -> None:
    for learn_padding in (False, True):
        whole, bias = start()
        table = ShardedRowTable.cut(whole, ranks)
        states, scales = made(ranks.rank)
        with mock.patch.object(module, "IN_CACHE", 10):  # some rows at a time
            totals = table.log_totals(states, bias, learn_padding)
            (totals * scales).sum().backward()
        gradient, found = alone(ranks.size, learn_padding)
        assert bool(gradient[PADDING].any()) == learn_padding
        wanted = gradient[table.spread.ids(ranks.rank)]
        for own, right in zip((table.weight.grad, totals, states.grad, bias.grad), (wanted, *found[ranks.rank]), strict=True):
            torch.testing.assert_close(own, right, atol=1e-12, rtol=0)


@pytest.mark.parametrize("n", [1, 4])
def test_it_equals_one_process(n, tmp_path):
    succeed(work, n, tmp_path)


def bytes_sent(ranks: Ranks, folder: Path) -> None:
    """Far below the rows: 1000 rows for one state."""
    table = ShardedRowTable.cut(RowTable(torch.zeros(1000, 8), None, sparse=False), ranks)
    sent, swap = [], Ranks.swap

    def counting(own: Ranks, values: Tensor, send: list[int], receive: list[int], doing: str) -> Tensor:
        sent.append(values.numel())
        return swap(own, values, send, receive, doing)

    with mock.patch.object(Ranks, "swap", counting):
        table.log_totals(torch.zeros(1, 8, requires_grad=True), torch.zeros(1000, requires_grad=True)).sum().backward()
    assert sum(sent) < 1000 + 100, sent  # the gradient of the bias, and a few numbers


def test_no_row_travels(tmp_path):
    succeed(bytes_sent, 2, tmp_path)
