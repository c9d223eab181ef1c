"""What the benchmark scripts share. Contestants take turns by experiments.race."""

import shlex
import sys

from antembed.files import JSON
from antembed.sweep.records import append_record


def publish(path: str | None, record: JSON) -> None:
    """Print a result, and append it to the records if asked to."""
    print(record)
    if path:
        append_record(path, {**record, "command": shlex.join(["python", *sys.argv])})
