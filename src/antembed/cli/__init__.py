"""The command line: parse, call, print. Results on stdout, progress and errors on stderr."""

import sys

from antembed.extras import explained


def main() -> None:
    """Entry point. A bad file, option value or run is one clear line and exit code 1; a wrong call is 2."""
    try:
        from antembed.cli.app import app

        app()
    except ImportError as error:
        sys.stderr.write(f"error: {explained(error, 'this command')}\n")
        sys.exit(1)
    except (ValueError, OSError) as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(1)
