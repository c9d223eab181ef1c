"""Checkpoints: a model, its optimizer and the random states come back as they were."""

import pytest
import safetensors.torch
import torch

from antembed.train.checkpoint import Checkpoint, CheckpointError, capture, read_checkpoint, restore, write_checkpoint


def test_all_of_it_comes_back(tmp_path):
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    write_checkpoint(tmp_path / "c", capture(model, optimizer, {"epoch": 4}))
    drawn = torch.rand(3)
    other = torch.nn.Linear(3, 2)
    again = torch.optim.Adam(other.parameters())
    assert restore(read_checkpoint(tmp_path / "c"), other, again) == {"epoch": 4}
    assert torch.equal(torch.rand(3), drawn)
    assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), other.state_dict().values(), strict=True))
    before, after = (rule.state_dict()["state"][0] for rule in (optimizer, again))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    write_checkpoint(tmp_path / "c", capture(model, None, {}))
    with pytest.raises(CheckpointError, match="holds no optimizer state"):
        restore(read_checkpoint(tmp_path / "c"), other, again)
    with pytest.raises(CheckpointError, match="start the run anew"):
        read_checkpoint(tmp_path / "none")


def test_random_states_of_gpus_come_back_on_those_that_there_are(tmp_path, monkeypatch):
    """The functions of torch.cuda are made up here: there is no GPU where tests run."""
    states, taken = [torch.arange(4, dtype=torch.uint8), torch.arange(4, 8, dtype=torch.uint8)], []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_rng_state_all", lambda: states)
    monkeypatch.setattr(torch.cuda, "set_rng_state_all", taken.append)
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    write_checkpoint(tmp_path / "c", capture(model, optimizer, {}))
    for devices in (1, 2, 3):
        monkeypatch.setattr(torch.cuda, "device_count", lambda devices=devices: devices)
        restore(read_checkpoint(tmp_path / "c"), model, optimizer)
        assert [state.tolist() for state in taken.pop()] == [state.tolist() for state in states[:devices]]


def test_the_order_of_tensors_and_of_facts_does_not_matter(tmp_path):
    tensors = {"b": torch.ones(2), "a": torch.zeros(0, 3), "c": torch.tensor(True)}
    write_checkpoint(tmp_path / "one", Checkpoint(tensors, {"x": {"2": 1, "10": 2}, "a": 0}))
    turned = dict(reversed(tensors.items()))
    write_checkpoint(tmp_path / "other", Checkpoint(turned, {"a": 0, "x": {10: 2, 2: 1}}))
    assert (tmp_path / "one").read_bytes() == (tmp_path / "other").read_bytes()
    assert read_checkpoint(tmp_path / "one").plain == {"x": {"2": 1, "10": 2}, "a": 0}


def test_every_flipped_bit_is_noticed(tmp_path):
    tensors = {"a": torch.arange(5, dtype=torch.float64), "b": torch.tensor(3), "c": torch.ones(2, 2, dtype=torch.bfloat16)}
    write_checkpoint(tmp_path / "c", Checkpoint(tensors, {"epoch": 4}))
    whole = (tmp_path / "c").read_bytes()
    for bit in range(8 * len(whole)):
        changed = bytearray(whole)
        changed[bit // 8] ^= 1 << bit % 8
        (tmp_path / "d").write_bytes(changed)
        try:
            found = read_checkpoint(tmp_path / "d")
        except CheckpointError:
            continue
        assert found.plain == {"epoch": 4}, bit  # white space, or a number written otherwise
        assert all(torch.equal(found.tensors[name], tensor) for name, tensor in tensors.items()), bit


def test_checkpoints_of_older_versions_are_read(tmp_path):
    safetensors.torch.save_file({"a": torch.ones(2)}, tmp_path / "old", {"antembed": '{"progress": {}}'})
    assert read_checkpoint(tmp_path / "old").tensors["a"].tolist() == [1, 1]


def test_state_of_another_shape_is_refused(tmp_path):
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    saved = capture(model, optimizer, {})
    saved.tensors["optimizer/0/exp_avg"] = torch.zeros(1, 3)
    with pytest.raises(
        CheckpointError, match=r"exp_avg of parameter 0 is \(1, 3\) in the checkpoint, the parameter is \(2, 3\)"
    ):
        restore(saved, model, optimizer)
    with pytest.raises(CheckpointError, match="of another model"):
        restore(capture(torch.nn.Linear(3, 3)), model)


@pytest.mark.parametrize("strides", [(0, 0), (5, 3)])
def test_one_number_has_any_strides(tmp_path, strides):
    """Torch takes a tensor of one element for contiguous, whatever its strides are."""
    one = torch.arange(3.0).as_strided((1, 1), strides, 2)
    write_checkpoint(tmp_path / "c", Checkpoint({"one": one}))
    assert read_checkpoint(tmp_path / "c").tensors["one"].tolist() == [[2.0]]
