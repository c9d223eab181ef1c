"""Two gloo processes train one layer: in sync to the last bit, and as one process on both their batches would."""

import subprocess
import sys
from pathlib import Path

import ddp_worker
import torch
from safetensors.torch import load_file

import antembed as ant


def test_two_processes_stay_in_sync_and_equal_one(tmp_path):
    worker = Path(__file__).with_name("ddp_worker.py")
    workers = [subprocess.Popen([sys.executable, str(worker), str(rank), str(tmp_path)]) for rank in range(2)]
    assert [process.wait(timeout=120) for process in workers] == [0, 0]
    first, second = (load_file(tmp_path / f"{rank}.safetensors") for rank in range(2))
    for name in first:
        assert torch.equal(first[name], second[name]), name
    assert 0.05 < (first["words.rows.weight"] == 0).double().mean() < 0.95

    torch.manual_seed(0)
    model = ddp_worker.Model()
    optimizer = ant.ProximalYogi(ant.param_groups(model, l1_penalty=1e-3), lr=0.02)
    for step in range(ddp_worker.STEPS):
        optimizer.zero_grad()
        ids = [ddp_worker.batch(step, rank) for rank in range(ddp_worker.WORLD)]
        (sum(ddp_worker.loss(model, part) for part in ids) / ddp_worker.WORLD).backward()
        optimizer.step()
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(tensor, first[name], atol=1e-12, rtol=0)
