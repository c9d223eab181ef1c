"""n processes that share a table train as one process does: the same numbers in double precision, the same zeros."""

import copy
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from processes import succeed
from safetensors.torch import load_file, save_file
from torch import nn

import antembed as ant
from antembed.layer.embedding import keep_largest
from antembed.layer.sharded.collectives import Ranks
from antembed.layer.sharded.sharded_embedding import (
    ShardedAnchorEmbedding,
    data_parallel,
    draw_anchors,
    draw_rows,
    join_,
    shard_,
)
from antembed.layer.sharded.sharded_table import Spread

V, d, K, STEPS, B, PADDING = 103, 6, 5, 16, 32, 7
CASES = dict.fromkeys((1, 2, 4), (("rows", "ProximalYogi"), ("bag", "ProximalYogi"), ("tied", "ProximalYogi")))
CASES[3] = (("rows", "ProximalYogi"), ("rows", "ProximalAdam"), ("bag", "ProximalSGD"))


class Model(nn.Module):
    """Vectors of ids (m, 3), or of bags of three; or scores of a tied output layer."""

    def __init__(self, kind: str, words: nn.Module):
        super().__init__()
        torch.manual_seed(7)
        self.kind, self.words, self.head = kind, words, nn.Linear(d, 1, dtype=torch.float64)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """→ one number an example, (m,)."""
        if self.kind == "tied":
            hidden = self.words(ids).mean(1)
            return F.cross_entropy(self.words.logits(hidden) * self.head(hidden).exp(), ids[:, 0], reduction="none")
        vectors = self.words(ids) if self.kind == "bag" else self.words(ids).mean(1)
        return self.head(vectors.tanh()).squeeze(-1) - torch.sin(ids[:, 0].double())


def batch(step: int) -> torch.Tensor:
    """Zipf: most ids repeat. One step has a single example, which leaves other processes without any."""
    u = torch.rand(1 if step == 5 else B, 3, generator=torch.Generator().manual_seed(step))
    return (V**u - 1).long().clamp(0, V - 1)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, ranks: Ranks | None, controller=None) -> None:
    own, n = (0, 1) if ranks is None else (ranks.rank, ranks.size)
    for step in range(STEPS):
        for group in optimizer.param_groups:
            group["lr"] = 0.05 if step < 9 else 0.02
            if group["prox"] is not None and controller is None:
                group["prox"].strength = (40 if isinstance(optimizer, ant.optim.ProximalSGD) else 1) * (
                    2e-3 if step < 7 else 8e-3 if step < 11 else 1e-4
                )
        whole = batch(step)
        mine = whole[own::n]
        loss = model(mine).square().sum() * n / len(whole)  # DDP takes the mean over processes
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if controller is not None:
            controller.step()


def single(kind: str) -> nn.Module:
    """The layer of one process with the start of the sharded one."""
    make = ant.AnchorEmbeddingBag if kind == "bag" else ant.AnchorEmbedding
    layer = make(V, d, PADDING, num_anchors=K, sparse=True, dtype=torch.float64)
    spread = Spread(V, 1)
    whole = draw_rows(0, V, V, K, 3, torch.float64)
    with torch.no_grad():
        layer.rows.reset_to(whole[spread.rows(torch.arange(V))])
        layer.anchors.copy_(draw_anchors(K, d, 3, torch.float64))
    return layer


def results(model: Model, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """What must be equal, in the order of the ids."""
    words = model.words
    state = optimizer.state[words.rows.weight]
    found = {"T": words.transform, "A": words.anchors, "head": model.head.weight, "used": torch.tensor(words.usage().nnz)}
    if words.rows.shared:
        spread, ranks = words.rows.spread, words.rows.ranks
        for name in [name for name in ("momentum", "second") if name in state]:
            counts = [b - a for a, b in map(spread.range, range(ranks.size))]
            parts = [torch.zeros(spread.size, K, dtype=torch.float64) for _ in counts]
            torch.distributed.all_gather(parts, F.pad(state[name], (0, 0, 0, spread.size - len(state[name]))))
            joined = torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)])
            found[name] = joined[spread.rows(torch.arange(V))]
    else:
        found |= {name: state[name] for name in ("momentum", "second") if name in state}
    return {name: tensor.detach().clone() for name, tensor in found.items()}


def trained(kind: str, name: str, words: nn.Module, ranks: Ranks | None) -> dict[str, torch.Tensor]:
    """Train with a budget or with changing penalties, then prune, keep the largest, trim to the budget."""
    model = Model(kind, words)
    optimizer = getattr(ant.optim, name)(ant.param_groups(model, l1_penalty=2e-3), lr=0.05, max_grad_norm=0.5)
    controller = ant.SparsityController(model, optimizer, steps=STEPS, target_nnz=200) if name == "ProximalAdam" else None
    train(model if ranks is None else data_parallel(model), optimizer, ranks, controller)
    found = results(model, optimizer)
    twin = copy.deepcopy(model)
    found["changed"] = torch.tensor([twin.words.prune(0.5), twin.words.keep(60), controller.finish() if controller else 0])
    found["kept"] = twin.words.transform.detach().clone()
    join_(model)
    return found | {"joined": model.words.rows.weight.detach()}


def work(ranks: Ranks, folder: Path) -> None:
    for kind, name in CASES[ranks.size]:
        if kind == "bag":
            layer = shard_(single(kind), ranks)
        else:
            layer = ShardedAnchorEmbedding(V, d, PADDING, num_anchors=K, seed=3, dtype=torch.float64, ranks=ranks)
        found = trained(kind, name, layer, ranks)
        if ranks.first:
            save_file(found, folder / f"{kind}-{name}.safetensors")


@pytest.mark.parametrize("n", [pytest.param(n, marks=pytest.mark.slow) if n in (1, 4) else n for n in CASES])
def test_processes_equal_one(n, tmp_path):
    succeed(work, n, tmp_path)
    for kind, name in CASES[n]:
        found = load_file(tmp_path / f"{kind}-{name}.safetensors")
        wanted = trained(kind, name, single(kind), None)
        for key in ("T", "kept"):
            zeros = float((wanted[key] == 0).double().mean())
            assert 0.05 < zeros < 0.95, zeros  # else the comparison of zeros would say nothing
            assert torch.equal(found[key] == 0, wanted[key] == 0)
        for key, tensor in wanted.items():
            torch.testing.assert_close(found[key], tensor, atol=1e-12, rtol=0, msg=lambda text, key=key: f"{key}: {text}")


def cut_work(ranks: Ranks, folder: Path) -> None:
    """A model that every process has made alike."""
    torch.manual_seed(0)
    model = nn.ModuleDict({"a": ant.AnchorEmbedding(10, 4, num_anchors=3, sparse=True), "b": ant.baselines.FullEmbedding(5, 2)})
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    shard_(model, ranks)
    free = ant.penalties.FreeEntries(torch.tensor([0, 9, 9]), torch.tensor([1, 0, 2]), (10, 3))
    own = model["a"].param_groups(1.0, free=free)[0]["prox"].free
    total = int(ranks.sum(torch.tensor(len(own))))
    assert total == 3, total
    for place, id in enumerate(model["a"].rows.spread.ids(ranks.rank).tolist()):
        assert torch.equal(own.mask()[place], free.mask()[id])
    ids = torch.arange(10)[ranks.rank :: 2]
    assert torch.equal(model["a"](ids), (before["a.rows.weight"] @ before["a.anchors"])[ids])
    empty = model["a"](torch.empty(2, 0, dtype=torch.long))
    assert empty.shape == (2, 0, 4)
    join_(model)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name])
    with pytest.raises(ValueError, match="b is a HashEmbedding, which cannot be cut into rows"):
        shard_(nn.ModuleDict({"b": ant.baselines.HashEmbedding(10, 4, num_anchors=3)}), ranks)


def test_a_model_is_cut_and_joined(tmp_path):
    succeed(cut_work, 4, tmp_path)


def with_ties() -> nn.ModuleList:
    """Two tables whose weights have one of three values each; anchors have length 1."""
    torch.manual_seed(0)
    model = nn.ModuleList([ant.AnchorEmbedding(rows, 3, num_anchors=width, sparse=True) for rows, width in ((17, 4), (6, 5))])
    with torch.no_grad():
        for layer in model:
            layer.rows.weight.copy_(torch.randint(0, 3, layer.rows.weight.shape).float())
            layer.anchors.zero_()[:, 0] = 1
    return model


def keep_ties(ranks: Ranks, folder: Path) -> None:
    for n in (0, 1, 20, 21, 40, 41, 60, 1000):
        one, many = with_ties(), shard_(with_ties(), ranks)
        assert keep_largest(one, n) == keep_largest(many, n)
        flat = torch.cat([layer.rows.weight.detach().reshape(-1) for layer in with_ties()])
        kept = torch.cat([layer.transform.detach().reshape(-1) for layer in many])
        order = flat.argsort(descending=True, stable=True)[:n]  # of equal ones the first by table, id, column
        assert torch.equal(kept, torch.zeros_like(flat).scatter(0, order, flat[order]))
        assert torch.equal(torch.cat([layer.transform.reshape(-1) for layer in one]), kept)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_of_equal_weights_the_first_by_id_are_kept(n, tmp_path):
    succeed(keep_ties, n, tmp_path)


@pytest.mark.parametrize("rows", [1, 2, 5, 97, 100, 4096, 1_000_000, 9_999_999_967])
def test_rows_are_spread(rows):
    spread = Spread(rows, 4)
    some = torch.arange(min(rows, 5000))
    found = spread.rows(some)
    assert len(found.unique()) == len(some)
    assert 0 <= int(found.min()) <= int(found.max()) < rows
    if rows <= 4096:
        assert sorted(torch.cat([spread.ids(rank) for rank in range(4)]).tolist()) == list(range(rows))
        assert all(torch.equal(spread.rows(spread.ids(r)), torch.arange(*spread.range(r))) for r in range(4))
    if rows >= 4096:  # the most frequent ids, which a range would give to rank 0
        shares = torch.bincount(found[:1000] // spread.size, minlength=4) / 1000
        assert 0.2 < float(shares.min()) <= float(shares.max()) < 0.3


def test_the_start_does_not_depend_on_the_cut():
    whole = draw_rows(0, 10_000, 10_000, 3, seed=1)
    parts = [draw_rows(a, min(a + 3333, 10_000), 10_000, 3, seed=1) for a in range(0, 10_000, 3333)]
    assert torch.equal(torch.cat(parts), whole)
    assert not torch.equal(draw_rows(0, 10, 10_000, 3, seed=2), whole[:10])
    assert 0.9 < float(whole.square().mean() / (2 / 10_000)) < 1.1
