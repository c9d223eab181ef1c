"""Instructions that the hot kernels execute, counted by callgrind: the same in every run, whatever else the machine does.

    python -m experiments bench instructions [--record results/instructions.jsonl] [--only NAME…]

valgrind (no Python package) must be installed, on x86-64. Counting is switched on around calls of the kernels: one call, then
LOOPS more than one; the difference, divided by LOOPS and by the units of work of a call, is what a unit costs. Kernels are
compiled for one processor, ALIKE, so that records of all machines with the same compiler can be compared. With --record, it is
said which kernels execute more or fewer instructions than in their last record.
"""

import ctypes
import json
import mmap
import os
import platform
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from experiments.race import child, parse, publish

LOOPS = 4
ALIKE = {
    "NUMBA_CPU_NAME": "haswell",
    "NUMBA_CPU_FEATURES": "+avx,+avx2,+bmi,+bmi2,+f16c,+fma,+lzcnt,+movbe,+popcnt,+sse4.2",
    "OMP_NUM_THREADS": "1",
    "PYTHONHASHSEED": "0",
}
NOTABLE = 0.01  # a change of this share is said
Case = tuple[Callable[[], object], int, str]  # a call, its units of work, what they are called
JSON = dict[str, float]
# Valgrind recognizes these instructions, which do nothing elsewhere: rax is the address of a request, rdx becomes the answer.
REQUEST = bytes.fromhex("4889f8 31d2 48c1c703 48c1c70d 48c1c73d 48c1c733 4887db 4889d0 c3")
CALLGRIND = ord("C") << 24 | ord("T") << 16
DUMP, START, STOP = (CALLGRIND + number for number in (0, 4, 5))


class Valgrind:
    """Requests to the valgrind that runs this process."""

    def __init__(self) -> None:
        self.memory = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
        self.memory.write(REQUEST)
        address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        self.function = ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.POINTER(ctypes.c_uint64))(address)

    def __call__(self, request: int) -> None:
        self.function((ctypes.c_uint64 * 6)(request))


def rows_of(V: int, K: int):
    from antembed.layer.optim.lazy_kernel import Rows, Rule

    rng, none, steps = np.random.default_rng(0), np.empty(0, np.int64), np.ones(9)
    weight, momentum = rng.random((V, K), np.float32), np.full((V, K), 1e-4, np.float32)
    second = np.full((V, K), 1e-6, np.float32)
    rows = Rows(weight, momentum, second, np.zeros(V, np.int32), 0.01 * steps, 1e-9 * np.arange(9), steps, none, none)
    return rows, Rule(0.9, 0.1, 0.999, 1e-3, False, 0.0)


def batch(V: int, n: int):
    from antembed.layer.optim.lazy_kernel import group

    return group(np.random.default_rng(0).integers(0, V, n), np.full(V, -1, np.int32))


def grouping() -> Case:
    from antembed.layer.optim.lazy_kernel import group

    ids, slot = np.random.default_rng(0).integers(0, 2000, 4000), np.full(2000, -1, np.int32)
    return lambda: group(ids, slot), len(ids), "id"


def look_up() -> Case:
    from antembed.layer.lookup_kernel import look_up

    (rows, rule), groups, out = rows_of(2000, 100), batch(2000, 4000), np.empty((4000, 256), np.float32)
    anchors = np.ones((100, 256), np.float32)
    return lambda: look_up(groups, rows, rule, 4, anchors, out, 1), len(groups.unique), "row"


def look_up_gradients() -> Case:
    from antembed.layer.lookup_kernel import gradients

    groups, read = batch(2000, 4000), np.ones((2006, 100), np.float32)
    anchors, arriving = np.ones((100, 256), np.float32), np.ones((4000, 256), np.float32)
    return lambda: gradients(groups, read, anchors, arriving, 1), len(groups.unique), "row"


def lazy_step() -> Case:
    from antembed.layer.optim.lazy_kernel import Step, step_rows

    (rows, rule), groups = rows_of(2000, 100), batch(2000, 4000)
    gradient, U = np.ones((4000, 100), np.float32), len(groups.unique)
    arguments = (0, U, groups.unique, groups.starts, groups.order, gradient, rows, rule, 4, Step(1.0, 0.01, 1e-9))
    return lambda: step_rows(*arguments), U, "row"


def fused_ratings() -> Case:
    import torch

    from antembed.recommend.config import RatingsConfig
    from antembed.train.examples import Examples
    from antembed.train.options import from_options
    from experiments.bench.factorization import epochs_of

    torch.set_num_threads(1)
    rng, n = np.random.default_rng(0), 8192
    columns = rng.integers(0, 2000, n).astype(np.int32), rng.integers(0, 900, n).astype(np.int32), np.ones(n, np.float32)
    config = from_options(RatingsConfig, {"anchors": (10, 15), "biases": False})
    return epochs_of(config, (2000, 900), Examples(columns, np.arange(n, dtype=np.int32), threads=1), 1), n, "rating"


def stored_rows() -> Case:
    from antembed.tables.sparse_product_kernel import mix_csr

    V, K, each = 2000, 100, 4
    starts, values = np.arange(0, each * V + 1, each, dtype=np.int32), np.ones(each * V, np.float32)
    columns = np.random.default_rng(0).integers(0, K, each * V).astype(np.uint8)
    ids, anchors, out = (
        np.random.default_rng(1).integers(0, V, 4000),
        np.ones((K, 256), np.float32),
        np.empty((4000, 256), "f4"),
    )
    damaged = np.full(1, -1)
    return lambda: mix_csr(0, 4000, ids, starts, columns, values, anchors, out, damaged), 4000, "id"


CASES: dict[str, Callable[[], Case]] = {
    "grouping of ids": grouping,
    "layer: look-up": look_up,
    "layer: gradients": look_up_gradients,
    "layer: lazy step": lazy_step,
    "ratings: fused epoch": fused_ratings,
    "files: look-up of sparse rows": stored_rows,
}


def count_calls(names: list[str]) -> None:
    """Inside valgrind: a dump after one call, and one after LOOPS more calls than that, of each kernel."""
    valgrind = Valgrind()
    for name in names:
        case, units, unit = CASES[name]()
        case()
        for calls in (1, 1 + LOOPS):
            valgrind(START)
            for _ in range(calls):
                case()
            valgrind(DUMP)
            valgrind(STOP)
        print(units, unit, flush=True)


def measure(names: list[str]) -> dict[str, JSON]:
    own = [*child("instructions"), "--only", *names]
    with tempfile.TemporaryDirectory() as folder:
        valgrind = ["valgrind", "--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={folder}/out"]
        for command in ([*own, "--compile"], [*valgrind, *own, "--inside"]):  # in valgrind, compiling takes minutes
            done = subprocess.run(command, env=os.environ | ALIKE, capture_output=True, text=True)
            if done.returncode:
                raise SystemExit(f"{command[0]} ended with {done.returncode}:\n{done.stderr[-2000:]}")
        dumps = [_total(Path(folder) / f"out.{n}") for n in range(1, 2 * len(names) + 1)]
    found = {}
    for name, line, few, many in zip(names, done.stdout.splitlines(), dumps[::2], dumps[1::2], strict=True):
        units, unit = line.split()
        found[name] = {f"instructions a {unit}": round((many - few) / LOOPS / int(units), 1)}
    return found


def _total(dump: Path) -> int:
    found = re.search(r"^totals: (\d+)", dump.read_text(), re.MULTILINE)
    if found is None:
        raise SystemExit(f"callgrind's {dump.name} has no total")
    return int(found[1])


def changes(now: dict[str, JSON], path: str | None) -> list[str]:
    """What differs from the last record."""
    before: dict[str, JSON] = {}
    for line in Path(path).read_text().splitlines() if path and Path(path).exists() else []:
        before |= json.loads(line)["kernels"]
    said = []
    for name, counts in now.items():
        for what, count in counts.items():
            old = before.get(name, {}).get(what)
            if old and abs(count / old - 1) > NOTABLE:
                said.append(f"{name}: {count} {what}, {count / old - 1:+.1%}")
    return said


def main(words: list[str]) -> None:
    options = parse(words, __doc__, only=list(CASES), inside=False, compile=False)
    if options.compile:
        for name in options.only:
            CASES[name]()[0]()
        return
    if options.inside:
        count_calls(options.only)
        return
    if shutil.which("valgrind") is None or platform.machine() != "x86_64":
        raise SystemExit("valgrind on x86-64 is needed: it comes with the system's packages (apt install valgrind)")
    counts = measure(options.only)
    differ = changes(counts, options.record)
    publish(options.record, {"benchmark": "instructions", "setting": "callgrind, one thread", "kernels": counts})
    for line in differ or ["no kernel differs from the last record by more than 1 %"]:
        print(line)
