"""What the benchmark scripts share. Contestants take turns by antembed.experiments.race."""

import shlex
import sys

from antembed.experiments.records import append_record
from antembed.files import JSON


def publish(path: str | None, record: JSON) -> None:
    """Print a result, and append it to the records if asked to."""
    print(record)
    if path:
        append_record(path, {**record, "command": shlex.join(["python", *sys.argv])})
