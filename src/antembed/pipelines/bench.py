"""Matrix factorisation against its peers, side by side in one run: `antembed bench recommend`."""

import statistics
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from antembed.data import Examples, Ratings
from antembed.data.synthetic import planted, ratings
from antembed.embedding import AnchorEmbedding, param_groups
from antembed.kernels import ratings as kernel
from antembed.optim import ProximalYogi
from antembed.pipelines.recommend import Settings, build_model
from antembed.tasks.recommend import MatrixFactorisation, loss
from antembed.training import FusedEngine

USERS, ITEMS, DIMENSIONS, ANCHORS, BATCH, L1 = 162_000, 59_000, 16, (10, 15), 1024, 2e-6  # the shape of MovieLens 25M
SURPRISE_EPOCHS, CORNAC_EPOCHS = 4, 30
OURS = "anchored, fused, 1 thread"
Work = Callable[[], int]  # does some of the work and says how much


def interleave(contestants: dict[str, Work], repeats: int) -> dict[str, float]:
    """Median seconds a unit of work, contestants in turn so that a noisy moment hits all; the first turn does not count."""
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for turn in range(repeats + 1):
        for name, work in contestants.items():
            started = time.perf_counter()
            done = work()
            if turn:
                times[name].append((time.perf_counter() - started) / done)
    return {name: statistics.median(found) for name, found in times.items()}


def shape_of_movielens_25m(n: int, seed: int = 0) -> Ratings:
    """n planted ratings, Zipf on both sides, in the shape of MovieLens 25M; popular objects are anywhere in memory."""
    users = planted(USERS, DIMENSIONS, anchors=6, exponent=0.6, seed=seed)
    items = planted(ITEMS, exponent=0.9, seed=seed + 1, like=users)
    data = ratings(users, items, n, noise=0.5, seed=seed + 2)
    rng = np.random.default_rng(seed)
    return replace(data, users=rng.permutation(USERS)[data.users], items=rng.permutation(ITEMS)[data.items])


def fused(data: Ratings, embedding: str) -> Work:
    """Our compiled pass over all of the data."""
    settings = Settings(data="", embedding=embedding, anchors=ANCHORS, dimensions=DIMENSIONS, biases=False)
    model = build_model(settings, data.objects, 3.5)
    engine = FusedEngine(model, ProximalYogi(param_groups(model, L1)))
    examples = Examples(data.columns, np.arange(len(data), dtype=np.int32))

    def work() -> int:
        return sum(n for n, _ in engine.run(examples, BATCH, 0, lambda step: 0.01, lambda step: L1))

    return work


def torch_steps(data: Ratings, model: torch.nn.Module, optimiser: Any, batches: int) -> Work:
    """A few mini-batches of plain PyTorch."""
    n = BATCH * batches
    columns = [torch.from_numpy(c[:n]).split(BATCH) for c in (data.users, data.items, data.values)]

    def work() -> int:
        for batch in zip(*columns, strict=True):
            loss(model, batch).backward()
            optimiser.step()
            optimiser.zero_grad()
        return n

    return work


class PlainFactorisation(torch.nn.Module):
    """Full tables as anybody would write them."""

    def __init__(self) -> None:
        super().__init__()
        self.users = torch.nn.Embedding(USERS, DIMENSIONS, sparse=True)
        self.items = torch.nn.Embedding(ITEMS, DIMENSIONS, sparse=True)

    def forward(self, users: torch.Tensor, items: torch.Tensor) -> torch.Tensor:
        return (self.users(users) * self.items(items)).sum(-1) + 3.5


def surprise_svd(data: Ratings) -> Work:
    """scikit-surprise's SVD, several epochs, so that making its tables hardly counts."""
    from surprise import SVD, Trainset

    by_user: dict[int, list[tuple[int, float]]] = {u: [] for u in range(USERS)}
    by_item: dict[int, list[tuple[int, float]]] = {i: [] for i in range(ITEMS)}
    for u, i, r in zip(data.users.tolist(), data.items.tolist(), data.values.tolist(), strict=True):
        by_user[u].append((i, r))
        by_item[i].append((u, r))
    n = len(data)
    trainset = Trainset(by_user, by_item, USERS, ITEMS, n, (1, 5), range(USERS), range(ITEMS))

    def work() -> int:
        SVD(n_factors=DIMENSIONS, n_epochs=SURPRISE_EPOCHS, random_state=0).fit(trainset)
        return n * SURPRISE_EPOCHS

    return work


def cornac_mf(data: Ratings) -> Work:
    """cornac's MF on one thread, many epochs, so that making its tables hardly counts."""
    from cornac.data import Dataset
    from cornac.models import MF

    triples = (data.users.astype(np.int64), data.items.astype(np.int64), data.values.astype(float))
    dataset = Dataset(USERS, ITEMS, {u: u for u in range(USERS)}, {i: i for i in range(ITEMS)}, triples)

    def work() -> int:
        MF(k=DIMENSIONS, max_iter=CORNAC_EPOCHS, num_threads=1, seed=0).fit(dataset)
        return len(data) * CORNAC_EPOCHS

    return work


def memory_limit(data: Ratings) -> Work:
    """Reading and writing the rows of every batch, and nothing else: what no pass over rows of this length can beat."""
    rows = [np.ones((V, kernel.row_length(K)), np.float32) for V, K in zip((USERS, ITEMS), ANCHORS, strict=True)]

    def work() -> int:
        for ids, table in zip((data.users, data.items), rows, strict=True):
            kernel.touch(ids, table)
        return len(data)

    return work


def recommend(n: int, repeats: int) -> dict[str, Any]:
    """Seconds a rating of each contestant as ratios to our pass on one thread."""
    warnings.filterwarnings("ignore")  # the peers' own
    data = shape_of_movielens_25m(n)
    plain = PlainFactorisation()
    torch.manual_seed(0)
    users, items = (AnchorEmbedding(V, DIMENSIONS, num_anchors=K) for V, K in zip((USERS, ITEMS), ANCHORS, strict=True))
    dense = MatrixFactorisation(users, items, mean=3.5)
    seconds = interleave(
        {
            OURS: fused(data, "anchor"),
            "full, fused, 1 thread": fused(data, "full"),
            "full, PyTorch, SparseAdam": torch_steps(data, plain, torch.optim.SparseAdam(plain.parameters(), lr=0.01), 20),
            "anchored, PyTorch, dense T": torch_steps(data, dense, ProximalYogi(param_groups(dense, L1)), 3),
            "surprise SVD": surprise_svd(data),
            "cornac MF, 1 thread": cornac_mf(data),
            "memory limit, 1 thread": memory_limit(data),
        },
        repeats,
    )
    one = seconds[OURS]
    return {
        "benchmark": "matrix factorisation",
        "setting": f"{USERS:,} users, {ITEMS:,} items, d={DIMENSIONS}, K={ANCHORS[0]}/{ANCHORS[1]}, batch {BATCH}",
        "million_ratings_a_second": {name: round(1e-6 / s, 3) for name, s in seconds.items()},
        "ratios": {name: round(s / one, 3) for name, s in seconds.items() if s != one},
        "repeats": repeats,
        "ratings": n,
    }
