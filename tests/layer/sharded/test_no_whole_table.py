"""Nobody holds the whole T of a shared run: not when the model is built, not when it is evaluated, saved and exported."""

from contextlib import ExitStack
from pathlib import Path
from unittest import mock

import pytest
import torch
from processes import errors, launch, succeed
from test_shared_runs import MANY, run, write_data

import antembed.layer.row_table as plain
import antembed.layer.sharded.sharded_table as sharded
from antembed.layer.anchor import AnchorEmbedding
from antembed.layer.sharded.collectives import Ranks
from antembed.layer.sharded.sharded_embedding import ShardedAnchorEmbedding, drawn_by_block
from antembed.layer.sharded.sharded_table import ShardedRowTable
from antembed.tables import number_formats as nonzeros
from antembed.train.processes import on_first_served
from antembed.train.run import export

BLOCK, LARGEST = 16, 30  # rows; the smallest table has 40, and three processes hold 30 of the largest each


def refuse_whole_tables(stack: ExitStack) -> None:
    """An error wherever a table of more rows than LARGEST, wider than a bias, would be dense in one process."""
    begin, whole, look_up = plain.RowTable.__init__, ShardedRowTable.full_tensor, ShardedRowTable.forward

    def made(table, weight, *args):
        assert weight.shape[1] == 1 or len(weight) <= LARGEST, weight.shape
        begin(table, weight, *args)

    def of_biases(table):
        assert table.embedding_dim == 1, f"the whole table of {table.num_embeddings} rows"
        return whole(table)

    def not_all(table, ids):
        everything = torch.arange(table.num_embeddings)
        assert table.embedding_dim == 1 or not torch.equal(ids, everything), f"all {table.num_embeddings} rows are looked up"
        return look_up(table, ids)

    stack.enter_context(mock.patch.object(plain.RowTable, "__init__", made))
    stack.enter_context(mock.patch.object(ShardedRowTable, "forward", not_all))
    stack.enter_context(mock.patch.object(ShardedRowTable, "joined", None))
    stack.enter_context(mock.patch.object(ShardedRowTable, "full_tensor", of_biases))
    for module in (sharded, plain, nonzeros):
        stack.enter_context(mock.patch.object(module, "BLOCK", BLOCK))


def guarded(ranks: Ranks, folder: Path, data: dict[str, Path]) -> None:
    with ExitStack() as stack:
        refuse_whole_tables(stack)
        for name, file in data.items():
            run(folder, name, file, ranks)


def test_no_process_holds_the_whole_table(tmp_path):
    names = ("budget", "text", "full", "language")
    data = {name: write_data(MANY[name][0], tmp_path) for name in names}
    succeed(guarded, 3, tmp_path, data)
    for name in names:
        torch.set_default_dtype(torch.float64)
        try:
            written = export(tmp_path / name, tmp_path / f"{name} alone")  # by one process, from the checkpoint
        finally:
            torch.set_default_dtype(torch.float32)
        for file in (name for name in written if name.endswith(".ant")):
            assert (tmp_path / name / file).read_bytes() == (tmp_path / f"{name} alone" / file).read_bytes()


def built(ranks: Ranks, folder: Path) -> None:
    with drawn_by_block(5, ranks):
        first, second = (AnchorEmbedding(V, 3, 2, num_anchors=4, sparse=True) for V in (9000, 100))
    ids = torch.arange(9000)
    with drawn_by_block(5, None):
        alone, other = (AnchorEmbedding(V, 3, 2, num_anchors=4, sparse=True) for V in (9000, 100))
    assert torch.equal(first.rows(ids), alone.rows.weight)
    assert torch.equal(second.rows(ids[:100]), other.rows.weight)
    assert torch.equal(first.rows(ids), ShardedAnchorEmbedding(9000, 3, 2, num_anchors=4, seed=5, ranks=ranks).rows(ids))
    assert not torch.equal(alone.rows.weight[3:50], other.rows.weight[3:50])  # each table has its own numbers
    assert abs(len(first.rows.weight) - 9000 / ranks.size) < 1
    assert not alone.rows.weight[2].any()


def test_the_start_is_that_of_one_process(tmp_path):
    succeed(built, 3, tmp_path)


def fails_after_training(ranks: Ranks, folder: Path) -> None:
    layer = ShardedAnchorEmbedding(50, 4, num_anchors=3, ranks=ranks)
    vectors = on_first_served(layer, ranks, lambda: layer(torch.arange(7)).shape)
    assert vectors == ((7, 4) if ranks.first else None)
    usage = layer.usage()
    assert on_first_served(layer, ranks, layer.usage) == (usage if ranks.first else None)

    def work() -> None:
        layer(torch.tensor([3]))
        raise ValueError("no space")

    on_first_served(layer, ranks, work)


def test_what_fails_on_rank_0_is_an_error_everywhere(tmp_path):
    assert launch(fails_after_training, 3, tmp_path) == [1, 1, 1]
    first, *others = errors(tmp_path, 3)
    assert first == "ValueError: no space"
    assert others == ["RankError: rank 0 has failed after training; its error says why"] * 2


@pytest.mark.parametrize("n", [1, 3])
def test_rows_are_counted_by_column(n, tmp_path):
    succeed(counted, n, tmp_path)


def counted(ranks: Ranks, folder: Path) -> None:
    layer = ShardedAnchorEmbedding(50, 4, 6, num_anchors=3, ranks=ranks)
    layer.keep(60)
    T = layer.transform
    assert torch.equal(layer.rows.count_by_column(), (T != 0).sum(0))
    assert layer.rows.count_nonzeros() == 60 == layer.usage().nnz
    assert layer.count_parameters() == layer.usage().parameters


@pytest.mark.parametrize("n", [1, 3])
def test_a_softmax_over_all_rows_needs_none_of_others(n, tmp_path):
    succeed(totals, n, tmp_path)


def totals(ranks: Ranks, folder: Path) -> None:
    for rows in (50, 2):  # of two rows the last of three processes has none
        layer = ShardedAnchorEmbedding(rows, 4, 1, num_anchors=3, ranks=ranks, dtype=torch.float64)
        random = torch.Generator().manual_seed(0)
        states = torch.randn(7, 3, generator=random, dtype=torch.float64)
        bias = torch.randn(rows, generator=random, dtype=torch.float64)
        bias[1] = -torch.inf  # padding
        wanted = (states @ layer.transform.detach().T + bias).logsumexp(1)
        with torch.no_grad():
            torch.testing.assert_close(layer.rows.log_total(states, bias), wanted, atol=1e-13, rtol=0)
            found = on_first_served(layer, ranks, lambda table=layer.rows, s=states, b=bias: table.log_total(s, b))
        if ranks.first:
            torch.testing.assert_close(found, wanted, atol=1e-13, rtol=0)
