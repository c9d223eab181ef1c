"""The process group of a program that torchrun, SLURM or Kubernetes has started several times."""

import importlib
import os
from datetime import timedelta

import torch.distributed as dist

from antembed.layer.sharded.collectives import RankError, Ranks

TIMEOUT = 600.0  # seconds
RESTARTS = "TORCHELASTIC_RESTART_COUNT"
NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def launched() -> bool:
    """Whether this process is one of several, by the variables that torchrun sets."""
    return all(name in os.environ for name in NEEDED)


def restarted() -> bool:
    """Whether torchrun has started this program again after a failure."""
    return int(os.environ.get(RESTARTS, "0")) > 0


def start(timeout: float | None = None, backend: str = "gloo") -> Ranks:
    """Join the other processes; a rank that does not come or does not answer within `timeout` seconds is an error. Default:
    ANTEMBED_TIMEOUT, or ten minutes."""
    seconds = float(os.environ.get("ANTEMBED_TIMEOUT", TIMEOUT)) if timeout is None else timeout
    if dist.is_initialized():
        return Ranks()
    if not launched():
        missing = ", ".join(name for name in NEEDED if name not in os.environ)
        raise RankError(f"{missing} not set: start the program with torchrun --nproc-per-node N")
    # Default arguments there are the process group, if there is one when it is imported: nobody could end its threads then.
    importlib.import_module("torch.distributed.nn.functional")
    wait = timedelta(seconds=seconds)
    try:
        store, rank, size = next(dist.rendezvous("env://", timeout=wait))
        # torchrun keeps its store over restarts, and the addresses of processes that are gone in it.
        attempt = dist.PrefixStore(f"attempt {os.environ.get(RESTARTS, '0')}", store)
        dist.init_process_group(backend, store=attempt, rank=rank, world_size=size, timeout=wait)
    except RuntimeError as error:
        own, ranks, address, port = (os.environ[name] for name in NEEDED)
        raise RankError(
            f"rank {own} of {ranks}: not all ranks came to {address}:{port} within {seconds:g} s "
            f"({str(error).splitlines()[0][:200]}); start the missing ones, or set GLOO_SOCKET_IFNAME to the interface "
            "that the machines share"
        ) from error
    return Ranks()


def stop() -> None:
    """Leave the process group. Its threads end here: one that waits for Python when that shuts down aborts the process."""
    if dist.is_initialized():
        dist.destroy_process_group()
