"""torchrun … killed_rank.py RANK MOMENT WORDS: `antembed WORDS`, of which one process is killed by SIGKILL the first time.

MOMENT is "sync 3" (when it syncs a file for the third time) or "time 0.7" (so many seconds after training has begun).
"""

import os
import signal
import sys
import threading

from antembed.cli import main
from antembed.solvers.stochastic import Stochastic


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def die_at_sync(n: int) -> None:
    synced, fsync = 0, os.fsync

    def counting(file: int) -> None:
        nonlocal synced
        synced += 1
        if synced == n:
            die()
        fsync(file)

    os.fsync = counting


def die_after(seconds: float) -> None:
    fit = Stochastic.fit

    def timed(*args, **kwargs):
        timer = threading.Timer(seconds, die)
        timer.daemon = True
        timer.start()
        return fit(*args, **kwargs)

    Stochastic.fit = timed


if __name__ == "__main__":
    rank, moment = int(sys.argv.pop(1)), sys.argv.pop(1).split()
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and int(os.environ["RANK"]) == rank:
        die_at_sync(int(moment[1])) if moment[0] == "sync" else die_after(float(moment[1]))
    main()
