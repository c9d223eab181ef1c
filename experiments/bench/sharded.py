"""Tables that processes share: bytes and milliseconds a step, memory a process, seconds to save and load, and the cost model.

    python -m experiments bench sharded traffic|network|memory|data|parse|ratings|torchrec|cost

traffic   2 and 4 processes on one machine, in a network of their own (unshare -n, as root): what the interface counted a step
network   2 processes in two network namespaces, with a link of 1 and of 10 Gbit/s between them (ip netns, tc tbf; as root)
ratings   ratings a second of the fused engine, of the torch engine, and of 2 and 4 processes, on one machine
memory    V = 5M rows on 1, 2 and 4 processes: peak memory, seconds and bytes of a checkpoint
data      20M ratings in the cache, read by 1, 2 and 4 processes, and one epoch of their pieces fetched: memory of each
parse     10M ratings of a .csv file: one process that parses, two that parse a half each, one that maps what is cached
torchrec  a TorchRec model with a prox now and then (examples/torchrec_prox.py) beside the exact optimizer
cost      the model of bytes, time and memory by V, K, d, n and Zipf's exponent; checked against the records of `traffic`

The full table is cut and looked up in the same way, with d numbers a row instead of K.
"""

import importlib.util
import json
import os
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from functools import partial
from importlib.metadata import version
from pathlib import Path

import numpy as np
import polars as pl
import torch
from torch import nn

import antembed as ant
from antembed.cli.train import read_together
from antembed.files import JSON
from antembed.layer.sharded.collectives import Ranks
from antembed.layer.sharded.sharded_embedding import ShardedAnchorEmbedding, data_parallel
from antembed.layer.sharded.sharded_table import ShardedRowTable, Spread
from antembed.native.threads import usable_cpus
from antembed.recommend.read_ratings import read_ratings
from antembed.recommend.synthetic import planted
from antembed.recommend.synthetic import ratings as draw_ratings
from antembed.sweep.records import read_records
from antembed.train.processes import one_copy, share_rows, start, stop
from antembed.train.registry import TASKS
from antembed.train.sharded_checkpoint import load, save
from experiments.race import child, parse, publish

V, K, d, B, STEPS, WARM = 1_000_000, 32, 128, 16_384, 12, 3
LARGE, LARGE_STEPS = 5_000_000, 5
USERS, ITEMS, RATINGS = 20_000, 4_000, 500_000
MANY_USERS, MANY_ITEMS, MANY = 200_000, 20_000, 20_000_000
PARSED, PARSERS, TURNS = 10_000_000, 2, 3
LINKS = ("1gbit", "10gbit")


class Model(nn.Module):
    """One number an id."""

    def __init__(self, kind: str, rows: int, ranks: Ranks):
        super().__init__()
        self.words: nn.Module
        if kind == "anchored":
            self.words = ShardedAnchorEmbedding(rows, d, num_anchors=K, ranks=ranks)
        else:
            first, end = Spread(rows, ranks.size).range(ranks.rank)
            self.words = ant.baselines.FullEmbedding(1, d, sparse=True)
            self.words.rows = ShardedRowTable(torch.randn(end - first, d) * 0.01, rows, None, ranks)
        self.head = nn.Linear(d, 1)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.words(ids).tanh()).squeeze(-1)


def zipf(step: int, rank: int, rows: int) -> torch.Tensor:
    u = torch.rand(B, generator=torch.Generator().manual_seed(1000 * step + rank))
    return (rows**u - 1).long().clamp(0, rows - 1)


def counted() -> int:
    """Bytes that the interfaces of this network have sent."""
    lines = Path("/proc/net/dev").read_text().splitlines()[2:]
    return sum(int(line.split(":")[1].split()[8]) for line in lines)


def work(kind: str, rows: int, steps: int, folder: str) -> None:
    """One process: RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT are set."""
    torch.set_num_threads(1)
    ranks = start(120)
    model = Model(kind, rows, ranks)
    optimizer = ant.ProximalYogi(ant.param_groups(model, l1_penalty=1e-5), lr=0.02)
    parallel, times, distinct = data_parallel(model), [], 0
    for step in range(steps):
        ids = zipf(step, ranks.rank, rows)
        distinct += len(ids.unique())
        ranks.wait()
        if step == min(WARM, steps - 1):
            before = counted()
        began = time.perf_counter()
        optimizer.zero_grad()
        (parallel(ids) - ids.float().sin()).square().mean().backward()
        optimizer.step()
        times.append(time.perf_counter() - began)
    ranks.wait()
    found = {
        "ms": 1000 * sorted(times[WARM:])[len(times[WARM:]) // 2],
        "sent": (counted() - before) / max(steps - WARM, 1),
        "distinct": distinct / steps,
        "MiB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }
    if folder:
        ranks.wait()
        began = time.perf_counter()
        save(f"{folder}/state", model, optimizer)
        ranks.wait()
        found["save"] = time.perf_counter() - began
        found["MiB_saving"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        began = time.perf_counter()
        load(f"{folder}/state", model, optimizer)
        ranks.wait()
        found["load"] = time.perf_counter() - began
        found["MiB_loading"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    stop()
    print(json.dumps(found))


def launch(n: int, words: list[str], before: list[list[str]], address: str = "127.0.0.1", kind: str = "work") -> list[JSON]:
    """n processes, each with some words before its command; → what they print."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    started = []
    for rank in range(n):
        environment = os.environ | {"RANK": str(rank), "WORLD_SIZE": str(n), "MASTER_ADDR": address, "MASTER_PORT": str(port)}
        if len(before) == n > 1:
            environment["GLOO_SOCKET_IFNAME"] = f"ant{rank}"
        command = [*before[rank % len(before)], *child("sharded"), kind, *words]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment))
    return [json.loads(process.communicate()[0]) for process in started]


def mean(found: list[JSON], name: str) -> float:
    return float(np.mean([row[name] for row in found]))


def traffic(record: str | None) -> None:
    """All processes of a run in one network that nobody else uses: its loopback counts what all of them send."""
    name = "antembed-traffic"
    subprocess.run(["ip", "netns", "add", name], check=True)
    try:
        subprocess.run(["ip", "-n", name, "link", "set", "lo", "up"], check=True)
        for n in (2, 4):
            for kind in ("anchored", "full"):
                found = launch(n, [kind, str(V), str(STEPS), ""], [["ip", "netns", "exec", name]])
                sent = mean(found, "sent") / n
                publish(record, about(kind, n, found) | {"benchmark": "traffic of shared tables", "bytes_sent": round(sent)})
    finally:
        subprocess.run(["ip", "netns", "del", name], check=True)


def about(kind: str, n: int, found: list[JSON]) -> JSON:
    setting = {"V": V, "K": K, "d": d, "ids": B, "processes": n, "table": kind}
    return setting | {"distinct": round(mean(found, "distinct")), "ms_per_step": round(mean(found, "ms"), 1)}


def network(record: str | None) -> None:
    """Two processes on two sides of a link."""
    for link in LINKS:
        for i in range(2):
            subprocess.run(["ip", "netns", "add", f"ant{i}"], check=True)
        try:
            pair = "ip link add {0} netns {0} type veth peer name {1} netns {1}".format("ant0", "ant1")
            subprocess.run(pair.split(), check=True)
            for i in range(2):
                subprocess.run(f"ip -n ant{i} addr add 10.9.0.{i + 1}/24 dev ant{i}".split(), check=True)
                for name in ("lo", f"ant{i}"):
                    subprocess.run(["ip", "-n", f"ant{i}", "link", "set", name, "up"], check=True)
                shape = f"ip netns exec ant{i} tc qdisc add dev ant{i} root tbf rate {link} burst 1mb latency 400ms"
                subprocess.run(shape.split(), check=True)
            for kind in ("anchored", "full"):
                before = [["ip", "netns", "exec", f"ant{i}"] for i in range(2)]
                found = launch(2, [kind, str(V), str(STEPS), ""], before, "10.9.0.1")
                sent = {"bytes_sent": round(mean(found, "sent")), "link": link}
                publish(record, about(kind, 2, found) | {"benchmark": "steps over a link"} | sent)
        finally:
            for i in range(2):
                subprocess.run(["ip", "netns", "del", f"ant{i}"], check=True)


def memory(record: str | None) -> None:
    nothing = launch(1, ["anchored", "1000", str(LARGE_STEPS), ""], [[]])[0]["MiB"]
    for n in (1, 2, 4):
        folder = tempfile.mkdtemp()
        try:
            found = launch(n, ["anchored", str(LARGE), str(LARGE_STEPS), folder], [[]])
            size = sum(file.stat().st_size for file in Path(folder).rglob("*") if file.is_file())
        finally:
            shutil.rmtree(folder)
        most = {name: round(max(row[name] for row in found)) for name in ("MiB", "MiB_saving", "MiB_loading")}
        publish(
            record,
            {
                "benchmark": "memory of shared tables",
                "V": LARGE,
                "K": K,
                "d": d,
                "processes": n,
                "MiB_per_process": most["MiB"],
                "MiB_of_tables": most["MiB"] - round(nothing),
                "MiB_while_saving": most["MiB_saving"],
                "MiB_while_loading": most["MiB_loading"],
                "seconds_to_save": round(mean(found, "save"), 2),
                "seconds_to_load": round(mean(found, "load"), 2),
                "bytes_on_disk": size,
            },
        )


def anonymous() -> float:
    """MiB of this process that no file has (mapped files are shared, and can be dropped)."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Anonymous")) / 1024


def read(large: str, small: str) -> None:
    """One process: read the data as a run does, then fetch its pieces of an epoch. The small file brings what is imported."""
    torch.set_num_threads(1)
    ranks, task = start(120), TASKS["recommend"]
    for file in (small, large):
        before, fetched = anonymous(), 0
        config, splits = read_together(task, {"data": file, "solver": "stochastic"}, ranks)
        share_rows(splits, ranks)
        train = splits.train
        order = one_copy(ranks, partial(train.order, config.machine.seed, 1), len(train), train.rows.dtype)
        for batch in train.in_order(order).pieces(B, 8):
            for number in range(ranks.rank, len(batch.sizes), ranks.size):
                fetched += len(batch.fetch(number)[-1])
    ranks.wait()
    found = {"MiB": anonymous() - before, "fetched": fetched}
    ranks.wait()
    stop()
    print(json.dumps(found))


def data(record: str | None) -> None:
    with tempfile.TemporaryDirectory() as name:
        random = np.random.default_rng(0)
        columns = {"user": random.integers(0, MANY_USERS, MANY), "item": random.integers(0, MANY_ITEMS, MANY)}
        drawn = pl.DataFrame(columns | {"rating": random.integers(1, 11, MANY) / 2})
        drawn.write_parquet(large := Path(name) / "r.parquet")
        drawn.head(100_000).write_parquet(small := Path(name) / "small.parquet")
        os.environ["ANTEMBED_CACHE"] = str(cache := Path(name) / "cache")
        for n in (0, 1, 2, 4):  # the first fills the cache
            found = launch(max(n, 1), [str(large), str(small)], [[]], kind="read")
            if n:
                size = sum(part.stat().st_size for part in cache.rglob("*") if part.is_file())
                about = {"benchmark": "data of shared tables", "ratings": MANY, "V": [MANY_USERS, MANY_ITEMS], "processes": n}
                most = {"MiB_of_cache": round(size / 2**20), "MiB_per_process": round(max(row["MiB"] for row in found))}
                publish(record, about | most | {"fetched_per_process": max(row["fetched"] for row in found)})


def parse_one(file: str, cache: str) -> None:
    """One process: ids of a file, from the cache if it is there."""
    started = time.perf_counter()
    read_ratings(file, cache=cache)
    print(json.dumps({"seconds": time.perf_counter() - started}))


def parse_ratings(record: str | None) -> None:
    """In turns. Parts are read at the same time, on one thread each, and not put together; one process has all threads."""
    with tempfile.TemporaryDirectory() as name:
        folder, random = Path(name), np.random.default_rng(0)
        columns = {"user": random.integers(0, MANY_USERS, PARSED), "item": random.integers(0, MANY_ITEMS, PARSED)}
        drawn = pl.DataFrame(columns | {"rating": random.integers(1, 11, PARSED) / 2})
        drawn.write_csv(folder / "r.csv")
        parts = [folder / f"{part}.csv" for part in range(PARSERS)]
        for part, file in enumerate(parts):
            first = PARSED * part // PARSERS
            drawn.slice(first, PARSED * (part + 1) // PARSERS - first).write_csv(file)
        kinds = {"each parses its part": parts, "one parses": [folder / "r.csv"], "one maps": [folder / "r.csv"]}
        seconds: dict[str, list[float]] = {kind: [] for kind in kinds}
        for _ in range(TURNS):
            for kind, files in kinds.items():
                if kind != "one maps":  # what was just cached
                    shutil.rmtree(folder / "cache", ignore_errors=True)
                threads = {"POLARS_MAX_THREADS": "1"} if len(files) > 1 else {}
                words = [[*child("sharded"), "parse-one", str(file), str(folder / "cache")] for file in files]
                started = [subprocess.Popen(own, stdout=subprocess.PIPE, text=True, env=os.environ | threads) for own in words]
                seconds[kind].append(max(json.loads(process.communicate()[0])["seconds"] for process in started))
        about = {"benchmark": "parsing ratings", "ratings": PARSED, "MB": round((folder / "r.csv").stat().st_size / 1e6)}
        for kind, found in seconds.items():
            row = {"how": kind, "processes": len(kinds[kind]), "seconds": round(float(np.median(found)), 2)}
            publish(record, about | {"cores": usable_cpus()} | row)


def expected_distinct(rows: float, ids: int, exponent: float) -> float:
    """Of `ids` draws from rows with probabilities ∝ rank^−exponent; ranks beyond 10⁵ in groups."""
    edges = np.unique(np.concatenate([np.arange(1, min(rows, 1e5) + 1), np.geomspace(min(rows, 1e5), rows + 1, 20_000)]))
    width = np.diff(edges)
    weight = np.sqrt(edges[:-1] * (edges[1:] - 1).clip(min=edges[:-1])) ** -exponent
    share = weight / (weight * width).sum()
    return float((width * -np.expm1(ids * np.log1p(-share))).sum())


def bytes_a_step(distinct: float, n: int, width: int, anchors: int) -> float:
    """What a process sends: ids (4 bytes), the rows it serves, gradients of those it has asked for; the mean gradient of A."""
    return distinct * (n - 1) / n * (4 + 2 * 4 * width) + 2 * (n - 1) / n * 4 * anchors


def cost(record: str | None) -> None:
    measured = [row for row in read_records("results/distributed.jsonl") if row.get("benchmark") == "traffic of shared tables"]
    for row in measured:
        width, anchors = (row["K"], row["K"] * row["d"]) if row["table"] == "anchored" else (row["d"], 0)
        model = bytes_a_step(row["distinct"], row["processes"], width, anchors)
        found = {"benchmark": "cost model, checked", "processes": row["processes"], "table": row["table"]}
        publish(
            record, found | {"model": round(model), "measured": row["bytes_sent"], "ratio": round(row["bytes_sent"] / model, 3)}
        )
    for rows, n in ((1e8, 8), (1e9, 16), (1e10, 64)):
        for exponent in (0.8, 1.0, 1.2):
            distinct = expected_distinct(rows, 65_536, exponent)
            sent = {"anchored": bytes_a_step(distinct, n, K, K * d), "full": bytes_a_step(distinct, n, d, 0)}
            publish(
                record,
                {
                    "benchmark": "cost model",
                    "V": int(rows),
                    "processes": n,
                    "K": K,
                    "d": d,
                    "ids": 65_536,
                    "zipf": exponent,
                    "distinct": round(distinct),
                    "MB_sent": {kind: round(value / 1e6, 2) for kind, value in sent.items()},
                    "ms_at_25_Gbit": {kind: round(1000 * value / (25e9 / 8), 2) for kind, value in sent.items()},
                    # T, two moments; last step and slot of a row
                    "GB_per_process": {
                        "anchored": round(rows / n * (12 * K + 8) / 1e9, 1),
                        "full": round(rows / n * 12 * d / 1e9, 1),
                    },
                },
            )


def ratings(record: str | None) -> None:
    """Ratings a second in the second epoch: the fused engine, the torch engine, and that of several processes."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        users, items = planted(USERS, 8, anchors=6, exponent=0.5, seed=0), planted(ITEMS, 8, anchors=6, exponent=0.5, seed=1)
        drawn = draw_ratings(users, items, RATINGS, noise=0.2, seed=2)
        columns = zip(drawn.users, drawn.items, drawn.values, strict=True)
        (folder / "r.csv").write_text("user,item,rating\n" + "\n".join(f"{u},{i},{v:.3f}" for u, i, v in columns))
        one, many = [sys.executable], [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
        words = "--solver stochastic --epochs 2 --batch-size 16384 --anchors 16 --threads 1 --quiet"
        kinds = {"fused": (one, 1), "torch": (one, 1)}
        kinds |= {f"torch, {n} processes": ([*many, str(n)], n) for n in (2, 4)}
        for kind, (begin, n) in kinds.items():
            engine = ["--engine", kind.split(",")[0], "--out", str(folder / kind)]
            command = [*begin, "-m", "antembed", "train", "recommend", str(folder / "r.csv"), *words.split(), *engine]
            subprocess.run(command, check=True, capture_output=True, env=os.environ | {"ANTEMBED_CACHE": str(folder / "cache")})
            rows = [json.loads(line) for line in (folder / kind / "metrics.jsonl").read_text().splitlines()]
            speed = {"engine": kind, "processes": n, "ratings_a_second": round(0.8 * RATINGS / rows[1]["seconds"])}
            publish(record, {"benchmark": "ratings of shared tables", "ratings": RATINGS, "V": [USERS, ITEMS], "K": 16} | speed)


def torchrec(record: str | None) -> None:
    spec = importlib.util.spec_from_file_location("torchrec_prox", Path(__file__).parents[2] / "examples" / "torchrec_prox.py")
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    about = {"benchmark": "TorchRec with a prox", "V": example.V, "K": example.K, "d": example.d, "steps": example.STEPS}
    for row in example.main():
        publish(record, about | row | {"torchrec": version("torchrec")})


INSIDE = {
    "work": lambda kind, rows, steps, folder: work(kind, int(rows), int(steps), folder),
    "read": read,
    "parse-one": parse_one,
}
KINDS = {
    "traffic": traffic,
    "network": network,
    "memory": memory,
    "data": data,
    "parse": parse_ratings,
    "ratings": ratings,
    "torchrec": torchrec,
    "cost": cost,
}


def main(words: list[str]) -> None:
    if words[:1] and words[0] in INSIDE:  # in a process of its own
        INSIDE[words[0]](*words[1:])
        return
    chosen = parse(words, __doc__, "what")
    KINDS[chosen.what](chosen.record)
