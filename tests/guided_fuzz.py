"""Coverage-guided fuzzing (atheris, libFuzzer) of what reads files from outside: it keeps inputs that reach new lines.

    python -m tests.guided_fuzz table --seconds 1800 --record results/reliability.jsonl

Checksums of tables and classifiers are made right after each mutation, or nothing behind them would be reached; those of
labels are not (behind them is the Parquet reader of polars, which is not ours). Readers may refuse, by their own error; any
other exception, a crash, more than 10 s or more than 2 GB is a failure, and its input is kept in `fuzz-failures/`.
"""

import argparse
import contextlib
import json
import os
import pkgutil
import re
import shlex
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import antembed.native

Mutation = Callable[[bytes], bytes]
SECONDS, MEGABYTES = 10, 2048  # of one input
LONGEST = 1 << 15  # bytes of an input
RESTED = 5  # seconds between two looks at a child that has ended


def main() -> None:
    parser = argparse.ArgumentParser(description="Fuzz a reader, guided by coverage; counts what it finds.")
    parser.add_argument("reader", choices=["table", "ngrams", "csv", "labels"])
    parser.add_argument("--seconds", type=int, default=1800)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--record", help="append the counts to this file")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child is not None:
        fuzz(options.reader, options.child, options.seconds, options.seed)
        return
    from antembed.sweep.records import append_record

    with tempfile.TemporaryDirectory() as name:
        row = {"attack": "guided fuzzing", "reader": options.reader, "seed": options.seed}
        row |= repeated(options.reader, Path(name), options.seconds, options.seed)
    row["command"] = shlex.join(["python", "-m", "tests.guided_fuzz", *sys.argv[1:]])
    print(json.dumps(row, indent=1))
    if options.record:
        append_record(options.record, row)
    raise SystemExit(bool(row["failures"]))


def repeated(reader: str, folder: Path, seconds: int, seed: int) -> dict[str, object]:
    """Children, one after the other, until the time is over: each ends at its first failure. They share the inputs found."""
    (folder / "inputs").mkdir()
    for number, data in enumerate(seeds(reader)):
        (folder / "inputs" / f"seed-{number}").write_bytes(data)
    until, tried, covered, failures = time.monotonic() + seconds, 0, 0, []
    while (left := round(until - time.monotonic())) > 0:
        words = [sys.executable, "-m", "tests.guided_fuzz", reader, "--child", str(folder), "--seconds", str(left)]
        done = subprocess.run(
            [*words, "--seed", str(seed + len(failures))], stderr=subprocess.PIPE, text=True, errors="replace"
        )
        found = [(int(n), int(cov)) for n, cov in re.findall(r"#(\d+)\s+\w+\s+cov: (\d+)", done.stderr)]
        final = re.search(r"number_of_executed_units: (\d+)", done.stderr)
        tried += int(final[1]) if final else max((n for n, _ in found), default=0)
        covered = max([covered, *(cov for _, cov in found)])
        if done.returncode:
            failures.append(
                next((line for line in done.stderr.splitlines() if "Error" in line or "ERROR" in line), "crash")[:300]
            )
            print(done.stderr[-3000:], file=sys.stderr)
            time.sleep(RESTED)
    inputs = len(list((folder / "inputs").iterdir()))
    return {
        "seconds": seconds,
        "inputs": tried,
        "covered": covered,
        "kept": inputs,
        "failures": len(failures),
        "kinds": failures,
    }


@dataclass(frozen=True)
class Reader:
    """`read` a file; `refusals` are its own errors; `mutate` bytes by a given mutation, with right checksums."""

    read: Callable[[Path], object]
    refusals: tuple[type[Exception], ...]
    mutate: Callable[[bytes, Mutation, int], bytes]


def fuzz(name: str, folder: Path, seconds: int, seed: int) -> None:
    """Does not return."""
    import atheris

    compiled = [module.name for module in pkgutil.iter_modules(antembed.native.__path__, "antembed.native.")]
    with atheris.instrument_imports(include=["antembed"], exclude=compiled):  # numba compiles their bytecode
        reader = readers(name)
    path = folder / "input"

    def one(data: bytes) -> None:
        path.unlink(missing_ok=True)  # not written over: arrays of the last one may still be mapped
        path.write_bytes(data)
        with contextlib.suppress(*reader.refusals):
            reader.read(path)

    def mutated(data: bytes, most: int, seed: int) -> bytes:
        changed = reader.mutate(data, lambda part: atheris.Mutate(part, len(part) + 64), seed)
        return changed if len(changed) <= most else atheris.Mutate(data, most)

    kept = Path("fuzz-failures")
    kept.mkdir(exist_ok=True)
    for data in seeds(name):  # what is compiled at first is no slow input
        one(data)
    limits = [f"-max_total_time={seconds}", f"-timeout={SECONDS}", f"-rss_limit_mb={MEGABYTES}", f"-max_len={LONGEST}"]
    more = [f"-seed={seed}", "-print_final_stats=1", f"-artifact_prefix={kept}/{name}-", str(folder / "inputs")]
    atheris.Setup([sys.argv[0], *limits, *more], one, custom_mutator=mutated)
    atheris.Fuzz()


def seeds(name: str) -> list[bytes]:
    """Inputs to begin with."""
    from tests.mutations import samples

    if name in ("table", "ngrams"):
        return [data for kind, data in samples().items() if (kind == "ngrams") == (name == "ngrams")]
    if name == "labels":
        import polars as pl

        from antembed.tables.row_labels import pack_parquet

        made = (["a", "b", "ü"], [1, 5, 9], [0.5, 2.5], [])
        return [pack_parquet(pl.Series("label", labels).to_frame()) for labels in made]
    ratings = [
        "user,item,rating\n1,2,3.5\n4,5,1\n",
        "1::2::5::978300760\n2::3::4::978300761\n",
        "a\tb\t3\nc\td\t4\n",
        "1 2 3\n2 9\n",
    ]
    texts = [
        'label,text\n1,"a, ""b"" c"\n2,d e\n',
        '{"label": 1, "text": "a b"}\n{"label": 2, "text": null}\n',
        "x;y\n1;two words\n",
    ]
    return [bytes([kind]) + text.encode() for kind, some in ((0, ratings), (1, texts)) for text in some]


def readers(name: str) -> Reader:
    from tests.mutations import contents

    if name in ("table", "ngrams"):
        from antembed.classify.ngram_file import HashedNgramsError
        from antembed.tables.container import TableError

        mutate = mutated_table if name == "table" else mutated_ngrams
        return Reader(lambda path: contents(path, name), (TableError, HashedNgramsError), mutate)
    if name == "labels":
        import polars as pl

        from antembed.tables.row_labels import LabelsError, find, unpack_parquet

        def read_labels(path: Path) -> None:
            column = unpack_parquet(path)[0].to_series()
            find(column, pl.Series(column.to_list()[:5], dtype=column.dtype))

        return Reader(read_labels, (LabelsError,), plainly)
    from antembed.classify.documents import read_documents
    from antembed.data.text_file import DataError
    from antembed.recommend.read_ratings import read_ratings

    def read_csv(path: Path) -> None:
        data = path.read_bytes()
        path.write_bytes(data[1:])
        for on_error in ("stop", "skip"):
            if data[:1] != b"\x01":
                read_ratings(path, on_error=on_error)
        if data[:1] == b"\x01":
            named = path.with_suffix((".csv", ".jsonl", ".tsv")[len(data) % 3])
            os.replace(path, named)
            read_documents(named, threads=1)

    return Reader(read_csv, (DataError,), plainly)


def plainly(data: bytes, mutation: Mutation, seed: int) -> bytes:
    return mutation(data)


def mutated_table(data: bytes, mutation: Mutation, seed: int) -> bytes:
    """With the checksums of a container, and the positions of its arrays, as its header's types and shapes want them."""
    from antembed.tables.container import DIGITS, DTYPES, START

    data = mutation(data)
    length = int.from_bytes(data[:8], "little")
    try:
        header = json.loads(data[8 : 8 + length])
        entries = {key: entry for key, entry in header.items() if key != "__metadata__"}
        body, end, sums = data[8 + length :], 0, {}
        for key, entry in sorted(entries.items(), key=lambda item: item[1]["data_offsets"]):
            size = DTYPES[entry["dtype"]].itemsize
            for n in entry["shape"]:
                size *= n
            entry["data_offsets"] = [end, end := end + size]
            sums[key] = f"{zlib.crc32(body[end - size : end]):08x}"
        header["__metadata__"] = {"crc32": "0" * DIGITS + "".join(sums[key] for key in sorted(sums)),
                                  "antembed-table": header["__metadata__"]["antembed-table"]}  # fmt: skip
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return data
    if end > LONGEST:
        return data
    text = json.dumps({"__metadata__": header["__metadata__"], **entries}, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    text = START + f"{zlib.crc32(text):08x}".encode() + text[len(START) + DIGITS :]
    return len(text).to_bytes(8, "little") + text + body[:end].ljust(end, b"\0")


def mutated_ngrams(data: bytes, mutation: Mutation, seed: int) -> bytes:
    """The facts, which are packed, or what follows them; with the right lengths and checksum."""
    from antembed.classify.ngram_file import HEAD

    if len(data) < HEAD.size:
        return mutation(data)
    magic, version, _, length, _ = HEAD.unpack_from(data)
    facts, rest = data[HEAD.size : HEAD.size + length], data[HEAD.size + length :]
    if seed % 2:
        rest = mutation(rest)
    else:
        try:
            facts = zlib.compress(mutation(zlib.decompressobj().decompress(facts, LONGEST)))
        except zlib.error:
            facts = mutation(facts)
    body = facts + rest
    return HEAD.pack(magic, version, len(body), len(facts), zlib.crc32(body)) + body


if __name__ == "__main__":
    main()
