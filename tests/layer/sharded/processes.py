"""Start n gloo processes that meet through a file, and wait for them."""

import faulthandler
import multiprocessing
import os
import sys
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from antembed.layer.sharded import collectives as module
from antembed.layer.sharded.collectives import Ranks

LONGEST = 1800  # seconds: no test is as slow, also on a busy machine; a hanging one ends
_context = multiprocessing.get_context("forkserver")  # imports torch once
_context.set_forkserver_preload(["antembed.train.sharded_checkpoint", "antembed.train.run", "processes"])


def launch(function: Callable[..., None], n: int, folder: Path, *args: object, timeout: float = 300) -> list[int]:
    """function(ranks, folder, *args) in n processes; → their exit codes. What they raise is in folder/RANK.error."""
    folder.mkdir(parents=True, exist_ok=True)
    started = [_context.Process(target=_work, args=(function, rank, n, folder, args, timeout)) for rank in range(n)]
    for process in started:
        process.start()
    for process in started:
        process.join(LONGEST)
        if process.is_alive():
            process.kill()
            process.join()
    return [process.exitcode for process in started]


def errors(folder: Path, n: int) -> list[str]:
    return [path.read_text() if (path := folder / f"{rank}.error").exists() else "" for rank in range(n)]


def succeed(function: Callable[..., None], n: int, folder: Path, *args: object) -> None:
    codes = launch(function, n, folder, *args)
    assert codes == [0] * n, "\n".join((folder / f"{rank}.trace").read_text() for rank in range(n) if codes[rank])


def _work(function: Callable[..., None], rank: int, n: int, folder: Path, args: tuple, timeout: float) -> None:
    torch.set_num_threads(1)
    module.PATIENCE = 1.0
    file = (folder / f"{rank}.trace").open("w")
    faulthandler.enable(file)
    try:
        meeting = f"file://{folder}/meeting"
        dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=n, timeout=timedelta(seconds=timeout))
        function(Ranks(), folder, *args)
        dist.destroy_process_group()
    except BaseException as error:
        (folder / f"{rank}.error").write_text(f"{type(error).__name__}: {error}")
        traceback.print_exc(file=file)
        file.close()
        sys.stdout.flush()
        os._exit(1)
