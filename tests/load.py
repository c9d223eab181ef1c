"""Long use and hard conditions, counted: `python -m tests.load --seconds 600 --record results/reliability.jsonl`.

look-ups   4 processes of 8 threads each read one mapped file; every row is compared with what it should be
stopped    runs that are stopped and continued (SIGSTOP, SIGCONT) at random moments end in the same bytes
memory     runs under limits of address space end well or with an error of one line; continued without, in the same bytes
cgroup     the same where the kernel kills what takes more than its control group may
clock      runs during which the clock jumps by hours, back and forth, end in the same bytes
"""

import argparse
import json
import multiprocessing
import os
import random
import resource
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from tests.command import QUICK, write_ratings
from tests.torture import contents

import antembed as ant
from antembed.sweep.records import append_record
from antembed.tables.save import load_table

PARTS = ("look-ups", "stopped", "memory", "cgroup", "clock")
GROUPS = [100, 200, 300, 600]  # MB
PROCESSES, THREADS = 4, 8
ROWS, ASKED = 80_000, 512
RUN = ("train", "recommend", "RATINGS", *map(str, QUICK), "--epochs", "6", "--threads", "1", "--resume", "--out")
JUMPING = """
import random, time
real, jumps = time.time, random.Random(0)
time.time = lambda: real() + 3600 * jumps.uniform(-5, 5)
"""


def look_up(path: Path, whole: Path, seconds: float, answer: "multiprocessing.Queue[tuple[int, int, int, int]]") -> None:
    """In a process of its own: threads that read random rows. → look-ups, wrong ones, KB held early on and at the end."""
    table, expected = load_table(path), np.load(whole, mmap_mode="r")
    counts, wrong, until = [0] * THREADS, [0] * THREADS, time.monotonic() + seconds

    def work(thread: int) -> None:
        rng = np.random.default_rng([os.getpid(), thread])
        while time.monotonic() < until:
            ids = rng.integers(0, ROWS, ASKED)
            wrong[thread] += int((table[ids] != expected[ids]).any())
            counts[thread] += 1

    workers = [threading.Thread(target=work, args=(thread,)) for thread in range(THREADS)]
    for worker in workers:
        worker.start()
    time.sleep(seconds / 3)
    early = own_memory()
    for worker in workers:
        worker.join()
    answer.put((sum(counts), sum(wrong), early, own_memory()))


def own_memory() -> int:
    """KB that are not pages of files."""
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("RssAnon"))


def look_ups(folder: Path, seconds: float) -> dict[str, object]:
    rng = np.random.default_rng(0)
    E = (rng.standard_normal((ROWS, 32)) * 0.85 ** np.arange(32)).astype(np.float32)
    found: dict[str, object] = {}
    for method in ("transform", "sparse"):
        path, whole = folder / f"{method}.ant", folder / f"{method}.npy"
        ant.compress(E, budget="4x" if method == "transform" else "8x", method=method).save(path)
        np.save(whole, load_table(path)[np.arange(ROWS)])
        context = multiprocessing.get_context("spawn")
        answer = context.Queue()
        workers = [context.Process(target=look_up, args=(path, whole, seconds / 2, answer)) for _ in range(PROCESSES)]
        for worker in workers:
            worker.start()
        rows = [answer.get() for _ in workers]
        for worker in workers:
            worker.join()
        found[method] = {
            "look_ups": sum(row[0] for row in rows),
            "wrong": sum(row[1] for row in rows),
            "grown_mb": round(max(row[3] - row[2] for row in rows) / 1024, 1),
        }
    return found


def run(folder: Path, name: str, **more: object) -> subprocess.Popen[str]:
    words = [str(folder / "ratings.csv") if word == "RATINGS" else word for word in RUN]
    return subprocess.Popen(
        [sys.executable, "-m", "antembed", "--quiet", *words, str(folder / name)],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, **more,
    )  # fmt: skip


def stopped(folder: Path, expected: dict[str, str], times: int, rng: random.Random) -> dict[str, int]:
    different = stops = 0
    for number in range(times):
        process = run(folder, f"stopped{number}")
        while process.poll() is None:
            time.sleep(rng.uniform(0.05, 1.0))
            if process.poll() is None:
                process.send_signal(signal.SIGSTOP)
                time.sleep(rng.uniform(0.05, 0.5))
                process.send_signal(signal.SIGCONT)
                stops += 1
        different += contents(folder / f"stopped{number}") != expected
    return {"runs": times, "stops": stops, "different": different}


def short_of_memory(
    folder: Path, expected: dict[str, str], kind: str, limits: list[int], limited: Callable[[int], Callable[[], None]]
) -> dict[str, object]:
    """limited(MB) is what a new process does to itself; limits are less than the program takes, about as much, more."""
    ends: dict[str, str] = {}
    different = 0
    for limit in limits:
        name = f"{kind}{limit}"
        process = run(folder, name, preexec_fn=limited(limit))
        _, text = process.communicate()
        lines = [line for line in text.splitlines() if line.strip()]
        ends[str(limit)] = (
            "finished" if process.returncode == 0 else f"exit {process.returncode}: {lines[-1][:120] if lines else ''}"
        )
        run(folder, name).communicate()
        different += contents(folder / name) != expected
    return {"ends": ends, "different": different}


def address_space(limit: int) -> Callable[[], None]:
    size = limit << 20
    return lambda: resource.setrlimit(resource.RLIMIT_AS, (size, size))


def group_folder(limit: int) -> Path:
    """Of a control group of version 2 or 1."""
    mount = Path("/sys/fs/cgroup")
    return (mount if (mount / "cgroup.controllers").exists() else mount / "memory") / f"antembed-load-{limit}"


def control_group(limit: int) -> Callable[[], None]:
    group = group_folder(limit)
    group.mkdir(exist_ok=True)
    name = next(name for name in ("memory.max", "memory.limit_in_bytes") if (group / name).exists())
    (group / name).write_text(str(limit << 20))
    return lambda: (group / "cgroup.procs").write_text(str(os.getpid()))


def jumping_clock(folder: Path, expected: dict[str, str], times: int) -> dict[str, int]:
    (folder / "sitecustomize.py").write_text(JUMPING)
    path = os.pathsep.join([str(folder), *sys.path])
    different = 0
    for number in range(times):
        process = run(folder, f"clock{number}", env={**os.environ, "PYTHONPATH": path})
        process.communicate()
        different += process.returncode != 0 or contents(folder / f"clock{number}") != expected
    return {"runs": times, "different": different}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=600, help="of look-ups")
    parser.add_argument("--times", type=int, default=10, help="runs that are stopped, and with a jumping clock")
    parser.add_argument("--only", default=",".join(PARTS), help="of these, with commas between (default all of them)")
    parser.add_argument("--record", help="append the counts to this file")
    options = parser.parse_args()
    parts = options.only.split(",")
    if unknown := set(parts) - set(PARTS):
        parser.error(f"{', '.join(sorted(unknown))} is none of {', '.join(PARTS)}")
    if "cgroup" in parts:  # known before the long part, not after it
        try:
            control_group(GROUPS[0])
        except (OSError, StopIteration) as error:
            parser.error(f"no control group for memory can be made here ({error}); be root, or leave it out with --only")
    row: dict[str, object] = {"attack": "load"}
    failures = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["ANTEMBED_CACHE"] = str(folder / "cache")
        write_ratings(folder / "ratings.csv")
        run(folder, "whole").communicate()
        expected = contents(folder / "whole")
        for part in parts:
            if part == "look-ups":
                row["seconds"], row[part] = options.seconds, look_ups(folder, options.seconds)
                failures += sum(found["wrong"] for found in row[part].values())
                continue
            if part == "stopped":
                found = stopped(folder, expected, options.times, random.Random(0))
            elif part == "memory":
                found = short_of_memory(folder, expected, part, [500, 1500, 2500, 4000], address_space)
            elif part == "cgroup":
                found = short_of_memory(folder, expected, part, GROUPS, control_group)
                for limit in GROUPS:
                    group_folder(limit).rmdir()
            else:
                found = jumping_clock(folder, expected, options.times)
            row[part] = found
            failures += found["different"]
    row["failures"] = failures
    row["command"] = shlex.join(["python", "-m", "tests.load", *sys.argv[1:]])
    print(json.dumps(row, indent=1))
    if options.record:
        append_record(options.record, row)
    raise SystemExit(bool(row["failures"]))


if __name__ == "__main__":
    main()
