"""Arrays that every process would make alike, as the order of an epoch: one process of a machine makes them, all map the file.

The file is removed as soon as all have opened it; the mapping stays.
"""

import secrets
import socket
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from antembed.data.data_plain import PARTIAL
from antembed.files import default_cache
from antembed.layer.sharded.collectives import RankError, Ranks


def one_copy(ranks: Ranks, make: Callable[[], np.ndarray], n: int, kind: np.dtype) -> np.ndarray:
    """make(), of n numbers of this kind, read-only; called by all processes, `make` by the first of each machine."""
    if ranks.size == 1 or n == 0:
        return make()
    hosts = ranks.gather(torch.tensor(zlib.crc32(socket.gethostname().encode()))).tolist()
    maker = hosts.index(hosts[ranks.rank])
    token = ranks.from_first({"token": secrets.token_hex(8)})["token"]
    file = default_cache() / f"{PARTIAL}{token}-{maker}"  # what a killed process leaves is removed with others of this name
    if maker == ranks.rank:
        _write(ranks, file, make)
    else:
        _check(ranks, None)
    found = np.memmap(file, kind, "r", shape=(n,)).view(np.ndarray)
    ranks.wait()
    if maker == ranks.rank:
        file.unlink()
    return found


def _write(ranks: Ranks, file: Path, make: Callable[[], np.ndarray]) -> None:
    problem: OSError | None = None
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        make().tofile(file)
    except OSError as error:
        problem = error
    _check(ranks, problem)


def _check(ranks: Ranks, problem: OSError | None) -> None:
    """Raise everywhere if one could not write."""
    failed = ranks.gather(torch.tensor(int(problem is not None))).tolist()
    if any(failed):
        why = f" ({problem})" if problem is not None else ""
        raise RankError(
            f"rank {failed.index(1)} could not write the order of the examples{why}; set ANTEMBED_CACHE to another folder"
        ) from problem
