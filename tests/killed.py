"""python killed.py N WORDS: `antembed WORDS` that ends on the spot, as if killed, when it syncs a file for the Nth time.

What a kill leaves behind depends only on what was written before it, so these are all the moments that there are.
"""

import os
import sys

from antembed.cli import main

KILLED = 99


def die_at_sync(n: int) -> None:
    synced, fsync = 0, os.fsync

    def counting(file: int) -> None:
        nonlocal synced
        synced += 1
        if synced == n:
            os._exit(KILLED)
        fsync(file)

    os.fsync = counting


if __name__ == "__main__":
    die_at_sync(int(sys.argv.pop(1)))
    main()
