"""Run kernels on several threads: they release the GIL, so a plain thread pool is enough."""

import math
import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache, lru_cache
from itertools import pairwise
from pathlib import Path

PARALLEL_FROM = 1 << 16  # numbers; below, starting a second thread (some 30 µs) costs more than it saves
MAX_WORKERS = 256  # more are taken for a mistake


def usable_cpus(root: Path | None = None) -> int:
    """Cores that this process can keep busy: those it is bound to, but no more than the CPU quota of its containers."""
    bound = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, math.floor(min(bound, _own_quota() if root is None else cpu_quota(root))))


@cache
def _own_quota() -> float:
    """Of this process, read once: the files take as long as a small look-up."""
    return cpu_quota()


def cpu_quota(root: Path = Path("/")) -> float:
    """The least quota, in cores, of the control groups that this process is in; infinite if there is none."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:  # not on Linux
        return math.inf
    mounts, least = root / "sys/fs/cgroup", math.inf
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        group = Path(path.lstrip("/"))
        for mount in (mounts, mounts / (controllers or "unified"), mounts / "cpu"):
            # From inside a container its own group is the mount itself, whatever its path is called outside.
            least = min(least, *(_quota_of(mount / part) for part in (group, *group.parents)))
    return least


def _quota_of(group: Path) -> float:
    """The quota of one control group, of version 2 (one file) or 1 (two)."""
    for files in (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us")):
        try:
            quota, period = (word for name in files for word in (group / name).read_text().split())
            if quota not in ("max", "-1"):
                return int(quota) / int(period)
        except (OSError, ValueError, ZeroDivisionError):
            continue
    return math.inf


@lru_cache(maxsize=1)
def _pool(process: int) -> ThreadPoolExecutor:
    # Threads are created as needed. There must be one for each worker of a barrier, or they would wait for ever.
    return ThreadPoolExecutor(max_workers=MAX_WORKERS, thread_name_prefix="antembed")


def run_workers(work: Callable[[int], object], workers: int, cancel: Callable[[], object]) -> None:
    """Call work(0) … work(workers − 1) at the same time; they may wait for each other. If one fails, `cancel` must release the
    others.
    """
    if workers > MAX_WORKERS:
        raise ValueError(f"{workers} threads were requested, at most {MAX_WORKERS} are supported")

    def guarded(worker: int) -> None:
        try:
            work(worker)
        except BaseException:
            cancel()
            raise

    futures: list[Future[None]] = []
    try:
        futures += [_pool(os.getpid()).submit(guarded, worker) for worker in range(1, workers)]
        work(0)
    except BaseException:
        cancel()
        raise
    finally:
        for future in futures:
            future.result()


def parallel_for(work: Callable[[int, int], object], rows: int, width: int, threads: int) -> None:
    """Call work(start, stop) over [0, rows) in `threads` equal parts, which depend on the arguments only."""
    if threads < 2 or rows < threads or rows * width < PARALLEL_FROM:
        work(0, rows)
        return
    cuts = [rows * part // threads for part in range(threads + 1)]
    # One pool per process: a forked child must not wait for its parent's threads.
    futures = [_pool(os.getpid()).submit(work, *cut) for cut in pairwise(cuts[1:])]
    try:
        work(cuts[0], cuts[1])
    finally:
        for future in futures:
            future.result()


def take_turns(work: Callable[[int], object], parts: int, threads: int) -> None:
    """Call work(0) … work(parts − 1), each once; a thread takes the next one when it is done: a slow core stalls no other."""
    todo = iter(range(parts))  # `next` holds the GIL

    def worker(_: int) -> None:
        for piece in todo:
            work(piece)

    run_workers(worker, max(min(threads, parts), 1), lambda: [*todo])
