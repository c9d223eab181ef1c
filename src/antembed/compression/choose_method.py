"""Which method compresses a table best, and whether lengths are stored apart: tried on a sample of its rows."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from antembed.compression import principal_axes as transform
from antembed.compression import sparse_anchors as sparse
from antembed.compression.goal import BeatenError, Coded, Goal, TooFewBytesError, Vectors, opened, relative_error
from antembed.compression.quality import QUERIES, Progress, named, neighbours_kept
from antembed.compression.sparse_anchors_kernel import choose_rows
from antembed.files import JSON
from antembed.native.compile import is_compiled
from antembed.tables.entropy_kernel import quantize_rows

FITS: dict[str, Callable[..., Coded]] = {"transform": transform.fit, "sparse": sparse.fit}
# The kernel that a method calls first, and seconds to compile all of its kernels, on one core of the machine of results/.
KERNELS = {"transform": (quantize_rows, 5), "sparse": (choose_rows, 6)}
Way = tuple[str, bool]  # method, lengths apart

SAMPLE, LEAST_ROWS, MOST_ROWS = 1 << 21, 4096, 20_000  # numbers, and rows, of the sample
SPARSE_FROM_RATIO, SPARSE_FROM_ERROR = 12.0, 0.1  # below, sparse codes lose everywhere
LIKELY = 20.0  # ratio from which on sparse codes win often: they are tried with more rows
AHEAD = 1.3  # times transform's error, with which sparse codes may still keep more neighbours (MiniLM at 32x)
LATER = 0.81  # of what sparse codes lose on the sample: in the table anchors are fitted to all rows (MiniLM at 32x)


def ways_to_try(shape: tuple[int, ...], goal: Goal, method: str, split_norms: bool | None) -> list[Way]:
    """Transform first: sparse codes are given up where they are beaten."""
    sparse_too = goal.error >= SPARSE_FROM_ERROR if goal.by_error else _ratio(shape, goal) >= SPARSE_FROM_RATIO
    methods = [method] if method != "auto" else ["transform", "sparse"] if sparse_too else ["transform"]
    return [(name, apart) for name in methods for apart in ([split_norms] if split_norms is not None else [False, True])]


def say_if_compiled(how: str, progress: Progress) -> None:
    """Said before the first call of a method whose machine code is not kept yet."""
    first, seconds = KERNELS[how]
    if not is_compiled(first):
        progress(f"compiling {how} (once, about {seconds} s)", 0, 1)


def best_way(
    E: Vectors, goal: Goal, ways: list[Way], weighting: float, seed: int, progress: Progress
) -> tuple[Way, sparse.Trained | None]:
    """What loses least on a sample of rows, or, with a tolerance, takes least bytes; and its anchors, if it has some.

    What is lost is the squared error times the squared share of neighbours that are no longer the nearest: lengths stored apart
    can keep many more neighbours at a little more error, and error alone would never choose them."""
    trials = _Trials.of(E, goal, weighting, seed)
    found: list[tuple[float, Way]] = []
    errors: dict[bool, float] = {}  # of transform, without and with lengths apart
    anchors: dict[Way, sparse.Trained] = {}
    for number, (how, apart) in enumerate(ways, 1):
        if how == "sparse" and not _is_likely(E.shape, goal) and found and min(found)[1] == ("transform", not apart):
            continue  # what is better for the axes is better for anchors, too
        say_if_compiled(how, progress)
        about = f"trying {how}{' with lengths apart' * apart} on {len(trials.sample):,} rows, {number} of {len(ways)}: "
        try:
            if how == "transform":
                coded = trials.transform(apart, named(about, progress))
            else:
                rival = AHEAD * errors.get(apart, np.inf)
                coded, anchors[how, apart] = trials.sparse(apart, rival, named(about, progress))
        except (TooFewBytesError, BeatenError):
            continue
        lost, error = trials.lost(how, coded)
        found.append((lost, (how, apart)))
        errors.setdefault(apart, error)
    best = min(found)[1] if found else ways[0]
    return best, anchors.get(best)


@dataclass(frozen=True)
class _Trials:
    """Both methods on a sample. Half of the rows that anchors are fitted to are in the sample, if there are others: these lose
    less than they would in the full table, the others more."""

    sample: np.ndarray  # (n, d)
    fitted: np.ndarray  # (m, d): rows that anchors are fitted to
    goal: Goal
    shape: tuple[int, int]
    weighting: float
    seed: int

    @classmethod
    def of(cls, E: Vectors, goal: Goal, weighting: float, seed: int) -> "_Trials":
        V, d = E.shape
        order, each = np.random.default_rng(seed).permutation(V), max(SAMPLE // d, LEAST_ROWS)
        n = V if V <= MOST_ROWS else min(V // 2, MOST_ROWS, each)
        m = MOST_ROWS if _is_likely(E.shape, goal) else 2 * each
        fitted = order if n == V else order[n // 2 :][:m]
        return cls(E[np.sort(order[:n])], E[np.sort(fitted)], goal, E.shape, weighting, seed)

    @property
    def K(self) -> int:
        return min(sparse.number_of_anchors(self.shape, self.goal), len(self.fitted))

    def fixed(self, how: str) -> float:
        """Bytes of a file, beside its rows."""
        d = self.shape[1]
        return sparse.fixed_bytes(d, self.K) if how == "sparse" else transform.fixed_bytes(d) + d * d

    def goal_of(self, how: str, rows: np.ndarray) -> Goal:
        """For these rows alone."""
        fixed = self.fixed(how)
        return self.goal if self.goal.by_error else Goal(size=fixed + (self.goal.size - fixed) * len(rows) / self.shape[0])

    def transform(self, apart: bool, progress: Progress) -> Coded:
        given: JSON = {"weighting": self.weighting, "split_norms": apart, "seed": self.seed, "progress": progress}
        return transform.fit(self.sample, self.goal_of("transform", self.sample), **given)

    def sparse(self, apart: bool, rival: float, progress: Progress) -> tuple[Coded, sparse.Trained]:
        rows, stages = sparse.weigh(self.fitted, self.weighting, apart), sparse.STAGES[:1]
        goal = self.goal_of("sparse", self.fitted)
        known = sparse.train(rows, goal, self.K, self.seed, progress, stages, rival=rival)
        rows, goal = sparse.weigh(self.sample, self.weighting, apart), self.goal_of("sparse", self.sample)
        return sparse.code(rows, goal, known, progress, refit=len(self.sample) == self.shape[0]), known

    def lost(self, how: str, coded: Coded) -> tuple[float, float]:
        """How much, and the relative error."""
        n, V, fixed = len(self.sample), self.shape[0], self.fixed(how)
        if self.goal.by_error:
            return fixed + (coded.size - fixed) * V / n, 0.0
        F, queries = opened(coded)[:], np.linspace(0, n - 1, min(n, QUERIES)).astype(np.int64)
        away, error = 1 - neighbours_kept(self.sample, F, queries), relative_error(self.sample, F, self.weighting)
        return error * (away + 1 / len(queries)) ** 2 * (LATER if how == "sparse" and n < V else 1), error


def _ratio(shape: tuple[int, ...], goal: Goal) -> float:
    """Times smaller than fp32."""
    return 4 * shape[0] * shape[1] / goal.size


def _is_likely(shape: tuple[int, ...], goal: Goal) -> bool:
    """That sparse codes are better."""
    return not goal.by_error and _ratio(shape, goal) > LIKELY
