"""What --quiet and --debug say; every call of the program sets it."""

from dataclasses import dataclass


@dataclass
class Verbosity:
    """Whether progress is left out, and whether an error shows where it was raised."""

    quiet: bool = False
    debug: bool = False


verbosity = Verbosity()
