"""Matrix factorization against its peers, as its tables grow, and in the shape of all Amazon ratings.

python -m experiments bench factorization recommend [--busy 1] [--ratings N] [--repeats 5] [--threads 2] [--record FILE]
python -m experiments bench factorization growth|amazon [--ratings N] [--threads 2] [--record FILE]
"""

import resource
import tempfile
import time
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numba
import numpy as np
import polars as pl
import torch

from antembed.data.cache import Column
from antembed.files import JSON, default_cache
from antembed.layer.anchor import AnchorEmbedding
from antembed.layer.embedding import param_groups
from antembed.layer.optim.rules import ProximalYogi
from antembed.native.threads import run_workers
from antembed.recommend import fused_kernel as kernel
from antembed.recommend.config import RatingsConfig
from antembed.recommend.dataset import RatingsSplits
from antembed.recommend.fused import FusedEngine
from antembed.recommend.model import MatrixFactorization, half_squared_error
from antembed.recommend.ratings_table import Ratings
from antembed.recommend.synthetic import planted, ratings
from antembed.recommend.task import Ratings as RatingsTask
from antembed.tables.row_labels import LABELLED
from antembed.train.examples import Examples
from antembed.train.options import from_options
from antembed.train.splits import permutation
from experiments.race import Others, Work, busy_processes, median_turns, parse, publish
from experiments.synthetic_stream import stream

USERS, ITEMS, DIMENSIONS, ANCHORS, BATCH, L1 = 162_000, 59_000, 16, (10, 15), 1024, 2e-6  # the shape of MovieLens 25M
AMAZON_USERS, AMAZON_ITEMS, AMAZON_RATINGS, AMAZON_ANCHORS = 43_500_000, 15_200_000, 233_000_000, (15, 10)
AMAZON_L1 = 0.4  # over the users: in the mean loss, a user's ratings weigh 1/users
GROWTH = (*((V, 16) for V in (10**5, 10**6, 10**7, 5 * 10**7)), *((10**6, K) for K in (8, 32, 64)))  # rows, anchors
SURPRISE_EPOCHS, CORNAC_EPOCHS = 4, 30
PEERS = 1_000_000  # ratings for the compiled peers, whose set-up is slow
DEFAULT_RATINGS = {"recommend": 4_000_000, "growth": 8_000_000, "amazon": AMAZON_RATINGS}


def shape_of_movielens_25m(n: int, seed: int = 0) -> Ratings:
    """n planted ratings, Zipf on both sides, in the shape of MovieLens 25M; popular objects are anywhere in memory."""
    users = planted(USERS, DIMENSIONS, anchors=6, exponent=0.6, seed=seed)
    items = planted(ITEMS, exponent=0.9, seed=seed + 1, like=users)
    data = ratings(users, items, n, noise=0.5, seed=seed + 2)
    rng = np.random.default_rng(seed)
    return replace(data, users=rng.permutation(USERS)[data.users], items=rng.permutation(ITEMS)[data.items])


def fused(data: Ratings, embedding: str, threads: int) -> Work:
    """Our compiled pass over all of the data."""
    config = from_options(RatingsConfig, {"embedding": embedding, "anchors": ANCHORS, "biases": False})
    return epochs_of(
        config, data.objects, Examples(data.columns, np.arange(len(data), dtype=np.int32), threads=threads), threads
    )


def at_once(*works: Work) -> Work:
    """Each in a thread of its own, with nothing in common: what two cores of this machine are worth to such work."""

    def together() -> int:
        done = [0] * len(works)

        def work(which: int) -> None:
            done[which] = works[which]()

        run_workers(work, len(works), lambda: None)
        return sum(done)

    return together


def build(config: RatingsConfig, num_embeddings: tuple[int, int]) -> MatrixFactorization:
    """A model for so many users and items, who have no labels."""
    labels = {side: pl.Series("label", np.arange(V, dtype=np.int32)) for side, V in zip(LABELLED, num_embeddings, strict=True)}
    return RatingsTask().build(config, RatingsSplits(labels=labels, mean=3.5))


def epochs_of(config: RatingsConfig, objects: tuple[int, int], examples: Examples, threads: int) -> Work:
    """Whole epochs of a new model, all rows brought up to date at the end."""
    model = build(config, objects)
    engine = FusedEngine(model, ProximalYogi(param_groups(model, L1)), threads)

    def work() -> int:
        return sum(n for n, _ in engine.run(examples, BATCH, 0, lambda step: 0.01, lambda step: L1))

    return work


def torch_steps(data: Ratings, model: torch.nn.Module, optimizer: Any, batches: int) -> Work:
    """A few mini-batches of plain PyTorch."""
    n = min(BATCH * batches, len(data))
    columns = [torch.from_numpy(c[:n]).split(BATCH) for c in (data.users, data.items, data.values)]

    def work() -> int:
        for batch in zip(*columns, strict=True):
            half_squared_error(model, batch).backward()
            optimizer.step()
            optimizer.zero_grad()
        return n

    return work


class PlainFactorization(torch.nn.Module):
    """Full tables as anybody would write them."""

    def __init__(self) -> None:
        super().__init__()
        self.users = torch.nn.Embedding(USERS, DIMENSIONS, sparse=True)
        self.items = torch.nn.Embedding(ITEMS, DIMENSIONS, sparse=True)

    def forward(self, users: torch.Tensor, items: torch.Tensor) -> torch.Tensor:
        return (self.users(users) * self.items(items)).sum(-1) + 3.5


def surprise_svd(data: Ratings) -> Work:
    """scikit-surprise's SVD without biases, as ours, several epochs, so that making its tables hardly counts."""
    from surprise import SVD, Trainset

    by_user: dict[int, list[tuple[int, float]]] = {u: [] for u in range(USERS)}
    by_item: dict[int, list[tuple[int, float]]] = {i: [] for i in range(ITEMS)}
    for u, i, r in zip(data.users.tolist(), data.items.tolist(), data.values.tolist(), strict=True):
        by_user[u].append((i, r))
        by_item[i].append((u, r))
    n = len(data)
    trainset = Trainset(by_user, by_item, USERS, ITEMS, n, (1, 5), range(USERS), range(ITEMS))

    def work() -> int:
        SVD(n_factors=DIMENSIONS, n_epochs=SURPRISE_EPOCHS, biased=False, random_state=0).fit(trainset)
        return n * SURPRISE_EPOCHS

    return work


def cornac_mf(data: Ratings, threads: int = 1) -> Work:
    """cornac's MF without biases, as ours, many epochs, so that making its tables hardly counts.

    With a seed it takes one thread, whatever it is told: with two it has none.
    """
    from cornac.data import Dataset
    from cornac.models import MF

    triples = (data.users.astype(np.int64), data.items.astype(np.int64), data.values.astype(float))
    dataset = Dataset(USERS, ITEMS, {u: u for u in range(USERS)}, {i: i for i in range(ITEMS)}, triples)

    def work() -> int:
        seed = 0 if threads == 1 else None
        model = MF(k=DIMENSIONS, max_iter=CORNAC_EPOCHS, num_threads=threads, use_bias=False, seed=seed).fit(dataset)
        assert model.num_threads == threads
        return len(data) * CORNAC_EPOCHS

    return work


@numba.njit(nogil=True)
def touch(ids: np.ndarray, rows: np.ndarray) -> None:
    """Read and write a number in every cache line of these rows: the memory traffic of a pass."""
    for p in range(ids.shape[0]):
        row = rows[ids[p]]
        for to in range(0, row.shape[0], kernel.STRIDE):
            row[to] += row.dtype.type(1)


def memory_limit(data: Ratings) -> Work:
    """Reading and writing the rows of every batch, and nothing else: what no pass over rows of this length can beat."""
    rows = [np.ones((V, kernel.row_length(K)), np.float32) for V, K in zip((USERS, ITEMS), ANCHORS, strict=True)]

    def work() -> int:
        for ids, table in zip((data.users, data.items), rows, strict=True):
            touch(ids, table)
        return len(data)

    return work


def recommend(n: int, repeats: int, threads: int, busy: int = 0) -> JSON:
    """Seconds a rating of each contestant as ratios to our pass, on one thread and on two; beside so many busy processes."""
    warnings.filterwarnings("ignore")  # the peers' own
    torch.set_num_threads(threads)
    data = shape_of_movielens_25m(n)
    plain = PlainFactorization()
    torch.manual_seed(0)
    users, items = (AnchorEmbedding(V, DIMENSIONS, num_anchors=K) for V, K in zip((USERS, ITEMS), ANCHORS, strict=True))
    dense = MatrixFactorization(users, items, mean=3.5)
    peers_data = replace(data, users=data.users[:PEERS], items=data.items[:PEERS], values=data.values[:PEERS])
    contestants = {
        "anchored, fused, 1 thread": fused(data, "anchor", 1),
        "anchored, fused, 2 threads": fused(data, "anchor", 2),
        "anchored, fused, two models at once": at_once(fused(data, "anchor", 1), fused(data, "anchor", 1)),
        "full, fused, 2 threads": fused(data, "full", 2),
        "full, PyTorch, SparseAdam": torch_steps(data, plain, torch.optim.SparseAdam(plain.parameters(), lr=0.01), 20),
        "anchored, PyTorch, dense T": torch_steps(data, dense, ProximalYogi(param_groups(dense, L1)), 3),
        "surprise SVD, 1 thread": surprise_svd(peers_data),
        "cornac MF, 1 thread": cornac_mf(peers_data),
        "cornac MF, 2 threads": cornac_mf(peers_data, 2),
        "memory limit, 1 thread": memory_limit(data),
    }
    others = Others()  # what the host gives to other machines counts, too: it stalls two threads more than one
    with busy_processes(busy):
        seconds = median_turns(contestants, repeats)
    return {
        "benchmark": f"matrix factorization beside {busy} busy" if busy else "matrix factorization",
        "setting": f"{USERS:,} users, {ITEMS:,} items, d={DIMENSIONS}, K={ANCHORS[0]}/{ANCHORS[1]}, batch {BATCH}",
        "million_ratings_a_second": {name: round(1e-6 / s, 3) for name, s in seconds.items()},
        "ratios": {
            ours: {name: round(s / seconds[ours], 3) for name, s in seconds.items() if name != ours}
            for ours in ("anchored, fused, 1 thread", "anchored, fused, 2 threads")
        },
        "repeats": repeats,
        "ratings": n,
        "threads_of_torch": threads,
        "busy_processes": busy,
        "busy_cores_of_others": others(),
    }


def growth(n: int, repeats: int, threads: int) -> JSON:
    """Ratings a second as the tables grow (three users to an item), and as the anchors do."""
    speeds: dict[str, float] = {}
    for V, K in GROWTH:
        objects = (V - V // 4, V // 4)
        columns = tuple(np.concatenate(parts) for parts in zip(*stream(objects, n), strict=True))
        config = from_options(RatingsConfig, {"anchors": K})
        work = epochs_of(config, objects, Examples(columns, np.arange(n, dtype=np.int32)), threads)
        seconds = median_turns({"": work}, repeats)[""]
        speeds[f"{V:,} rows, K={K}"] = round(1e-6 / seconds, 3)
        del work  # before the next tables are made: two of the largest would not fit
    return {
        "benchmark": "growth of the cost",
        "setting": f"d={DIMENSIONS}, biases, batch {BATCH}, {n:,} ratings an epoch, {threads} threads",
        "million_ratings_a_second": speeds,
        "repeats": repeats,
        "ratings": n,
    }


def amazon(n: int, threads: int) -> JSON:
    """One epoch in the shape of all Amazon ratings, or of a share of them if n is less than 233 million."""
    share = n / AMAZON_RATINGS
    objects = (max(round(AMAZON_USERS * share), 2), max(round(AMAZON_ITEMS * share), 2))
    with tempfile.TemporaryDirectory(dir=_large_folder()) as folder:
        started = time.perf_counter()
        columns = _on_disk(Path(folder), objects, n)
        drawn = time.perf_counter()
        config = from_options(RatingsConfig, {"anchors": AMAZON_ANCHORS})
        l1 = AMAZON_L1 / objects[0]
        model = build(config, objects)
        engine = FusedEngine(model, ProximalYogi(param_groups(model, l1)), threads)
        examples = Examples(columns, permutation(n, 0))
        ready = time.perf_counter()
        done, loss_ = 0, 0.0
        for count, part in engine.run(examples, BATCH, 0, lambda step: 0.01, lambda step: l1):
            done += count
            loss_ += part
        seconds = time.perf_counter() - ready
    return {
        "benchmark": "one epoch in Amazon's shape",
        "setting": f"{objects[0]:,} users, {objects[1]:,} items, d={DIMENSIONS}, K={AMAZON_ANCHORS[0]}/{AMAZON_ANCHORS[1]}, "
        f"biases, batch {BATCH}, λ2 {l1:.1e}, {threads} threads",
        "ratings": n,
        "million_ratings_a_second": round(n / seconds / 1e6, 3),
        "seconds": {"drawing": round(drawn - started, 1), "model": round(ready - drawn, 1), "epoch": round(seconds, 1)},
        "peak_gigabytes": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9, 2),
        "train_mse": round(2 * loss_ / n, 4),
        "nnz": {name: sum(rows.count_nonzeros() for rows in table.tables) for name, table in model.embeddings.items()},
        "entries": {
            name: table.num_embeddings * K for (name, table), K in zip(model.embeddings.items(), AMAZON_ANCHORS, strict=True)
        },
    }


def _large_folder() -> Path:
    """Where gigabytes may lie for a while: /tmp is memory on many machines."""
    folder = default_cache()
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _on_disk(folder: Path, objects: tuple[int, int], n: int) -> tuple[np.ndarray, ...]:
    """Drawn ratings as memory-mapped columns."""
    columns = [Column(kind, folder / name) for name, kind in (("users", "i4"), ("items", "i4"), ("values", "f4"))]
    for pieces in stream(objects, n):
        for column, piece in zip(columns, pieces, strict=True):
            column.append(piece)
    return tuple(column.finish() for column in columns)


def main(words: list[str]) -> None:
    given = parse(words, __doc__, "what", ratings=0, repeats=5, threads=2, busy=0)
    if given.what not in DEFAULT_RATINGS or (given.busy and given.what != "recommend"):
        raise SystemExit(f"{given.what} is none of: {', '.join(DEFAULT_RATINGS)}; --busy goes with recommend")
    n = given.ratings or DEFAULT_RATINGS[given.what]
    if given.what == "recommend":
        found = recommend(n, given.repeats, given.threads, given.busy)
    else:
        found = growth(n, given.repeats, given.threads) if given.what == "growth" else amazon(n, given.threads)
    publish(given.record, found)
