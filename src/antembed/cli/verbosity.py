"""What --quiet says; every call of the program sets it."""

from dataclasses import dataclass


@dataclass
class Verbosity:
    """Whether progress is left out."""

    quiet: bool = False


verbosity = Verbosity()
