"""The command line: parse, call, print. Results on stdout, progress and errors on stderr."""

import os
import sys
import traceback
from collections.abc import MutableMapping

from antembed.cli.show import printable, verbosity
from antembed.extras import explained

SPINS = "1000"  # looks of GNU's OpenMP before a thread sleeps, 300 000 by default; others know the policy only
LONGEST = 1000  # letters of an error: some libraries put entire tables into theirs


def main() -> None:
    """Entry point. A bad file, option value or run is one clear line and exit code 1; a wrong call is 2."""
    wait_briefly(os.environ)  # before torch is imported: OpenMP reads it once
    try:
        from antembed.cli.app import app

        app()
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        sys.exit(1)
    except Exception as error:
        if verbosity.debug:
            traceback.print_exc()
        line = printable(" ".join(in_words(error).split()))
        sys.stderr.write(f"error: {line if len(line) <= LONGEST else line[:LONGEST] + ' …'}\n")
        sys.exit(1)


def wait_briefly(environment: MutableMapping[str, str]) -> None:
    """Threads of OpenMP that wait for another sleep soon, unless the user has said how they wait.

    By default they poll for milliseconds. Beside another busy process they then hold the core that the other thread needs to
    arrive: small steps take many times as long. Results do not depend on it.
    """
    if not any(name in environment for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")):
        environment.update(OMP_WAIT_POLICY="passive", GOMP_SPINCOUNT=SPINS)


def in_words(error: Exception) -> str:
    """What went wrong and what to do. Errors that we raise say both; others are named."""
    if isinstance(error, ImportError):
        return str(explained(error, "this command"))
    if isinstance(error, MemoryError):
        return f"out of memory ({error}); take fewer rows or dimensions, or a machine with more"
    if isinstance(error, FileNotFoundError) and error.filename is not None:
        return f"{error.filename} does not exist; check the path"
    if isinstance(error, ValueError | OSError):
        return str(error)
    return f"{type(error).__name__}: {error}; an unexpected one: antembed --debug … says where, please report it"
