"""Damaged files: one small file of every kind, seeded ways to damage it, and what a reader then does.

The suite tries some (tests/tables/test_damage.py); `make fuzz` tries 20 000 and records the counts.
"""

import argparse
import json
import os
import resource
import shlex
import signal
import sys
import tempfile
import traceback
import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import safetensors.numpy

import antembed as ant
from antembed.classify.ngram_file import HEAD, HashedNgrams, HashedNgramsError, hash_words, load_hashed_ngrams
from antembed.tables.container import TableError, pack, unpack
from antembed.tables.encodings import serialize_product
from antembed.tables.save import load_table, serialize

WORDS = [f"word{n}" for n in range(700)]
SECONDS, MEMORY = 10, 1 << 20  # a hang, and too much memory in KB
EXTREME = [-1, 0, 1, 2, 7, 255, 65536, 2**31, 2**31 - 1, 2**32, 2**40, 2**63, 10**30, 1e300, -0.5, None, True, "x", [], {}]


@cache
def samples() -> dict[str, bytes]:
    """A file of each kind: encodings, numbers, biases, shared rows, words; and files without checksums, as older ones are."""
    rng = np.random.default_rng(0)
    T = rng.random((700, 11)).astype(np.float32) * (rng.random((700, 11)) < 0.3)
    A, bias = rng.standard_normal((11, 5)).astype(np.float32), rng.standard_normal(700).astype(np.float32)
    files = {
        f"{encoding} {values}": serialize(T, A, bias=bias * (bias > some), offset=0.5, encoding=encoding, values=values)
        for encoding in ("plain", "bitmap", "csr", "packed")
        for values, some in (("fp32", -9), ("fp16", 0), ("int8", 0))
    }
    files["packed int4"] = serialize(T, A, bias=bias, encoding="packed", values="int4")
    files["no anchors"] = serialize(T, None)
    files["shared rows"] = serialize(
        T[:9], A, row_index=rng.integers(0, 9, 700), bias=np.ones(1), encoding="csr", values="int8"
    )
    codes, books = rng.integers(0, 16, (700, 5)), rng.standard_normal((5, 16, 2)).astype(np.float32)
    files["product 4 bits"] = serialize_product(codes, books, 3)
    files["product 8 bits"] = serialize_product(codes * 9, np.repeat(books, 9, 1), None, "fp16")
    E = rng.standard_normal((700, 12)) * 0.7 ** np.arange(12)
    for apart in (False, True):
        for method, kind in (("transform", "coded"), ("sparse", "sparse")):
            table = ant.compress(E, budget="3x", vocabulary=WORDS if apart else None, split_norms=apart, method=method)
            files[f"{kind}{' norms words' * apart}"] = table._contents
    none, n = {}, 90
    for name in ("csr int8", "packed fp16", "coded norms words", "sparse", "product 4 bits"):
        found = unpack(files[name])
        about = json.dumps({**found.about, "version": 5})
        none[f"old {name}"] = safetensors.numpy.save(dict(found.arrays), {"antembed-table": about})
    objects, B = np.sort(rng.choice(256, n, replace=False)), rng.standard_normal((5, 3)).astype(np.float16).astype(float)
    model = HashedNgrams(objects, rng.integers(0, 5, n), rng.integers(0, 2, n), B, np.zeros(3), np.array([1.0, 2.0]),
                         ["x", "y", "z"], bits=8, orders=2)  # fmt: skip
    return files | none | {"ngrams": model.to_bytes()}


def flip(data: bytes, rng: np.random.Generator) -> bytes:
    changed = bytearray(data)
    for at in rng.integers(0, len(data), rng.choice([1, 1, 1, 2, 30])):
        changed[at] ^= 1 << int(rng.integers(8))
    return bytes(changed)


def cut(data: bytes, rng: np.random.Generator) -> bytes:
    at, length = int(rng.integers(len(data))), int(rng.integers(1, 64))
    return [data[:at], data[:at] + data[at + length :], data + bytes(length), data[:at] + bytes(length) + data[at:]][
        rng.integers(4)
    ]


def span(data: bytes, rng: np.random.Generator) -> bytes:
    """Two spans exchanged, or one filled with zeros, ones or noise."""
    length = int(rng.integers(1, 200))
    a, b = (int(n) for n in rng.integers(0, max(len(data) - length, 1), 2))
    changed = bytearray(data)
    fill = [data[b : b + length], bytes(length), b"\xff" * length, rng.bytes(length)][rng.integers(4)]
    if fill == data[b : b + length]:
        changed[b : b + length] = data[a : a + length]
    changed[a : a + length] = fill
    return bytes(changed[: len(data)])


def edit(data: bytes, rng: np.random.Generator) -> bytes:
    """A fact or an entry of the header changed, the header whole."""
    if data[:6] == b"antbag":
        return flip(data[: HEAD.size], rng) + data[HEAD.size :]
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    names = [name for name in header if name != "__metadata__"]
    name, other = (str(rng.choice(names)) for _ in range(2))
    match rng.integers(6):
        case 0:
            about = json.loads(header["__metadata__"]["antembed-table"])
            about[str(rng.choice(list(about)))] = EXTREME[rng.integers(len(EXTREME))]
            header["__metadata__"]["antembed-table"] = json.dumps(about, separators=(",", ":"))
        case 1:
            header[name]["dtype"] = str(rng.choice(["F32", "F16", "U8", "I8", "U16", "I32", "BF16", "x"]))
        case 2:
            header[name]["shape"] = [int(n) for n in rng.integers(0, 99, rng.integers(1, 4))]
        case 3:
            header[name], header[other] = header[other], header[name]  # arrays exchanged
        case 4:
            del header[name]
        case _:
            header[name]["data_offsets"][rng.integers(2)] += int(rng.integers(-9, 9))
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + data[8 + size :]


def forge(data: bytes, rng: np.random.Generator) -> bytes:
    """A change with right checksums."""
    if data[:6] == b"antbag":
        return forge_ngrams(data, rng)
    found = unpack(data)
    arrays, about = dict(found.arrays), dict(found.about)
    names = list(arrays)
    name, other = (str(rng.choice(names)) for _ in range(2))
    array = arrays[name]
    match rng.integers(6):
        case 0:
            about[str(rng.choice(list(about)))] = EXTREME[rng.integers(len(EXTREME))]
        case 1:
            noise = np.frombuffer(rng.bytes(array.nbytes), array.dtype).reshape(array.shape)
            arrays[name] = np.where(rng.random(array.shape) < rng.choice([0.001, 0.1, 1]), noise, array)
        case 2:
            arrays[name] = array[: int(rng.integers(0, len(array) + 1))]
        case 3:
            arrays[name], arrays[other] = arrays[other], arrays[name]
        case 4:
            del arrays[name]
        case _:
            arrays[name] = array.astype(str(rng.choice(["u1", "i1", "u2", "u4", "u8", "i8", "f2", "f4"])), casting="unsafe")
    return pack(arrays, about)


def forge_ngrams(data: bytes, rng: np.random.Generator) -> bytes:
    magic, version, _, length, _ = HEAD.unpack_from(data)
    about, rest = json.loads(zlib.decompress(data[HEAD.size : HEAD.size + length])), data[HEAD.size + length :]
    text = b""
    match rng.integers(4):
        case 0:
            about["s"][rng.integers(len(about["s"]))] = EXTREME[rng.integers(len(EXTREME))]
        case 1:
            rest = flip(rest, rng)
        case 2:
            about[str(rng.choice(["s", "c", "r"]))] = EXTREME[rng.integers(len(EXTREME))]
        case _:
            text = zlib.compress(b"[" * 1000 if rng.random() < 0.5 else bytes(1 << 26), 1)
    text = text or zlib.compress(json.dumps(about).encode())
    return HEAD.pack(magic, version, len(text + rest), len(text), zlib.crc32(text + rest)) + text + rest


WAYS: dict[str, Callable[[bytes, np.random.Generator], bytes]] = {
    "bits flipped": flip,
    "bytes cut or added": cut,
    "spans exchanged or filled": span,
    "header edited": edit,
    "checksums forged": forge,
}


def contents(path: Path, name: str, verify: bool | None = None) -> list[np.ndarray]:
    """What users read of a file; of one that claims to be large, some."""
    if name == "ngrams":
        model = load_hashed_ngrams(path)
        words = hash_words(WORDS[:200])
        return [model.scores(words, np.array([0, 100, 200])), np.array(model.classes)]
    table = load_table(path, verify=verify)
    ids = np.unique(np.concatenate([np.arange(min(len(table), 700)), np.arange(max(len(table) - 5, 0), len(table))]))
    found = [np.array(table.shape), table[ids], table.bias_of(ids)]
    return found if table.words is None else [*found, np.array(table.words.all()), np.array([table.words.find("word7")])]


def outcome(path: Path, name: str, whole: list[np.ndarray], verify: bool | None = None) -> str:
    """refused, same, other (vectors, biases or words), or what went wrong, such as numbers that are not finite."""
    try:
        with np.errstate(all="ignore"):
            found = contents(path, name, verify)
    except (TableError, HashedNgramsError):
        return "refused"
    except MemoryError:
        return "memory"
    except TimeoutError:
        return "hang"
    except Exception as error:
        return f"foreign: {type(error).__name__}: {error} {traceback.extract_tb(error.__traceback__)[-1]}"
    if any(array.dtype.kind == "f" and not np.isfinite(array).all() for array in found):
        return "not finite"
    same = len(found) == len(whole) and all(a.shape == b.shape and (a == b).all() for a, b in zip(found, whole, strict=True))
    return "same" if same else "other"


@dataclass
class Attack:
    """Seeded mutations of files, by their numbers."""

    files: dict[str, bytes]
    seed: int
    folder: Path

    def __post_init__(self) -> None:
        self.path, self.whole = self.folder / "mutated", {}
        for name, data in self.files.items():
            self.path.write_bytes(data)
            self.whole[name] = contents(self.path, name)

    def what(self, number: int) -> tuple[str, str]:
        """Which file, and in which way."""
        return list(self.files)[number % len(self.files)], list(WAYS)[number // len(self.files) % len(WAYS)]

    def one(self, number: int) -> tuple[str, str, str]:
        """(file, way, outcome)."""
        name, way = self.what(number)
        mutated = WAYS[way](self.files[name], np.random.default_rng([self.seed, number]))
        if mutated == self.files[name]:
            return name, way, "same"
        self.path.unlink()  # not written over: arrays of the last one may still be mapped
        self.path.write_bytes(mutated)
        # Every second forged file is read as large ones are: not scanned when it is opened.
        verify = False if way == "checksums forged" and number // len(self.files) // len(WAYS) % 2 else None
        return name, way, outcome(self.path, name, self.whole[name], verify)

    def in_a_child(self, first: int, count: int) -> list[tuple[str, str, str]]:
        """Some in a process of their own, with a limit of time for each, and of memory; one that dies has crashed."""
        report = self.folder / "report"
        report.unlink(missing_ok=True)
        if not (child := os.fork()):
            try:
                signal.signal(signal.SIGALRM, out_of_time)
                for number in range(first, first + count):
                    signal.alarm(SECONDS)
                    name, way, result = self.one(number)
                    signal.alarm(0)
                    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
                    with open(report, "a") as file:
                        file.write(json.dumps((name, way, "memory" if peak > MEMORY else result)) + "\n")
            finally:
                os._exit(0)
        _, status = os.waitpid(child, 0)
        rows = [tuple(json.loads(line)) for line in report.read_text().splitlines()] if report.exists() else []
        if len(rows) < count:
            rows.append((*self.what(first + len(rows)), f"crash: status {status} at number {first + len(rows)}"))
        return rows


def out_of_time(*_: object) -> None:
    raise TimeoutError


def main() -> None:
    parser = argparse.ArgumentParser(description="Mutate files of every kind and count what readers do.")
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--record", help="append the counts to this file")
    options = parser.parse_args()
    from antembed.sweep.records import append_record

    files, found = samples(), []
    with tempfile.TemporaryDirectory() as name:
        attack = Attack(files, options.seed, Path(name))
        while len(found) < options.count:
            found += attack.in_a_child(len(found), min(500, options.count - len(found)))
    bad = [(name, way, result) for name, way, result in found if is_bad(name, way, result)]
    for row in bad[:40]:
        print(*row)
    counts = {way: dict(Counter(result.split(":")[0] for _, w, result in found if w == way)) for way in WAYS}
    old = dict(Counter(result.split(":")[0] for name, _, result in found if name.startswith("old")))
    row = {
        "attack": "mutated files",
        "files": len(files),
        "mutations": len(found),
        "seed": options.seed,
        "outcomes": counts,
        "without_checksums": old,
        "failures": len(bad),
        "command": shlex.join(["python", "-m", "tests.mutations", *sys.argv[1:]]),
    }
    print(json.dumps(row, indent=1))
    if options.record:
        append_record(options.record, row)
    raise SystemExit(bool(bad))


def is_bad(name: str, way: str, result: str) -> bool:
    """Other contents are bad where there was a checksum: not where it was forged, or in files of older versions."""
    excused = way == "checksums forged" or name.startswith("old")
    return result not in ("refused", "same") and not (result == "other" and excused)


if __name__ == "__main__":
    main()
