"""Coordinate descent against alternating least squares of the package `implicit`, in one run, contestants in turn.

    python -m experiments bench descent ratings [--record results/descent.jsonl]
    python -m experiments bench descent events sequences/yelp.txt [--record results/descent.jsonl]
    python -m experiments bench descent memory [--ratings 20000000] [--record results/descent.jsonl]

`ratings`: planted ones of 100,000 users and 50,000 items. `events`: lines `user item item …`, the last item held out. A sweep
of ours, with 48 or 64 anchors, beside an iteration of theirs of the same width: seconds of the clock, and of all cores.
`memory`: ours alone, 8,000,000 users and 2,000,000 items, two sweeps; the most memory that the process has held.
"""

import resource
import statistics
import time
import warnings
from collections.abc import Callable
from functools import partial

import numpy as np
from scipy.sparse import csr_matrix
from threadpoolctl import threadpool_limits

from antembed.data.download import find_data
from antembed.files import JSON
from antembed.recommend.descent import Descent
from antembed.recommend.factor import Penalties
from antembed.recommend.fold_in import likely_weight
from antembed.recommend.ranking import Held, list_metrics
from antembed.recommend.seen import Seen
from antembed.recommend.synthetic import planted, ratings
from experiments.race import parse, publish

Columns = tuple[np.ndarray, ...]
Seconds = tuple[float, float]  # of the clock, and of all cores
THEIRS = {"ratings": 16, "events": 32}


def now() -> Seconds:
    return time.perf_counter(), time.process_time()


def timed(work: Callable[[], object]) -> Seconds:
    before = now()
    work()
    return now()[0] - before[0], now()[1] - before[1]


class Peer:
    """Alternating least squares by conjugate gradients."""

    def __init__(self, columns: Columns, sizes: tuple[int, int], factors: int, threads: int):
        from implicit.als import AlternatingLeastSquares  # not a dependency

        self.rows = csr_matrix((np.ones(len(columns[0]), np.float32), (columns[0], columns[1])), shape=sizes)
        self.rows.sum_duplicates()
        self.model = AlternatingLeastSquares(factors=factors, iterations=2, num_threads=threads, random_state=0)

    def iterate(self, iterations: int = 2) -> Seconds:
        """An iteration, the last of some, without what `fit` does before."""
        times: list[Seconds] = []
        self.model.iterations = iterations
        with warnings.catch_warnings(), threadpool_limits(1, "blas"):  # theirs is one call of BLAS a row
            warnings.simplefilter("ignore")
            self.model.fit(self.rows, show_progress=False, callback=lambda *_: times.append(now()))
        return times[-1][0] - times[-2][0], times[-1][1] - times[-2][1]


def planted_ratings(n: int) -> tuple[Columns, tuple[int, int]]:
    sizes = 100_000, 50_000
    users = planted(sizes[0], 16, anchors=12, seed=1)
    items = planted(sizes[1], seed=2, like=users)
    return ratings(users, items, n, noise=0.5, seed=3).columns, sizes


def many_objects(n: int) -> tuple[Columns, tuple[int, int]]:
    """Popular items, rare users, tastes in four dimensions; in single precision, so that they take little beside the fit."""
    sizes, rng = (8_000_000, 2_000_000), np.random.default_rng(0)
    users = rng.integers(0, sizes[0], n, dtype=np.int32)
    items = (sizes[1] * rng.random(n, np.float32) ** 3).astype(np.int32)
    tastes = [rng.standard_normal((size, 4), np.float32) for size in sizes]
    values = np.einsum("nd,nd->n", tastes[0][users], tastes[1][items]) + 0.5 * rng.standard_normal(n, np.float32)
    return (users, items, values.astype(np.float32)), sizes


def measure_memory(n: int, threads: int) -> JSON:
    columns, sizes = many_objects(n)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    d, K, penalties = THEIRS["ratings"], 48, Penalties(1.0, 7.0, 0.02, 6.0)
    compile_kernels(columns, K, d, penalties, threads)
    descent = Descent(columns, sizes, (K, K), d, penalties, sweeps=2, threads=threads)
    start, sweeps = timed(descent.init_weights), [timed(partial(descent.sweep, sweep)) for sweep in (1, 2)]
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "users": sizes[0], "items": sizes[1], "pairs": n, "d": d, "anchors": K,
        "most_gigabytes": round(most / 1e6, 2), "gigabytes_before": round(before / 1e6, 2),
        "seconds": {"start": round(start[0], 1), "sweeps": [round(sweep[0], 1) for sweep in sweeps]},
        "loss": float(descent.loss()), "loss_of_the_mean": float(0.5 * ((columns[2] - columns[2].mean()) ** 2).sum()),
    }  # fmt: skip


def read_events(path: str) -> tuple[Columns, tuple[int, int], Held]:
    """Each user's items but the last, once each, and the last."""
    lines = [np.array(line.split(), np.int64) for line in find_data(path).read_text().splitlines()]
    lines = [line for line in lines if len(line) > 2]
    items, places = np.unique(np.concatenate([line[1:] for line in lines]), return_inverse=True)
    users = np.repeat(np.arange(len(lines)), [len(line) - 1 for line in lines])
    last = np.append(users[1:] != users[:-1], True)
    pairs, counts = np.unique(users[~last] * len(items) + places[~last], return_counts=True)
    train, sizes = (pairs // len(items), pairs % len(items)), (len(lines), len(items))
    columns = *(ids.astype(np.int32) for ids in train), np.ones(len(pairs), np.float32), (1 + np.log(counts)).astype(np.float32)
    return columns, sizes, Held(np.arange(len(lines)), Seen.of(users[last], places[last], *sizes), Seen.of(*train, *sizes))


def ndcg(users: np.ndarray, items: np.ndarray, bias: np.ndarray, held: Held) -> float:
    users, items, bias = (np.ascontiguousarray(part, np.float32) for part in (users, items, bias))
    return list_metrics(lambda rows: users[rows], items, bias, held)["ndcg@10"]


def race(descent: Descent, peer: Peer, repeats: int) -> JSON:
    """Start, then sweeps of ours and iterations of theirs in turn; the first of each does not count."""
    start = timed(descent.init_weights)
    ours, theirs = [], []
    for sweep in range(1, repeats + 2):
        ours.append(timed(partial(descent.sweep, sweep)))
        theirs.append(peer.iterate())
    found: JSON = {}
    for n, unit in enumerate(("clock", "all cores")):
        sweep_, iteration = (statistics.median(each[n] for each in times[1:]) for times in (ours, theirs))
        numbers = {"start": start[n], "sweep": sweep_, "iteration of ALS": iteration}
        numbers |= {"sweep / iteration": sweep_ / iteration, "start / sweep": start[n] / sweep_}
        found[unit] = {name: float(f"{number:.3g}") for name, number in numbers.items()}
    return found


def compile_kernels(columns: Columns, K: int, d: int, penalties: Penalties, threads: int) -> None:
    """A small problem first, of rows about as long beside d: compiling is no part of the start."""
    few = *(ids[:1000] % 50 for ids in columns[:2]), *(values[:1000] for values in columns[2:])
    small = Descent(few, (50, 50), (K, K), d, penalties, sweeps=1, threads=threads)
    small.init_weights()
    small.sweep(1)


def main(words: list[str]) -> None:
    chosen = parse(words, __doc__, "what", "data=sequences/yelp.txt", repeats=5, ratings=4_000_000, threads=2)
    if chosen.what == "memory":
        about: JSON = {"benchmark": "coordinate descent, memory", "threads": chosen.threads}
        publish(chosen.record, about | measure_memory(chosen.ratings, chosen.threads))
        return
    d, threads = THEIRS[chosen.what], chosen.threads
    if chosen.what == "ratings":
        columns, sizes = planted_ratings(chosen.ratings)
        K, penalties = 48, Penalties(1.0, 7.0, 0.02, 6.0)
    else:
        columns, sizes, held = read_events(chosen.data)
        K, penalties = 64, Penalties(0.02, 0.3, 0.1, 1.0, likely_weight(len(columns[0]), *sizes))
    descent = Descent(columns, sizes, (K, K), d, penalties, sweeps=chosen.repeats + 1, threads=threads)
    peer = Peer(columns, sizes, d, threads)
    compile_kernels(columns, K, d, penalties, threads)
    result: JSON = {"benchmark": f"coordinate descent, {chosen.what}", "threads": threads}
    result |= {"users": sizes[0], "items": sizes[1], "pairs": len(columns[0]), "d": d, "anchors": K}
    result["seconds"] = race(descent, peer, chosen.repeats)
    if chosen.what == "events":
        lists = {"ours": ndcg(descent.users.E, descent.items.E, descent.items.bias, held)}
        for factors in (d, 64):
            peer = Peer(columns, sizes, factors, threads)
            wall, cores = timed(partial(peer.iterate, 15))
            result["seconds"][f"ALS, {factors} factors, 15 iterations"] = {
                "clock": round(wall, 2),
                "all cores": round(cores, 2),
            }
            model = peer.model
            lists[f"ALS, {factors} factors"] = ndcg(model.user_factors, model.item_factors, np.zeros(sizes[1]), held)
        result["ndcg@10"] = {name: round(value, 4) for name, value in lists.items()}
        result["nnz"] = int(np.count_nonzero(descent.users.T) + np.count_nonzero(descent.items.T))
    publish(chosen.record, result)
