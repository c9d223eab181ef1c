"""Kills: commands that are killed again and again, at random moments and at those of writing, must end in the same bytes.

`make torture` runs them and records the counts. Every run is a forked child of a process that has imported everything, so that
a kill costs the time of the run and not of the imports.
"""

import argparse
import hashlib
import importlib
import json
import os
import pkgutil
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars  # noqa: F401 (before the fork)
import torch
from tests.command import QUICK, write_ratings

import antembed
from antembed.cli.app import app
from antembed.cli.show import verbosity
from antembed.data.download import DataSet, Remote, get
from antembed.files import is_temporary
from antembed.sweep.records import append_record

DESCENT = ("--solver", "coordinate_descent", "--embedding-dim", 4, "--anchors", 4, "--epochs", 6)
NETWORK = ("--model", "mean", "--embedding-dim", 8, "--anchors", 4, "--epochs", 3, "--batch-size", 64)
WRITING = ("fsync", "replace", "rename", "unlink", "mkdir")  # of `os`: what a crash leaves depends on these
SECONDS = ("seconds", "wall_seconds", "date", "command")
NEVER = 1 << 60  # calls
Work = Callable[[Path], None]


def typed(*words: object) -> Work:
    """A command that writes to `out`; OUT stands for it."""

    def work(out: Path) -> None:
        app([str(out) if word == "OUT" else str(word) for word in words], standalone_mode=False)

    return work


def write_data(folder: Path) -> dict[str, Path]:
    rng = np.random.default_rng(0)
    files = {"ratings": write_ratings(folder / "ratings.csv")}
    words = [f"w{n}" for n in range(60)]
    texts = [(n % 2, " ".join(rng.choice(words[30 * (n % 2) :][:40], 8))) for n in range(400)]
    files["texts"], files["corpus"], files["vectors"] = folder / "texts.csv", folder / "corpus.txt", folder / "vectors.npy"
    files["texts"].write_text("label,text\n" + "".join(f"{label},{text}\n" for label, text in texts))
    files["corpus"].write_text("".join(f"{text}\n" for _, text in texts))
    np.save(files["vectors"], rng.standard_normal((2000, 32)).astype(np.float32))
    (folder / "served").mkdir()
    (folder / "served" / "a.csv").write_bytes(rng.bytes(3_000_000))
    return files


def scenarios(data: dict[str, Path], run: Path, url: str) -> dict[str, Work]:
    ratings, texts = data["ratings"], data["texts"]
    train = ("train", "recommend", ratings, "--resume", "--out", "OUT")
    classify = ("train", "classify", texts, "--resume", "--out", "OUT")
    sweep = ("sweep", ratings, "--vary", "l1-penalty=1e-5,1e-4", "--set", "epochs=2", "--set", "embedding-dim=4")
    return {
        "stochastic, fused": typed(*train, *QUICK),
        "stochastic, torch": typed(*train, *QUICK, "--engine", "torch", "--epochs", 2),
        "stochastic, budget": typed(*train, *QUICK[:-2], "--budget", "2KB"),
        "stochastic, growth": typed(*train, "--epochs", 6, "--batch-size", 128, "--embedding-dim", 8, "--anchors", "auto",
                                    "--lr", 0.03, "--l1-penalty", 1e-4, "--anchor-penalty", 0.001, "--l0-penalty", 1e-5),
        "coordinate descent": typed(*train, *DESCENT, "--l0-penalty", 1),
        "coordinate descent, tolerance": typed(*train, *DESCENT[:4], "--tolerance", "5%"),
        "events": typed(*train, "--implicit", *DESCENT[:6], "--epochs", 3),
        "stream": typed(*train, "--solver", "online", "--embedding-dim", 4, "--anchors", 4, "--batch-size", 3000),
        "text, network": typed(*classify, *NETWORK),
        "text, n-grams": typed(*classify, "--budget", "4KB"),
        "language": typed("train", "language", data["corpus"], "--resume", "--out", "OUT", "--epochs", 2, "--embedding-dim", 8,
                          "--anchors", 4, "--batch-size", 80, "--sequence-length", 10, "--hidden", 8, "--layers", 1),
        "sweep": lambda out: (out.mkdir(exist_ok=True), typed(*sweep, "--out", out / "s.jsonl", "--keep", out / "k")(out))[1],
        "export": typed("export", run, "OUT", "--values", "int8", "--overwrite"),
        "compress": lambda out: (out.mkdir(exist_ok=True),
                                 typed("compress", data["vectors"], out / "v.ant", "--budget", "8x", "--overwrite")(out))[1],
        "download": lambda out: (get("a", out, sets={"a": DataSet("a", (Remote(url),))}), None)[1],
    }  # fmt: skip


def contents(out: Path) -> dict[str, str]:
    """Digests of all files, times of the clock left out; what is left of kills is there, too."""
    found = {}
    for file in sorted(path for path in out.rglob("*") if path.is_file()):
        data = file.read_bytes()
        if file.suffix in (".json", ".jsonl"):
            rows = data.splitlines() if file.suffix == ".jsonl" else [data]
            data = json.dumps(sorted(json.dumps(timeless(json.loads(row)), sort_keys=True) for row in rows)).encode()
        found[str(file.relative_to(out))] = hashlib.sha256(data).hexdigest()
    return found


def timeless(value: object) -> object:
    if isinstance(value, dict):
        return {name: timeless(each) for name, each in value.items() if name not in SECONDS}
    return [timeless(each) for each in value] if isinstance(value, list) else value


def die_at(n: int, after: bool) -> Callable[[], int]:
    """End on the spot at the Nth of the calls that write, before or after it; → how many there have been."""
    count = 0

    def counted(name: str) -> Callable[..., object]:
        real = getattr(os, name)

        def call(*given: object, **named: object) -> object:
            nonlocal count
            count += 1
            if count == n and not after:
                os._exit(99)
            result = real(*given, **named)
            if count == n:
                os._exit(99)
            return result

        return call

    for name in WRITING:
        setattr(os, name, counted(name))
    return lambda: count


def attempt(work: Work, out: Path, log: Path, at: tuple[int, bool] | None = None, delay: float | None = None) -> bool:
    """In a child; → whether it came to its end. An error of its own is a failure, with its text."""
    started, child = time.monotonic(), os.fork()
    if not child:
        code = 1
        try:
            with open(log, "w") as file:
                os.dup2(file.fileno(), 1)
                os.dup2(file.fileno(), 2)
            torch.manual_seed(0)
            count = die_at(*at or (NEVER, False))
            work(out)
            log.with_name("calls").write_text(str(count()))
            code = 0
        except BaseException as error:
            log.write_text(f"{type(error).__name__}: {error}")
        finally:
            os._exit(code)
    ended, status = 0, 0
    while delay is not None and not ended and time.monotonic() < started + delay:
        time.sleep(0.002)
        ended, status = os.waitpid(child, os.WNOHANG)
    if not ended:
        if delay is not None:
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
    status = os.waitstatus_to_exitcode(status)
    if status not in (0, 99, -signal.SIGKILL):
        raise RuntimeError(f"exit code {status}: {log.read_text()[-500:]}")
    return status == 0


def torture(name: str, work: Work, folder: Path, kills: int, rng: np.random.Generator) -> Counter[str]:
    """Kill the command so many times, over as many runs as that takes, and compare how each run ends."""
    log, whole = folder / "log", folder / "whole"
    attempt(work, folder / "first", log)  # compiles, which would make the whole run look longer than those that are killed
    started = time.monotonic()
    attempt(work, whole, log)
    lasts, expected, found = time.monotonic() - started, contents(whole), Counter[str]()
    calls = int(log.with_name("calls").read_text())  # that write, in a whole run
    number = 0
    while found["killed"] < kills:
        number += 1
        out, finished = folder / f"run{number}", False
        for _ in range(int(rng.integers(1, 5))):
            try:
                if rng.random() < 0.5:
                    finished = attempt(work, out, log, at=(int(rng.integers(1, calls + 1)), bool(rng.integers(2))))
                    found["aimed"] += not finished
                else:
                    finished = attempt(work, out, log, delay=float(rng.uniform(0, lasts)))
            except RuntimeError as error:
                found["failed"] += 1
                print(name, number, error, flush=True)
                break
            found["killed"] += not finished
            if finished or found["killed"] >= kills:
                break
        try:
            finished or attempt(work, out, log)
        except RuntimeError as error:
            found["failed"] += 1
            print(name, number, error, flush=True)
            continue
        ended = contents(out)
        left = [file for file in ended if is_temporary(Path(file)) or file.endswith(".lock")]
        same = {file: digest for file, digest in ended.items() if file not in left} == expected
        found["runs"] += 1
        found["left over"] += len(left)
        if not same:
            found["different"] += 1
            print(name, number, sorted(file for file in {**expected, **ended} if expected.get(file) != ended.get(file)))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="Kill commands, continue them, and compare the bytes.")
    parser.add_argument("--kills", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="scenarios whose names have one of these, A,B, in them")
    parser.add_argument("--record", help="append the counts to this file")
    options = parser.parse_args()
    for module in pkgutil.walk_packages(antembed.__path__, "antembed."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    torch.set_num_threads(1)
    verbosity.quiet = True
    total, by_name, started = Counter[str](), {}, time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["ANTEMBED_CACHE"] = str(folder / "cache")
        data = write_data(folder)
        words = [sys.executable, "-u", "-m", "http.server", "0", "--bind", "127.0.0.1", "--directory", str(folder / "served")]
        server = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        try:
            assert server.stdout is not None
            url = f"http://127.0.0.1:{server.stdout.readline().split('port ')[1].split()[0]}/a.csv"
            run = folder / "finished"
            attempt(typed("train", "recommend", data["ratings"], "--out", "OUT", *QUICK), run, folder / "log")
            chosen = {
                n: work for n, work in scenarios(data, run, url).items() if any(part in n for part in options.only.split(","))
            }
            for number, (each, work) in enumerate(chosen.items()):  # Ctrl-C ends it, and what is done is recorded
                (folder / f"s{number}").mkdir()
                share = -(-options.kills * (number + 1) // len(chosen)) - total["killed"]
                counts = torture(each, work, folder / f"s{number}", share, np.random.default_rng([options.seed, number]))
                total += counts
                by_name[each] = dict(counts)
                print(each, dict(counts), round(time.monotonic() - started), flush=True)
        except KeyboardInterrupt:
            by_name["interrupted"] = {}
        finally:
            server.terminate()
            server.communicate()
    bad = total["failed"] + total["different"]
    row = {"attack": "kills", **total, "seed": options.seed, "by_command": by_name, "failures": bad,
           "seconds": round(time.monotonic() - started),
           "command": shlex.join(["python", "-m", "tests.torture", *sys.argv[1:]])}  # fmt: skip
    print(json.dumps(row, indent=1))
    if options.record:
        append_record(options.record, row)
    raise SystemExit(bool(bad))


if __name__ == "__main__":
    main()
