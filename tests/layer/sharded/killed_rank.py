"""torchrun … killed_rank.py RANK MOMENT WORDS: `antembed WORDS`, of which one process is killed by SIGKILL the first time.

MOMENT is "sync 3" (when it syncs a file for the third time) or "exchange 70" (before it exchanges something with the others for
the 70th time). Both are counted, not timed: the same moments on any machine, however busy. At the end each process says on
stderr how many exchanges it had.
"""

import atexit
import os
import signal
import sys
from collections.abc import Callable

from antembed.cli import main
from antembed.layer.sharded.collectives import Ranks

counts = {"sync": 0, "exchange": 0}


def counted(kind: str, function: Callable, deadly: int) -> Callable:
    """The function, whose call number `deadly` is the end."""

    def counting(*args):
        counts[kind] += 1
        if counts[kind] == deadly:
            print(f"killed at {kind} {deadly}", file=sys.stderr, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*args)

    return counting


if __name__ == "__main__":
    rank, (chosen, number) = int(sys.argv.pop(1)), sys.argv.pop(1).split()
    dies = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and int(os.environ["RANK"]) == rank
    deadly = dict.fromkeys(counts, 0) | ({chosen: int(number)} if dies else {})
    os.fsync = counted("sync", os.fsync, deadly["sync"])
    Ranks.reporting = counted("exchange", Ranks.reporting, deadly["exchange"])
    atexit.register(lambda: print(f"exchanges of rank {os.environ['RANK']}: {counts['exchange']}", file=sys.stderr))
    main()
