"""Text from data made safe for a terminal, and what --quiet and --debug say. Imports nothing: errors need it."""

import re
from dataclasses import dataclass

# Controls (ESC begins a terminal's commands), line and paragraph separators, overrides of the direction, halves of characters.
UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: object) -> str:
    """One line that shows what is in it: \\x1b for ESC, \\n for a line end."""
    return UNSAFE.sub(lambda found: found[0].encode("unicode_escape").decode(), str(text))


@dataclass
class Verbosity:
    """Whether progress is left out, and whether an error shows where it was raised."""

    quiet: bool = False
    debug: bool = False


verbosity = Verbosity()
