"""The fused engine beside other busy processes, and with two threads on one core: how much of its fair share does it get?

    python benchmarks/busy.py [--record results/bench.jsonl]

With b busy processes on c cores, t threads out of t + b get min(t, c·t/(t + b)) cores. Their fair speed is so many times that
of one thread alone, but no more than theirs on an idle machine. Contestants take turns; medians count.
"""

import argparse
import os
import statistics
import time

from experiments.bench import fused, shape_of_movielens_25m
from experiments.race import busy_processes

from antembed.native.threads import usable_cpus
from common import publish

THREADS, BUSY = (1, 2), (0, 1, 4)


def cores_of(threads: int, busy: int, cores: int) -> float:
    """What a fair scheduler gives to so many threads beside so many busy processes."""
    return min(threads, cores * threads / (threads + busy))


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--record", help="append the result to this JSONL file")
    options.add_argument("--ratings", type=int, default=1_000_000)
    options.add_argument("--repeats", type=int, default=5)
    chosen = options.parse_args()
    data, cores = shape_of_movielens_25m(chosen.ratings), usable_cpus()
    works = {threads: fused(data, "anchor", threads) for threads in THREADS}
    for work in works.values():  # compiled, and in the caches
        work()

    def speed(threads: int) -> float:
        started = time.perf_counter()
        return works[threads]() / (time.perf_counter() - started)

    found: dict[tuple[int, int, int], list[float]] = {}  # threads, busy processes, cores
    for _ in range(chosen.repeats):
        for busy in BUSY:
            with busy_processes(busy):
                for threads in THREADS:
                    found.setdefault((threads, busy, cores), []).append(speed(threads))
        if cores > 1 and hasattr(os, "sched_setaffinity"):
            bound = os.sched_getaffinity(0)
            every = [int(task) for task in os.listdir("/proc/self/task")]
            try:
                for task in every:
                    os.sched_setaffinity(task, {min(bound)})
                found.setdefault((2, 0, 1), []).append(speed(2))
            finally:
                for task in every:
                    os.sched_setaffinity(task, bound)
    speeds = {case: statistics.median(each) for case, each in found.items()}
    table = {}
    for (threads, busy, of), got in speeds.items():
        fair = min(speeds[1, 0, cores] * cores_of(threads, busy, of), speeds[threads, 0, cores])
        name = f"{threads} thread{'s' * (threads > 1)}, {busy} busy, {of} core{'s' * (of > 1)}"
        table[name] = {"million_ratings_a_second": got / 1e6, "times_the_time_of_its_fair_share": fair / got}
        print(f"{name:32} {got / 1e6:7.2f} M/s   fair {fair / 1e6:7.2f}   takes {fair / got:5.2f} × its share")
    setting = f"anchored tables, {chosen.ratings:,} ratings an epoch, {cores} cores"
    publish(chosen.record, {"benchmark": "busy machine", "setting": setting, "speeds": table})


if __name__ == "__main__":
    main()
