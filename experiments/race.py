"""What measurements share: their options, their records, and contestants that take turns, so that a noisy moment hits all."""

import argparse
import itertools
import os
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from antembed.files import JSON

Work = Callable[[], int]  # does some of the work and says how much
Clock = Callable[[], float]
Times = dict[str, list[float]]
BUSY = "import os; parent = os.getppid()\nwhile os.getppid() == parent: pass"  # ends if the benchmark is killed


def parse(words: list[str], doc: str | None, /, *positional: str, **defaults: Any) -> argparse.Namespace:
    """Options of a measurement. `positional`: NAME, NAME* (any number) or NAME=DEFAULT. `defaults`: of the options; False is a
    flag, a list takes any number of values of its first one's type, None a text. All have --record FILE."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in positional:
        name, optional, default = name.partition("=")
        more: dict[str, Any] = {"nargs": "?", "default": default} if optional else {"nargs": "*"} if name[-1] == "*" else {}
        parser.add_argument(name.removesuffix("*"), **more)
    for name, default in ({"record": None} | defaults).items():
        flag = f"--{name.replace('_', '-')}"
        if default is False:
            parser.add_argument(flag, action="store_true")
            continue
        several = isinstance(default, list)
        first = default[0] if several and default else None if several else default
        kind = str if first is None else type(first)
        parser.add_argument(flag, default=default, type=kind, nargs="*" if several else None)
    return parser.parse_args(words)


def command() -> str:
    """What was typed, for the record."""
    return shlex.join(["python", "-m", "experiments", *sys.argv[1:]])


def child(name: str) -> list[str]:
    """The beginning of a call of a measurement in a process of its own."""
    return [sys.executable, "-m", "experiments", "bench", name]


def antembed(words: Sequence[str], **environment: str) -> str:
    """What a command prints on stdout, in a process of its own."""
    line = [sys.executable, "-m", "antembed", "--quiet", *words]
    done = subprocess.run(line, capture_output=True, text=True, env=os.environ | environment)
    if done.returncode:
        raise SystemExit(f"antembed {shlex.join(words)} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return done.stdout


def publish(path: str | None, record: JSON) -> None:
    """Print a result, and append it to the records if asked to."""
    from antembed.sweep.records import append_record  # not under valgrind, where importing takes long

    print(record)
    if path:
        append_record(path, {**record, "command": command()})


def counted(call: Callable[[], object]) -> Work:
    """The call as one unit of work."""
    return lambda: (call(), 1)[1]


def training(layer: Any, optimizer: Any, batches: Sequence[Any], gradient: Any) -> Work:
    """Steps of a layer on batches in turn; `gradient`: what the rest of a model would send back."""
    order = itertools.cycle(batches)

    def step() -> None:
        layer(next(order)).backward(gradient)
        optimizer.step()
        optimizer.zero_grad()

    return counted(step)


def take_turns(contestants: dict[str, Work], repeats: int, clock: Clock = time.perf_counter) -> Times:
    """Seconds a unit of work, of each turn; a first turn does not count."""
    times: Times = {name: [] for name in contestants}
    for turn in range(repeats + 1):
        for name, work in contestants.items():
            started = clock()
            done = work()
            if turn:
                times[name].append((clock() - started) / done)
    return times


def median_turns(contestants: dict[str, Work], repeats: int) -> dict[str, float]:
    """Median seconds a unit of work of each."""
    return {name: statistics.median(found) for name, found in take_turns(contestants, repeats).items()}


def processor_time_of_children() -> float:
    """A clock that other processes hardly touch: seconds of the processor that finished children have used."""
    spent = os.times()
    return spent.children_user + spent.children_system


def compare(times: Times, ours: str, limit: str | None = None, busy: int = 0) -> list[JSON]:
    """One row a peer: medians, their ratio (above 1 the peer takes longer), its quartiles over the turns, and which share of
    what the machine allows (`limit`, a contestant that only does what cannot be avoided) we reach."""
    middle = {name: statistics.median(found) for name, found in times.items()}
    rows = []
    for peer in times.keys() - {ours, limit}:
        low, _, high = statistics.quantiles([p / o for p, o in zip(times[peer], times[ours], strict=True)], n=4)
        row = {"ours": ours, "peer": peer, "seconds": middle[ours], "peer_seconds": middle[peer]}
        row |= {"ratio": middle[peer] / middle[ours], "quartiles": [low, high], "busy_processes": busy}
        if limit is not None:
            row |= {"limit_seconds": middle[limit], "share_of_limit": middle[limit] / middle[ours]}
        rows.append({name: rounded(value) for name, value in row.items()})
    return sorted(rows, key=lambda row: list(times).index(str(row["peer"])))


class Others:
    """How many cores other processes keep busy, or the host gives to other machines, from its making to its call; None where
    the system does not say."""

    def __init__(self) -> None:
        self.before = self._now()

    def __call__(self) -> float | None:
        after = self._now()
        if self.before is None or after is None:
            return None
        clock, busy = (new - old for new, old in zip(after, self.before, strict=True))
        return round(busy / clock, 2)

    @staticmethod
    def _now() -> tuple[float, float] | None:
        try:
            ticks = [int(word) for word in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
        except OSError:
            return None
        idle, own, used = ticks[3] + ticks[4], os.times(), os.sysconf("SC_CLK_TCK")
        return time.perf_counter(), (sum(ticks) - idle) / used - (
            own.user + own.system + own.children_user + own.children_system
        )


def rounded(value: object) -> object:
    """Four significant digits are more than a clock gives."""
    if isinstance(value, list):
        return [rounded(each) for each in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value


@contextmanager
def busy_processes(n: int) -> Iterator[None]:
    """Beside so many processes that do nothing but compute."""
    with ExitStack() as stack:
        for _ in range(n):
            process = subprocess.Popen([sys.executable, "-c", BUSY])
            stack.callback(process.wait)
            stack.callback(process.kill)
        time.sleep(0.3 if n else 0)  # until they are
        yield
