"""Contestants side by side in one run: interleaved, repeated, medians; every figure ends up as a ratio."""

import shlex
import statistics
import sys
import time
from collections.abc import Callable

from antembed.reporting import append_record


def interleave(contestants: dict[str, Callable[[], object]], repeats: int, warm_up: int = 3) -> dict[str, float]:
    """Median seconds of each, measured in turn so that a noisy moment hits all of them."""
    for _ in range(warm_up):
        for work in contestants.values():
            work()
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(repeats):
        for name, work in contestants.items():
            started = time.perf_counter()
            work()
            times[name].append(time.perf_counter() - started)
    return {name: statistics.median(found) for name, found in times.items()}


def publish(path: str | None, record: dict[str, object]) -> None:
    """Print a result, and append it to the records if asked to."""
    print(record)
    if path:
        append_record(path, {**record, "command": shlex.join(["python", *sys.argv])})
