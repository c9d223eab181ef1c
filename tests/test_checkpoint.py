"""Checkpoints: a model, its optimizer and the random states come back as they were."""

import pytest
import torch
from antembed.training.checkpoint import CheckpointError, load_checkpoint, save_checkpoint


def test_all_of_it_comes_back(tmp_path):
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    save_checkpoint(tmp_path / "c", model, optimizer, {"epoch": 4})
    drawn = torch.rand(3)
    other = torch.nn.Linear(3, 2)
    again = torch.optim.Adam(other.parameters())
    assert load_checkpoint(tmp_path / "c", other, again) == {"epoch": 4}
    assert torch.equal(torch.rand(3), drawn)
    assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), other.state_dict().values(), strict=True))
    before, after = (rule.state_dict()["state"][0] for rule in (optimizer, again))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    save_checkpoint(tmp_path / "c", model, None, {})
    with pytest.raises(CheckpointError, match="holds no optimizer state"):
        load_checkpoint(tmp_path / "c", other, again)
    with pytest.raises(CheckpointError, match="start the run anew"):
        load_checkpoint(tmp_path / "none", other)


def test_random_states_of_gpus_come_back_on_those_that_there_are(tmp_path, monkeypatch):
    """The functions of torch.cuda are made up here: there is no GPU where tests run."""
    states, taken = [torch.arange(4, dtype=torch.uint8), torch.arange(4, 8, dtype=torch.uint8)], []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_rng_state_all", lambda: states)
    monkeypatch.setattr(torch.cuda, "set_rng_state_all", taken.append)
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    save_checkpoint(tmp_path / "c", model, optimizer, {})
    for devices in (1, 2, 3):
        monkeypatch.setattr(torch.cuda, "device_count", lambda devices=devices: devices)
        load_checkpoint(tmp_path / "c", model, optimizer)
        assert [state.tolist() for state in taken.pop()] == [state.tolist() for state in states[:devices]]
