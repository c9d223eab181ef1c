"""Run kernels on several threads: they release the GIL, so a plain thread pool is enough."""

import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from itertools import pairwise

PARALLEL_FROM = 1 << 16  # numbers; below, starting a second thread (some 30 µs) costs more than it saves
MAX_WORKERS = 256


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
