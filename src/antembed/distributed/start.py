"""The process group of a program that torchrun, SLURM or Kubernetes has started several times."""

import os
from datetime import timedelta

import torch.distributed as dist

from antembed.distributed.ranks import RankError, Ranks

TIMEOUT = 600.0  # seconds
NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def launched() -> bool:
    """Whether this process is one of several, by the variables that torchrun sets."""
    return all(name in os.environ for name in NEEDED)


def restarted() -> bool:
    """Whether torchrun has started this program again after a failure."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0


def start(timeout: float | None = None, backend: str = "gloo") -> Ranks:
    """Join the other processes; a rank that does not come or does not answer within `timeout` seconds is an error. Default:
    ANTEMBED_TIMEOUT, or ten minutes."""
    seconds = float(os.environ.get("ANTEMBED_TIMEOUT", TIMEOUT)) if timeout is None else timeout
    if dist.is_initialized():
        return Ranks()
    if not launched():
        missing = ", ".join(name for name in NEEDED if name not in os.environ)
        raise RankError(f"{missing} not set: start the program with torchrun --nproc-per-node N")
    try:
        dist.init_process_group(backend, timeout=timedelta(seconds=seconds))
    except dist.DistError as error:
        rank, size, address, port = (os.environ[name] for name in NEEDED)
        raise RankError(
            f"rank {rank} of {size}: not all ranks came to {address}:{port} within {seconds:g} s "
            f"({str(error).splitlines()[0][:200]}); start the missing ones, or set GLOO_SOCKET_IFNAME to the interface "
            "that the machines share"
        ) from error
    return Ranks()


def stop() -> None:
    """Leave the process group."""
    if dist.is_initialized():
        dist.destroy_process_group()


def current() -> Ranks | None:
    """The processes that work together; None: there is one."""
    return Ranks() if dist.is_available() and dist.is_initialized() else None
