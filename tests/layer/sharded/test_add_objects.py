"""A shared table grows as one process's does: the same new rows, the optimizer's state with its rows, the same end."""

from pathlib import Path

import pytest
import torch
from processes import errors, launch, succeed
from safetensors.torch import load_file, save_file
from torch import nn

import antembed as ant
from antembed.layer.sharded.collectives import Ranks
from antembed.layer.sharded.sharded_embedding import (
    ADDED,
    BLOCK,
    ShardedAnchorEmbedding,
    draw_anchors,
    drawn_by_block,
    normal_rows,
    shard_,
)
from antembed.layer.sharded.sharded_table import Move, Spread
from antembed.train.sharded_checkpoint import load, save

V, d, K, PADDING, SEED, STEPS = 41, 4, 3, 5, 3, 8
GROWTH = (30, 1, 0)  # objects, each time after STEPS steps
KINDS = ("Yogi", "Adam", "SGD", "frozen SGD", "bag")


def make_optimizer(kind: str, layer: nn.Module) -> torch.optim.Optimizer:
    groups = layer.param_groups(l1_penalty=0.05 if "SGD" in kind else 2e-3)
    if "SGD" in kind:
        return ant.optim.ProximalSGD(groups, lr=0.05, momentum=0.8)
    return (ant.optim.ProximalAdam if kind == "Adam" else ant.ProximalYogi)(groups, lr=0.05)


def step(layer: nn.Module, optimizer: torch.optim.Optimizer, number: int, ranks: Ranks | None) -> None:
    rank, n = (0, 1) if ranks is None else (ranks.rank, ranks.size)
    ids = torch.randint(0, layer.num_embeddings, (12, 2), generator=torch.Generator().manual_seed(number))
    mine = ids[rank::n]
    vectors = layer(mine) if isinstance(layer, ant.AnchorEmbeddingBag) else layer(mine).mean(1)
    optimizer.zero_grad()
    ((vectors.sum(-1) - mine[:, 0].double().sin()).square().sum() * n / len(ids)).backward()
    if ranks is not None:
        layer.anchors.grad = ranks.sum(layer.anchors.grad) / n
    optimizer.step()


def by_id(layer: nn.Module, rows: torch.Tensor) -> torch.Tensor:
    """Rows like those of `weight`, of all processes, in the order of the ids."""
    if not layer.rows.shared:
        return rows
    padded = torch.zeros(layer.rows.spread.size, rows.shape[1], dtype=rows.dtype)
    padded[: len(rows)] = rows
    return layer.rows.ranks.gather(padded).flatten(0, 1)[layer.rows.spread.rows(torch.arange(layer.num_embeddings))]


def grown(kind: str, layer: nn.Module, ranks: Ranks | None) -> dict[str, torch.Tensor]:
    optimizer, found = make_optimizer(kind, layer), {}
    for time, n in enumerate((*GROWTH, None)):
        for number in range(STEPS):
            step(layer, optimizer, 100 * time + number, ranks)
        if kind.startswith("frozen") and time == 0:
            optimizer.freeze_support(layer.rows.weight)
        if n is not None:
            layer.add_objects(n)
            found[f"T {time}"] = layer.transform.detach().clone()
    layer.flush()
    for name, rows in optimizer.state[layer.rows.weight].items():
        if name != "step":
            found[name] = by_id(layer, rows.double() if name == "support" else rows)
    return found | {"T": layer.transform.detach().clone(), "A": layer.anchors.detach().clone()}


def drawn(kind: str, ranks: Ranks | None) -> nn.Module:
    """A layer with the same start in any number of processes."""
    if kind != "bag" and ranks is not None:
        return ShardedAnchorEmbedding(V, d, PADDING, num_anchors=K, seed=SEED, dtype=torch.float64, ranks=ranks)
    make = ant.AnchorEmbeddingBag if kind == "bag" else ant.AnchorEmbedding
    with drawn_by_block(SEED, ranks):
        layer = make(V, d, PADDING, num_anchors=K, sparse=True, dtype=torch.float64)
    with torch.no_grad():
        layer.anchors.copy_(draw_anchors(K, d, SEED, torch.float64))
    return layer


def work(ranks: Ranks, folder: Path) -> None:
    for kind in KINDS:
        found = grown(kind, layer := drawn(kind, ranks), ranks)
        assert abs(len(layer.rows.weight) - layer.num_embeddings / ranks.size) <= ranks.size
        if ranks.first:
            save_file(found, folder / f"{kind}.safetensors")


@pytest.mark.parametrize("n", [1, 2, pytest.param(3, marks=pytest.mark.slow)])
def test_grown_tables_train_as_in_one_process(n, tmp_path):
    succeed(work, n, tmp_path)
    for kind in KINDS:
        wanted, found = grown(kind, drawn(kind, None), None), load_file(tmp_path / f"{kind}.safetensors")
        assert wanted.keys() == found.keys()
        assert len(wanted["T"]) == V + sum(GROWTH)
        assert 0.05 < float((wanted["T"] == 0).double().mean()) < 0.95
        for name, tensor in wanted.items():
            torch.testing.assert_close(
                found[name], tensor, atol=1e-12, rtol=0, msg=lambda text, key=(kind, name): f"{key}: {text}"
            )
            assert torch.equal(found[name] == 0, tensor == 0), (kind, name)


def save_and_cut(ranks: Ranks, folder: Path) -> None:
    """A checkpoint of a table that has grown; a layer that was cut, whose new rows rank 0 draws."""
    layer = ShardedAnchorEmbedding(V, d, num_anchors=K, ranks=ranks)
    optimizer = make_optimizer("Yogi", layer)
    step(layer.double(), optimizer, 0, ranks)
    layer.add_objects(8)
    save(folder / "state", layer, optimizer)
    before = layer.transform.detach().clone()
    step(layer, optimizer, 1, ranks)
    after = layer.transform.detach().clone()
    load(folder / "state", layer, optimizer)
    assert torch.equal(layer.transform, before)
    step(layer, optimizer, 1, ranks)
    assert torch.equal(layer.transform, after)
    for make in (
        lambda: ant.AnchorEmbedding(9, d, num_anchors=K, sparse=True),
        lambda: ant.baselines.FullEmbedding(9, d, sparse=True),
    ):
        torch.manual_seed(1)
        one, many = make(), nn.ModuleDict({"words": make()})
        many["words"].rows.reset_to(one.rows.weight)
        shard_(many, ranks)
        torch.manual_seed(2)
        one.add_objects(20)
        torch.manual_seed(2 if ranks.first else 7)
        many["words"].add_objects(20)
        assert torch.equal(many["words"].rows.full_tensor(), one.rows.weight)


def test_a_grown_table_is_saved_and_a_cut_one_grows(tmp_path):
    succeed(save_and_cut, 3, tmp_path)


def moved(ranks: Ranks, folder: Path) -> None:
    """From every V to every larger one: each row arrives at its place."""
    for old in (0, 1, 2, 7, 12):
        for drawn in ([0, 0, 0], [1, 0, 0], [2, 3, 2], [0, 0, 9]):
            move = Move(ranks, Spread(old, 3), drawn)
            start = old + sum(drawn[: ranks.rank])
            ids = Spread(old, 3).ids(ranks.rank), torch.arange(start, start + drawn[ranks.rank])
            found = move(*(torch.stack([own] * 19, 1) + torch.arange(19) * 1000 for own in ids))
            wanted = move.new.ids(ranks.rank)
            assert torch.equal(found, torch.stack([wanted] * 19, 1) + torch.arange(19) * 1000)


def test_every_row_arrives(tmp_path):
    succeed(moved, 3, tmp_path)


def test_new_rows_do_not_depend_on_who_draws_them():
    def noise(first, stop, seed=1, table=0):
        return normal_rows(seed, table, ADDED, first, stop, 3, torch.float64)

    whole = noise(BLOCK - 10, BLOCK + 30)
    parts = [noise(a, a + 8) for a in range(BLOCK - 10, BLOCK + 30, 8)]
    assert torch.equal(torch.cat(parts), whole)
    assert not torch.equal(noise(BLOCK - 10, BLOCK + 30, table=1), whole)
    assert not torch.equal(noise(BLOCK - 10, BLOCK + 30, seed=2), whole)
    assert len(whole.unique()) == whole.numel()


def other_number(ranks: Ranks, folder: Path) -> None:
    ShardedAnchorEmbedding(V, d, num_anchors=K, ranks=ranks).add_objects(4 + ranks.rank // 2)


def free_entries(ranks: Ranks, folder: Path) -> None:
    layer = ShardedAnchorEmbedding(V, d, num_anchors=K, ranks=ranks)
    free = ant.penalties.FreeEntries(torch.tensor([0, 9]), torch.tensor([1, 0]), (V, K))
    optimizer = ant.ProximalYogi(layer.param_groups(1e-3, free=free))
    layer.add_objects(2)
    optimizer.step()


CASES = {
    other_number: "RankError: the number of new objects is 4 on rank 0 and 5 on rank 2; add equally many on every rank",
    free_entries: f"ValueError: free entries are for a table of {V} rows; set the group's prox.free to None",
}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_what_cannot_grow_is_an_error_everywhere(case, tmp_path):
    assert launch(case, 3, tmp_path) == [1, 1, 1]
    for text in errors(tmp_path, 3):
        assert text.startswith(CASES[case])
