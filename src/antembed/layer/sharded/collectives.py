"""The processes that work together: sums, exchanges of rows, and errors that say which of them failed."""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor

from antembed.files import JSON

PATIENCE = 5.0  # seconds in which the others must say that they have failed, too


class RankError(OSError):
    """A process that is missing, has died, or does something else than the others."""


class Ranks:
    """A process group of torch.distributed; default: all processes. Every method is called by all of them."""

    def __init__(self, group: dist.ProcessGroup | None = None):
        if not dist.is_available() or not dist.is_initialized():
            raise RankError(
                "there is no process group: start the program with torchrun and call antembed.train.processes(), or "
                "torch.distributed.init_process_group"
            )
        self._group = group
        self.rank, self.size = dist.get_rank(self.group), dist.get_world_size(self.group)

    def __deepcopy__(self, memo: object) -> "Ranks":
        return self  # a copy of a layer has the same processes

    @property
    def group(self) -> dist.ProcessGroup:
        """Not kept, if it is the default one: its threads, which must not outlive Python, end only when it is released."""
        return cast(dist.ProcessGroup, dist.group.WORLD if self._group is None else self._group)

    @property
    def first(self) -> bool:
        """Whether this process writes and prints."""
        return self.rank == 0

    @contextmanager
    def reporting(self, doing: str) -> Iterator[None]:
        """An error of the network is one that says who does not answer."""
        try:
            yield
        except RuntimeError as error:
            raise RankError(
                f"rank {self.rank} of {self.size}, {doing}: {self._missing()} ({(str(error).splitlines() or [''])[0][:200]})"
            ) from error

    def _missing(self) -> str:
        """Who does not say within some seconds that it has failed, too."""
        silent = set(range(self.size)) - {self.rank}
        try:
            store = dist.distributed_c10d._get_default_store()
            store.set(f"antembed/failed/{self.rank}", "1")
            until = time.monotonic() + PATIENCE
            while silent and time.monotonic() < until:
                silent = {rank for rank in silent if not store.check([f"antembed/failed/{rank}"])}
                time.sleep(0.05)
        except RuntimeError:  # the store lives in rank 0, or in torchrun
            return "the store of the process group does not answer; rank 0 or its launcher has died"
        names = ", ".join(str(rank) for rank in sorted(silent))
        return f"rank {names} does not answer; it has died or does something else" if names else "all ranks have failed"

    def sum(self, values: Tensor) -> Tensor:
        """The sum over all processes."""
        total = values.detach().clone()
        with self.reporting("adding up"):
            dist.all_reduce(total, group=self.group)
        return total

    def gather(self, values: Tensor) -> Tensor:
        """One row a process: (n, …)."""
        found = [torch.empty_like(values) for _ in range(self.size)]
        with self.reporting("comparing"):
            dist.all_gather(found, values.contiguous(), group=self.group)
        return torch.stack(found)

    def swap(self, values: Tensor, send: list[int], receive: list[int], doing: str) -> Tensor:
        """send[r] rows to each rank r, one after the other; → receive[r] rows from each."""
        found = values.new_empty(sum(receive), *values.shape[1:])
        with self.reporting(doing):
            dist.all_to_all_single(found, values.contiguous(), receive, send, group=self.group)
        return found

    def from_first(self, data: JSON | None) -> JSON:
        """What rank 0 gives, as plain data."""
        packed = torch.tensor(list(json.dumps(data).encode()), dtype=torch.uint8) if self.first else None
        return cast(JSON, json.loads(bytes(self.tensor_from_first(packed, torch.uint8, 1).tolist())))

    def tensor_from_first(self, values: Tensor | None, kind: torch.dtype, dimensions: int) -> Tensor:
        """What rank 0 gives, of this kind."""
        shape = torch.tensor(values.shape if values is not None else [0] * dimensions)
        with self.reporting("asking rank 0"):
            dist.broadcast(shape, group=self.group, group_src=0)
            found = values.contiguous() if values is not None and self.first else torch.empty(shape.tolist(), dtype=kind)
            dist.broadcast(found, group=self.group, group_src=0)
        return found

    def on_first(self, work: Callable[[], None]) -> None:
        """Let rank 0 do something while the others wait; what goes wrong there is raised everywhere."""
        problem: Exception | None = None
        if self.first:
            try:
                work()
            except Exception as error:
                problem = error
        message = self.from_first({"error": None if problem is None else f"rank 0: {problem}"})["error"]
        if problem is not None:
            raise problem
        if message is not None:
            raise RankError(message)

    def wait(self) -> None:
        self.sum(torch.zeros(1))

    def check_same(self, numbers: Mapping[str, float], remedy: str) -> None:
        """Raise in every process if one has other numbers."""
        found = self.gather(torch.tensor(list(numbers.values()), dtype=torch.float64))
        differs = (found != found[0]).any(0)
        if not bool(differs.any()):
            return
        names = [name for name, wrong in zip(numbers, differs.tolist(), strict=True) if wrong]
        at = list(numbers).index(names[0])
        other = int((found[:, at] != found[0, at]).nonzero()[0, 0])
        raise RankError(
            f"{names[0]} is {found[0, at]:.10g} on rank 0 and {found[other, at]:.10g} on rank {other}; {remedy}"
            + (f" (also different: {', '.join(names[1:])})" if names[1:] else "")
        )


class Exchange(torch.autograd.Function):
    """Rows (m, K) to those who asked for them; their gradients take the way back, divided by n as DDP's mean does."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, send: list[int], receive: list[int], ranks: Ranks) -> Tensor:
        ctx.splits, ctx.ranks = (send, receive), ranks
        return ranks.swap(rows, send, receive, "sending rows")

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        send, receive = ctx.splits
        return ctx.ranks.swap(gradients[0] / ctx.ranks.size, receive, send, "sending gradients"), None, None, None
