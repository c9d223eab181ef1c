"""Opening large tables: milliseconds, the first look-ups, and the memory that is the process's own or shared with others.

    python benchmarks/opening.py --rows 10000000 --record results/reliability.jsonl

Each figure is of a process of its own that imports NumPy and antembed.tables first. Files are made of random numbers; the
coded one repeats the blocks of a small one, which changes nothing for opening and look-up.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

import antembed as ant
from antembed.files import JSON
from antembed.tables.container import pack, unpack
from antembed.tables.nonzeros import smallest_unsigned
from antembed.tables.word_index import pack_words
from common import publish

CHILD = """
import json, sys, time
import numpy as np
from antembed.tables.save import load_table

def memory():
    with open("/proc/self/smaps_rollup") as file:
        found = {line.split(":")[0]: int(line.split()[1]) / 1024 for line in file if line.endswith("kB\\n")}
    return found["Anonymous"], found["Rss"]

path, verify = sys.argv[1], sys.argv[2] == "verify"
own, rss = memory()
times = [time.perf_counter()]
table = load_table(path, verify=True if verify else None)
times.append(time.perf_counter())
opened = memory()
ids = np.random.default_rng(0).integers(0, len(table), 1000)
for _ in range(2):
    table[ids]
    times.append(time.perf_counter())
found = dict(zip(("open_ms", "first_thousand_ms", "next_thousand_ms"), np.diff(times) * 1000))
if table.words is not None:
    start = time.perf_counter()
    assert table.words.find("w7") == 7
    found["first_word_ms"] = (time.perf_counter() - start) * 1000
last = memory()
found |= {"opened_own_mb": opened[0] - own, "opened_rss_mb": opened[1] - rss, "own_mb": last[0] - own, "rss_mb": last[1] - rss}
print(json.dumps({name: round(number, 2) for name, number in found.items()}))
"""


def sparse_file(rows: int) -> bytes:
    """T in csr: 100 anchors, 4 non-zeros in a row, int8; d = 256."""
    rng = np.random.default_rng(0)
    arrays = {
        "counts": np.full(rows, 4, np.uint8),
        "columns": (rng.integers(0, 25, (rows, 4), np.uint8) + np.array([0, 25, 50, 75], np.uint8)).reshape(-1),
        "values": rng.integers(1, 127, 4 * rows, np.int8),
        "scales": np.full(100, 0.01, np.float32),
        "anchors": rng.standard_normal((100, 256)).astype(np.float16),
    }
    sizes = {"objects": rows, "rows": rows, "columns": 100, "dimensions": 256}
    return pack(arrays, {"encoding": "csr", "values": "int8", "offset": 0.0, **sizes})


def coded_file(rows: int, words: bool) -> bytes:
    """Entropy-coded, 50 dimensions at 16x, with words."""
    small = ant.compress(np.random.default_rng(0).standard_normal((20_000, 50)) * 0.9 ** np.arange(50), budget="16x")
    found = unpack(small._contents or b"")
    per_block = found.about["rows_per_block"]
    whole = 20_000 // per_block  # blocks that are full
    times = -(-rows // (whole * per_block))
    offsets = found.arrays["offsets"][: whole + 1].astype(np.int64)
    payload = np.tile(found.arrays["payload"][: offsets[-1]], times)
    starts = (offsets[:-1] + offsets[-1] * np.arange(times)[:, None]).reshape(-1)
    blocks = -(-rows // per_block)
    offsets = np.append(starts, len(payload))[: blocks + 1]
    arrays = dict(found.arrays) | {"payload": payload[: offsets[-1]], "offsets": offsets.astype(smallest_unsigned(offsets[-1]))}
    if words:
        arrays |= pack_words([f"w{n}" for n in range(rows)])
    return pack(arrays, {**found.about, "objects": rows})


def measured(path: Path, verify: bool = False) -> JSON:
    """Of the second of two processes: the file is in the page cache."""
    command = [sys.executable, "-c", CHILD, str(path), "verify" if verify else ""]
    for _ in range(2):
        found: JSON = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--no-words", action="store_true", help="leave the words out: sorting ten million takes a minute")
    parser.add_argument("--record", help="append the figures to this file")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t.ant"
        for name in ("csr", "coded"):
            data = sparse_file(options.rows) if name == "csr" else coded_file(options.rows, not options.no_words)
            path.unlink(missing_ok=True)
            path.write_bytes(data)
            row = {"benchmark": "opening", "encoding": name, "rows": options.rows, "file_mb": round(len(data) / 2**20, 1)}
            del data
            row |= measured(path) | {"verified_open_ms": measured(path, True)["open_ms"]}
            publish(options.record, row)


if __name__ == "__main__":
    main()
