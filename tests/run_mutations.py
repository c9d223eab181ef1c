"""Damaged checkpoints, configs, logs, caches and label files: a command refuses them in one line, or its result is the same.

The suite tries some (tests/train/test_damaged_runs.py); `make fuzz` tries 2 000 and records the counts.
"""

import argparse
import json
import os
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from tests.mutations import EXTREME, MEMORY, cut, flip, out_of_time, span
from tests.torture import write_data

from antembed.classify.config import TextConfig
from antembed.classify.task import open_predictor
from antembed.files import read_checked, write_checked
from antembed.language.config import LanguageConfig
from antembed.language.language_model import LanguageModel
from antembed.recommend.config import RatingsConfig
from antembed.recommend.predictor import LightTables, RatingTables
from antembed.recommend.read_ratings import read_ratings
from antembed.tables.row_labels import LABELLED
from antembed.tables.save import load_table
from antembed.train.checkpoint import Checkpoint, read_checkpoint, write_checkpoint
from antembed.train.config import TaskConfig
from antembed.train.configure import cached
from antembed.train.options import from_options
from antembed.train.registry import TASKS
from antembed.train.run import load_model, train
from antembed.train.run_folder import RunFolder
from antembed.train.task import Splits

SECONDS = 60  # of a run that is resumed, on a busy machine
RATINGS = {
    "descent": {"solver": "coordinate_descent", "embedding_dim": 3, "anchors": 3, "epochs": 3, "l0_penalty": 1.0},
    "stochastic": {"solver": "stochastic", "embedding_dim": 3, "anchors": 3, "epochs": 2, "l1_penalty": 1e-4},
}
NETWORK = {"model": "mean", "embedding_dim": 4, "anchors": 3, "epochs": 2, "batch_size": 64}
LANGUAGE = {"embedding_dim": 4, "hidden": 4, "layers": 1, "anchors": 3, "epochs": 2, "batch_size": 80, "sequence_length": 10}
COMMON = ("config.json", "metrics.jsonl", "checkpoint/last.safetensors", "checkpoint/final.safetensors")
OF_RATINGS = (
    *(f"{name}.labels.safetensors" for name in LABELLED),
    *("seen.safetensors", "ratings.safetensors", "popularity.safetensors"),
    "users.ant",
)
OF_WORDS = ("vocabulary.parquet", "words.ant")


def edit_json(data: bytes, rng: np.random.Generator) -> bytes:
    """One value of an object somewhere in it replaced, or a key removed."""
    lines = [data] if data.startswith(b"{\n") else data.splitlines()  # an object over many lines, or one a line
    number = int(rng.integers(len(lines)))
    whole = json.loads(lines[number])
    here = whole
    while True:
        key = str(rng.choice(list(here)))
        if isinstance(here[key], dict) and here[key] and rng.random() < 0.8:
            here = here[key]
            continue
        if rng.random() < 0.2:
            del here[key]
        else:
            here[key] = EXTREME[rng.integers(len(EXTREME))]
        lines[number] = json.dumps(whole).encode()
        return b"\n".join(lines)


def forge_checkpoint(data: bytes, rng: np.random.Generator, scratch: Path) -> bytes:
    """A checkpoint that is whole, of another make: shapes, types, values, facts, tensors that are not there."""
    scratch.write_bytes(data)
    found = read_checkpoint(scratch)
    tensors, plain = dict(found.tensors), json.loads(json.dumps(found.plain))
    name, other = (str(rng.choice(list(tensors))) for _ in range(2))
    tensor = tensors[name]
    match rng.integers(6):
        case 0:
            tensors[name] = tensor[: int(rng.integers(0, len(tensor) + 1))].clone() if tensor.dim() else tensor.reshape(1)
        case 1:
            tensors[name], tensors[other] = tensors[other], tensors[name]
        case 2:
            del tensors[name]
        case 3:
            tensors[name] = tensor.to([torch.int64, torch.float16, torch.bool, torch.float32][rng.integers(4)])
        case 4 if tensor.is_floating_point():
            tensors[name] = torch.full_like(tensor, [float("nan"), torch.finfo(tensor.dtype).max, -7][rng.integers(3)])
        case 4:
            tensors[name] = torch.full_like(tensor, 255 if tensor.dtype == torch.uint8 else 1)
        case _:
            plain = json.loads(edit_json(json.dumps(plain).encode(), rng))
    write_checkpoint(scratch, Checkpoint(tensors, plain))
    return scratch.read_bytes()


@dataclass
class Kind:
    """A kind of run: what it is trained by, the files that are damaged, and what its folder answers."""

    config: TaskConfig
    files: tuple[str, ...]
    tables: tuple[str, ...]
    answer: Callable[[Path], object]

    def splits(self) -> Splits:
        return TASKS[self.config.task].load(self.config)


def recommended(run: Path) -> object:
    tables = RatingTables.load(run)
    users = tables.user_labels.head(5).to_list()
    light = LightTables.load(run)
    lists = tables.lists(users, 3, filter_seen=True)[0].rows()
    return lists, light.recommend_columns([str(user) for user in users], 3, filter_seen=True)


def classified(run: Path) -> object:
    return [row.tolist() for row in open_predictor(run).predict_texts(["w1 w2 w3", "w50 w60"])]


def generated(run: Path) -> object:
    model = LanguageModel.load(run)
    return model.perplexity("w1 w2 w3"), model.generate("w1", words=5, seed=0)


def kinds(folder: Path) -> dict[str, Kind]:
    data = write_data(folder)
    data["ratings"].write_text("\n".join(data["ratings"].read_text().splitlines()[:1500]))
    split = {"data": str(data["ratings"]), "split": "80/10/10"}
    found = {
        name: Kind(from_options(RatingsConfig, {**split, **own}), OF_RATINGS, ("users.ant", "items.ant"), recommended)
        for name, own in RATINGS.items()
    }
    text = from_options(TextConfig, {"data": str(data["texts"]), **NETWORK})
    language = from_options(LanguageConfig, {"data": str(data["corpus"]), **LANGUAGE})
    return found | {
        "text": Kind(text, OF_WORDS, OF_WORDS[1:], classified),
        "language": Kind(language, OF_WORDS, OF_WORDS[1:], generated),
    }


class Runs:
    """Finished runs, what is read of them, and what a resumed one comes to."""

    def __init__(self, folder: Path):
        self.folder, self.kinds = folder, kinds(folder)
        self.data = folder / "ratings.csv"
        for name, kind in self.kinds.items():
            train(kind.config, folder / name, splits=kind.splits())
        self.expected = {name: self.used(folder / name, name) for name in self.kinds}
        self.resumed = {name: self.continued(folder / name, name) for name in self.kinds}

    def used(self, run: Path, name: str) -> object:
        """What inference and evaluation read."""
        RunFolder(run).open()
        RunFolder(run).result()
        kind = self.kinds[name]
        rows = [load_table(run / table)[np.arange(3)].tolist() for table in kind.tables]
        return kind.answer(run), rows, [t.tolist() for t in load_model(run).state_dict().values()]

    def continued(self, run: Path, name: str) -> object:
        """What a run comes to that is resumed from its last checkpoint but for its tables."""
        kind = self.kinds[name]
        for file in ("checkpoint/final.safetensors", *kind.tables, "result.json"):
            (run / file).unlink(missing_ok=True)
        result = train(kind.config, run, splits=kind.splits(), resume=True)
        return [(run / file).read_bytes() for file in kind.tables], result["test"]

    def mutated(self, number: int, seed: int) -> tuple[str, str, str]:
        """(run, file, outcome)."""
        rng = np.random.default_rng([seed, number])
        name = str(rng.choice(list(self.kinds)))
        kind = str(rng.choice([*COMMON, *self.kinds[name].files, "cache", "search"]))
        if kind in ("cache", "search"):
            return name, kind, outcome(lambda: self.cache(rng) if kind == "cache" else self.search(rng), True)
        run = self.folder / "mutated"
        shutil.rmtree(run, ignore_errors=True)
        shutil.copytree(self.folder / name, run)
        file = run / kind
        ways: list[Callable[[bytes], bytes]] = [
            lambda data: flip(data, rng),
            lambda data: cut(data, rng),
            lambda data: span(data, rng),
        ]
        forged = kind.endswith(("json", "jsonl")) or "checkpoint" in kind
        if kind.endswith(("json", "jsonl")):
            ways.append(lambda data: edit_json(data, rng))
        if "checkpoint" in kind:
            ways.append(lambda data: forge_checkpoint(data, rng, self.folder / "forged"))
        way = int(rng.integers(len(ways)))
        file.write_bytes(ways[way](file.read_bytes()))
        resumed = kind in ("checkpoint/last.safetensors", "metrics.jsonl", "config.json") and rng.random() < 0.7
        work = (lambda: self.continued(run, name)) if resumed else (lambda: self.used(run, name))
        result = outcome(work, self.resumed[name] if resumed else self.expected[name])
        # An edited config or a forged checkpoint is another one: refused, or another result, but never a crash.
        return name, kind, "other, forged" if result == "other" and forged and way == 3 else result

    def cache(self, rng: np.random.Generator) -> bool:
        """A file of an entry damaged: it is written anew, and the ratings are the same."""
        from antembed.recommend import read_ratings as reader

        cache = self.folder / "cache"
        before, reader.CACHED_FROM = reader.CACHED_FROM, 0
        try:
            whole = read_ratings(self.data, cache=cache)
            (entry,) = (path for path in cache.iterdir() if path.is_dir())
            file = sorted(entry.iterdir())[int(rng.integers(len(list(entry.iterdir()))))]
            changed = [flip, cut, span][rng.integers(3)](file.read_bytes(), rng)
            digest, labels = whole.digest, whole.user_labels.to_list()
            file.unlink()  # not written over: it may be mapped
            file.write_bytes(changed)
            again = read_ratings(self.data, cache=cache)
            return again.digest == digest and again.user_labels.to_list() == labels
        finally:
            reader.CACHED_FROM = before

    def search(self, rng: np.random.Generator) -> bool:
        """A remembered search damaged: it is done again."""
        os.environ["ANTEMBED_CACHE"] = str(self.folder / "searches")
        found = {"options": {"ridge": 1.5, "embedding_dim": 8}}
        cached({"key": 1}, lambda: found, lambda line: None)
        (file,) = (self.folder / "searches" / "searches").glob("*.json")
        file.write_bytes([flip, cut, span, edit_json][rng.integers(4)](file.read_bytes(), rng))
        assert read_checked(file) in (None, found)
        write_checked(self.folder / "other.json", found)
        return cached({"key": 1}, lambda: found, lambda line: None) == found


def outcome(work: Callable[[], object], expected: object) -> str:
    """refused (in one line of ours), same, other, or what went wrong."""
    try:
        with np.errstate(all="ignore"):
            found = work()
    except TimeoutError:
        return "hang"
    except (ValueError, OSError) as error:
        return "refused" if str(error) else "foreign: an error without a text"
    except BaseException as error:
        trace = error.__traceback__
        while trace is not None and trace.tb_next is not None:
            trace = trace.tb_next
        where = "" if trace is None else f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"
        return f"foreign: {type(error).__name__}: {str(error)[:200]} {where}"
    return "same" if found == expected else "other"


def in_a_process(first: int, count: int, seed: int) -> list[tuple[str, str, str]]:
    """Some in a process of their own; one that dies has crashed. (A fork would inherit the locks of polars' threads.)"""
    with tempfile.TemporaryDirectory() as name:
        report = Path(name) / "report"
        words = [sys.executable, "-m", "tests.run_mutations", "--worker", name]
        status = subprocess.run([*words, "--first", str(first), "--count", str(count), "--seed", str(seed)]).returncode
        rows = [tuple(json.loads(line)) for line in report.read_text().splitlines()] if report.exists() else []
    if len(rows) < count:
        rows.append(("", "", f"crash: status {status} at number {first + len(rows)}"))
    return rows


def worker(folder: Path, first: int, count: int, seed: int) -> None:
    torch.set_num_threads(1)
    runs = Runs(folder)
    signal.signal(signal.SIGALRM, out_of_time)
    for number in range(first, first + count):
        signal.alarm(SECONDS)
        row = runs.mutated(number, seed)
        signal.alarm(0)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        with open(folder / "report", "a") as file:
            file.write(json.dumps((*row[:2], "memory" if peak > 2 * MEMORY else row[2])) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description="Mutate the files of runs and caches, and count what commands do.")
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--record", help="append the counts to this file")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--first", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker is not None:
        worker(options.worker, options.first, options.count, options.seed)
        return
    from antembed.sweep.records import append_record

    found: list[tuple[str, str, str]] = []
    while len(found) < options.count:
        found += in_a_process(len(found), min(500, options.count - len(found)), options.seed)
    bad = [row for row in found if row[2] not in ("refused", "same", "other, forged")]
    for row in bad[:40]:
        print(*row)
    kinds = {
        kind: dict(Counter(result.split(":")[0] for _, k, result in found if k == kind))
        for kind in sorted({k for _, k, _ in found})
    }
    row = {"attack": "mutated runs and caches", "mutations": len(found), "seed": options.seed, "outcomes": kinds,
           "failures": len(bad), "command": shlex.join(["python", "-m", "tests.run_mutations", *sys.argv[1:]])}  # fmt: skip
    print(json.dumps(row, indent=1))
    if options.record:
        append_record(options.record, row)
    raise SystemExit(bool(bad))


if __name__ == "__main__":
    main()
