"""Checkpoints of n processes, loaded by any other number: the same rows and moments to the last bit."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from processes import errors, launch, succeed
from safetensors.torch import load_file, save_file
from torch import nn

import antembed as ant
from antembed.layer.sharded.collectives import Ranks
from antembed.layer.sharded.sharded_embedding import shard_
from antembed.train.checkpoint import CheckpointError
from antembed.train.sharded_checkpoint import load, save

V, K = 23, 3


def made(ranks: Ranks, V: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.ModuleDict({"words": ant.AnchorEmbedding(V, 4, num_anchors=K, sparse=True), "bias": nn.ParameterList()})
    model["bias"].append(nn.Parameter(torch.tensor(0.5)))  # without dimensions
    shard_(model, ranks)
    return model, ant.ProximalYogi(ant.param_groups(model, l1_penalty=1e-3), lr=0.1)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, ranks: Ranks, steps: range) -> None:
    for step in steps:
        ids = torch.randint(0, model["words"].num_embeddings, (12,), generator=torch.Generator().manual_seed(step))
        mine = ids[ranks.rank :: ranks.size]
        optimizer.zero_grad()
        loss = (model["words"](mine).sum(-1) + model["bias"][0] - 1).square().sum() * ranks.size / len(ids)
        loss.backward()
        for weight in (model["words"].anchors, model["bias"][0]):
            weight.grad = ranks.sum(weight.grad) / ranks.size
        optimizer.step()


def contents(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """All numbers, in the order of the ids."""
    optimizer.flush()
    found = {"A": model["words"].anchors, "bias": model["bias"][0]}
    table = model["words"].rows
    weight = table.weight.data
    for name, rows in {"T": weight, **optimizer.state[table.weight]}.items():
        if isinstance(rows, torch.Tensor):
            table.release()
            table.weight.data = rows  # read as if it were the table
            found[name] = table.full_tensor()
    table.weight.data = weight
    steps = [float(state["step"]) for state in optimizer.state.values()]
    return {name: t.detach().clone() for name, t in found.items()} | {"steps": torch.tensor(steps)}


def saving(ranks: Ranks, folder: Path, V: int) -> None:
    model, optimizer = made(ranks, V)
    for part in range(2):  # the second replaces the first
        train(model, optimizer, ranks, range(5 * part, 5 * part + 5))
        save(folder / "state", model, optimizer, {"epoch": part})
    found = contents(model, optimizer)
    train(model, optimizer, ranks, range(10, 15))
    after = contents(model, optimizer)
    if ranks.first:
        save_file(found, folder / "before.safetensors")
        save_file(after, folder / "after.safetensors")


def loading(ranks: Ranks, folder: Path, V: int, saved: str) -> None:
    model, optimizer = made(ranks, V)
    with torch.no_grad():
        model["words"].anchors.zero_()
        model["words"].rows.weight.zero_()
    assert load(Path(saved) / "state", model, optimizer) == {"epoch": 1}
    found = contents(model, optimizer)
    train(model, optimizer, ranks, range(10, 15))
    after = contents(model, optimizer)
    if ranks.first:
        save_file(found, folder / "before.safetensors")
        save_file(after, folder / "after.safetensors")


@pytest.mark.parametrize(
    ("rows", "numbers"), [(V, (1, 4)), pytest.param(5, (4,), marks=pytest.mark.slow)]
)  # of 5 rows the last of four processes has none
def test_saved_by_two_loaded_by_others(rows, numbers, tmp_path):
    saved = tmp_path / "saved"
    succeed(saving, 2, saved, rows)
    assert sorted(path.name for path in saved.glob("state*")) == ["state-000002", "state.json"]
    assert {path.suffix for path in (saved / "state-000002").iterdir()} == {".safetensors", ".json"}
    wanted, end = (load_file(saved / f"{name}.safetensors") for name in ("before", "after"))
    for n in numbers:
        succeed(loading, n, tmp_path / str(n), rows, str(saved))
        found = load_file(tmp_path / str(n) / "before.safetensors")
        assert found.keys() == wanted.keys() >= {"T", "A", "bias", "momentum", "second", "steps"}
        for name, tensor in wanted.items():
            assert torch.equal(found[name], tensor), name
        for name, tensor in load_file(tmp_path / str(n) / "after.safetensors").items():
            torch.testing.assert_close(tensor, end[name], atol=1e-5, rtol=0)


def missing(ranks: Ranks, folder: Path) -> None:
    load(folder / "nothing", *made(ranks, V))


def test_what_is_not_there_is_an_error_everywhere(tmp_path):
    assert launch(missing, 2, tmp_path) == [1, 1]
    assert all("nothing is no checkpoint of several processes" in text for text in errors(tmp_path, 2))


def damaged(ranks: Ranks, folder: Path) -> None:
    """One bit of each file in turn: every process says which file it is, and nothing is loaded."""
    model, optimizer = made(ranks, V)
    train(model, optimizer, ranks, range(3))
    save(folder / "state", model, optimizer)
    before = contents(model, optimizer)
    random = np.random.default_rng(0)
    files = [folder / "state-000001" / name for name in ("rank-00000.safetensors", "rank-00001.safetensors", "about.json")]
    for file in (*files, folder / "state.json"):
        whole = file.read_bytes()
        ranks.wait()  # nobody writes before all have read
        for at in random.integers(len(whole), size=6):
            changed = bytearray(whole)
            changed[at] ^= 1 << int(random.integers(8))
            ranks.on_first(partial(file.write_bytes, changed))
            with pytest.raises(CheckpointError, match=file.name if file in files else "state"):
                load(folder / "state", model, optimizer)
            ranks.wait()
        ranks.on_first(partial(file.write_bytes, whole))
    ranks.on_first(files[1].unlink)
    with pytest.raises(CheckpointError, match=r"rank-00001\.safetensors is missing; copy the checkpoint again"):
        load(folder / "state", model, optimizer)
    for name, tensor in contents(model, optimizer).items():
        assert torch.equal(tensor, before[name])


def test_a_flipped_bit_is_an_error_that_names_the_file(tmp_path):
    succeed(damaged, 2, tmp_path)
