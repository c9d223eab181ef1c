"""What goes wrong in one process is an error in all of them, which says whose it is and what; nothing hangs."""

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from processes import _context, errors, launch

import antembed as ant
from antembed.layer.sharded.collectives import RankError, Ranks
from antembed.layer.sharded.sharded_embedding import ShardedAnchorEmbedding
from antembed.train.processes import start


def layer_of(ranks: Ranks) -> ShardedAnchorEmbedding:
    return ShardedAnchorEmbedding(50, 4, num_anchors=3, ranks=ranks)


def other_penalty(ranks: Ranks, folder: Path) -> None:
    layer = layer_of(ranks)
    optimizer = ant.ProximalYogi(layer.param_groups(l1_penalty=2e-3 if ranks.rank == 1 else 1e-3))
    layer(torch.arange(4)).sum().backward()
    optimizer.step()


def other_step(ranks: Ranks, folder: Path) -> None:
    layer = layer_of(ranks)
    optimizer = ant.optim.ProximalSGD(layer.param_groups(l1_penalty=1e-3), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        layer(torch.arange(4)).sum().backward()
        if ranks.rank == 2:
            optimizer.zero_grad()
        optimizer.step()


def out_of_range(ranks: Ranks, folder: Path) -> None:
    layer_of(ranks)(torch.tensor([3, 50 if ranks.rank == 2 else 4]))


def negative(ranks: Ranks, folder: Path) -> None:
    layer_of(ranks)(torch.tensor([3, -1 if ranks.rank == 0 else 4]))


def other_size(ranks: Ranks, folder: Path) -> None:
    ShardedAnchorEmbedding(50 + ranks.rank // 2, 4, num_anchors=3, ranks=ranks)


def dies(ranks: Ranks, folder: Path) -> None:
    layer = layer_of(ranks)
    loss = layer(torch.arange(4)).sum()
    if ranks.rank == 1:
        os._exit(9)
    loss.backward()
    layer(torch.arange(4))


def stays_away(ranks: Ranks, folder: Path) -> None:
    layer = layer_of(ranks)
    if ranks.rank == 1:
        while not ((folder / "0.error").exists() and (folder / "2.error").exists()):
            time.sleep(0.05)
        raise RankError("I was not there")
    layer(torch.arange(4))


CASES = {
    other_penalty: "RankError: l1_penalty of group 0 is 0.001 on rank 0 and 0.002 on rank 1; all ranks must make the same",
    other_step: "RankError: gradients of table 0 is 1 on rank 0 and 0 on rank 2; all ranks must make the same steps",
    out_of_range: "IndexError: rank 2: id 50 is outside a table of 50 rows",
    negative: "IndexError: rank 0: id -1 is negative",
    other_size: "RankError: num_embeddings is 50 on rank 0 and 51 on rank 2; build the same layer on every rank",
}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_all_ranks_raise_the_same(case, tmp_path):
    assert launch(case, 3, tmp_path) == [1, 1, 1]
    for text in errors(tmp_path, 3):
        assert text.startswith(CASES[case])


def test_a_rank_that_dies_is_named(tmp_path):
    assert launch(dies, 3, tmp_path) == [1, 9, 1]
    for rank in (0, 2):
        text = errors(tmp_path, 3)[rank]
        assert text.startswith(f"RankError: rank {rank} of 3, ")
        assert "rank 1 does not answer; it has died" in text


def test_a_rank_that_stays_away_is_named_after_the_timeout(tmp_path):
    assert launch(stays_away, 3, tmp_path, timeout=2) == [1, 1, 1]
    for rank in (0, 2):
        assert "rank 1 does not answer; it has died or does something else" in errors(tmp_path, 3)[rank]


def alone(file: str, port: int) -> None:
    os.environ |= {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    try:
        start(timeout=1)
    except RankError as error:
        Path(file).write_text(str(error))


def test_a_rank_that_never_comes(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process = _context.Process(target=alone, args=(str(tmp_path / "error"), port))
    process.start()
    process.join()
    text = (tmp_path / "error").read_text()
    assert text.startswith(f"rank 0 of 2: not all ranks came to 127.0.0.1:{port} within 1 s")
    assert "1/2 clients joined" in text


STOPPED = """
import os, sys
import torch
from antembed.layer.sharded.sharded_embedding import ShardedAnchorEmbedding
from antembed.train.processes import start
from antembed.train.processes import stop
from antembed.train.sharded_checkpoint import load, save
from antembed.layer.optim.rules import ProximalYogi

ranks = start(60)
layer = ShardedAnchorEmbedding(50, 4, num_anchors=3, ranks=ranks)
optimizer = ProximalYogi(layer.param_groups(l1_penalty=1e-3))
layer(torch.arange(4)).sum().backward()
optimizer.step()
save(sys.argv[1], layer, optimizer)
load(sys.argv[1], layer, optimizer)
stop()
print([name for thread in os.listdir("/proc/self/task") if "gloo" in (name := open(f"/proc/self/task/{thread}/comm").read())])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="/proc/self/task is Linux's")
def test_no_thread_of_the_process_group_is_left(tmp_path):
    """One that waits for Python when that shuts down would abort a process that has done all its work."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    environment = os.environ | {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    words = [sys.executable, "-c", STOPPED, str(tmp_path / "state")]
    assert subprocess.run(words, env=environment, capture_output=True, text=True, check=True).stdout == "[]\n"


def test_without_other_processes_it_says_how_to_start_them():
    with pytest.raises(RankError, match="there is no process group: start the program with torchrun"):
        Ranks()
    with pytest.raises(RankError, match="not set: start the program with torchrun --nproc-per-node N"):
        start()
