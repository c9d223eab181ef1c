"""What the benchmark scripts share. Contestants take turns by antembed.pipelines.bench.interleave."""

import shlex
import sys

from antembed.reporting import append_record


def publish(path: str | None, record: dict[str, object]) -> None:
    """Print a result, and append it to the records if asked to."""
    print(record)
    if path:
        append_record(path, {**record, "command": shlex.join(["python", *sys.argv])})
