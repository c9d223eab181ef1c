"""The smallest model that is good enough: the ℓ0 penalty rises while the stored model's validation error stays within a limit.

    dense    alternating least squares until the validation error stands still: its smallest value is the reference
    path     the penalty rises step by step; when the error leaves reference·(1 + tolerance), the last good model comes back
             and the interval between the last good and the first bad penalty is halved, in logarithms
    polish   what is zero stays zero, and the rest is free

A step of this is a sweep, so a run can be interrupted after any of them.
"""

from collections.abc import Callable

import numpy as np
import torch

from antembed.budget import parse_tolerance
from antembed.files import JSON
from antembed.recommend.descent import INIT, WARM, Descent
from antembed.train.checkpoint import CheckpointError

# Sweeps of the dense phase: they end when one changes the error by less than this share, after some at least and at most. Lists
# are a coarser measure than errors.
SETTLED, LISTS_SETTLED, LEAST_DENSE, MOST_DENSE = 2e-4, 5e-3, 5, 40
FIRST_PENALTY, STEP, PRECISE = 0.05, 1.6, 1.1  # of ℓ0, in units of the ratings' variance
LEAST, MOST = 1e-5, 1e5  # times the first: no penalty is low enough, or none too high
SWEEPS, POLISHED = 2, 2  # at each penalty, and at the end
Tensors = dict[str, torch.Tensor]


class PenaltyPath:
    """The largest penalty that is good enough: `observe(good)` is called for the present one, and chooses the next."""

    def __init__(self, first: float, step: float = STEP, precise: float = PRECISE):
        self.first, self.step, self.precise = first, step, precise
        self.penalty, self.good, self.bad = first, 0.0, 0.0  # 0: none yet

    def observe(self, good: bool) -> None:
        self.good, self.bad = (self.penalty, self.bad) if good else (self.good, self.penalty)
        if not self.bad:
            self.penalty = self.good * self.step
        else:
            self.penalty = (self.good * self.bad) ** 0.5 if self.good else self.bad / self.step**4

    @property
    def done(self) -> bool:
        if self.good and self.bad:
            return self.bad / self.good < self.precise
        return self.penalty < LEAST * self.first or self.penalty > MOST * self.first


class ToleranceDescent:
    """Sweeps of coordinate descent, dense first, to the smallest model within the tolerance."""

    def __init__(
        self, descent: Descent, measure: Callable[[bool], float], tolerance: str, baseline: float, settled: float, axes: bool
    ):
        """`measure(stored)` is the validation error of the model as it is, or as it would be read back from its files.
        `baseline`: the error of a model without vectors, which the small one must not come too near to.
        `settled`: the share of the error that ends the dense phase. `axes`: anchors are the principal axes and their
        opposites."""
        self.descent, self.measure, self.baseline, self.axes = descent, measure, baseline, axes
        self.tolerance = parse_tolerance(tolerance)
        self.scale = float(np.std(descent.columns[2])) or 1.0
        self.path = PenaltyPath(FIRST_PENALTY * self.scale**2)
        self.settled = settled
        self.phase, self.todo = "dense", MOST_DENSE
        self.reference, self.error = float("inf"), float("inf")  # of the dense model, and of the one that is kept
        self.kept: Tensors = {}
        descent.init_warm(INIT * self.scale**0.5)

    @property
    def limit(self) -> float:
        """The largest validation error that is good enough. What vectors gain over biases alone is at least half kept; ratings
        that are all the same have no error at all."""
        enough = max((self.reference + self.baseline) / 2, self.reference * (1 + self.tolerance / 10))
        return min(self.reference * (1 + self.tolerance), enough) + 1e-9 * self.scale**2

    @property
    def done(self) -> bool:
        return self.phase == "done"

    def sweep(self) -> float:
        """One sweep of what comes next; → the ℓ0 penalty it was done with."""
        if self.phase == "dense":
            self._dense()
            return 0.0
        self.todo -= 1
        self.descent.frozen = self.phase == "polish"
        penalty = 0.0 if self.descent.frozen else self.path.penalty
        self.descent.sweep_axes(penalty) if self.axes else self.descent.sweep_at(penalty)
        if self.todo == 0:
            self._finish() if self.descent.frozen else self._evaluate_penalty()
        return penalty

    def _dense(self) -> None:
        self.descent.sweep_warm(MOST_DENSE - self.todo)
        self.todo -= 1
        last, self.error = self.error, self.measure(False)
        self.reference = min(self.error, self.reference)
        least = max(LEAST_DENSE, WARM + 2) if self.descent.weak else LEAST_DENSE
        settled = self.todo <= MOST_DENSE - least and abs(self.error - last) < self.settled * self.error
        if settled or self.todo == 0:
            self.descent.make_axes() if self.axes else self.descent.make_anchors()
            self._keep(self.measure(True))
            self.phase, self.todo = "path", SWEEPS

    def _evaluate_penalty(self) -> None:
        error = self.measure(True)
        good = error <= self.limit
        self.path.observe(good)
        if good or error < self.error > self.limit:  # while nothing is good enough, the best is kept
            self._keep(error)
        else:
            self.descent.load(self.kept)
        empty = good and not any(factor.T.any() or factor.bias.any() for factor in self.descent.factors)
        self.todo = SWEEPS
        if self.path.done or empty:
            self.descent.load(self.kept)
            self.phase, self.todo = "polish", POLISHED

    def _finish(self) -> None:
        """Keep what was polished, unless that made it worse."""
        error = self.measure(True)
        if error > max(self.limit, self.error):
            self.descent.load(self.kept)
        else:
            self.error = error
        self.phase = "done"

    def _keep(self, error: float) -> None:
        self.error = error
        self.kept = {name: tensor.clone() for name, tensor in self.descent.state().items()}

    def state_dict(self) -> tuple[Tensors, JSON]:
        plain = {name: vars(self)[name] for name in ("phase", "todo", "reference", "error")}
        plain |= {name: vars(self.path)[name] for name in ("penalty", "good", "bad")}
        return {f"kept/{name}": tensor for name, tensor in self.kept.items()}, plain

    def load_state_dict(self, tensors: Tensors, plain: JSON) -> None:
        self.kept = {name.removeprefix("kept/"): tensor for name, tensor in tensors.items() if name.startswith("kept/")}
        if plain["phase"] not in ("dense", "path", "polish", "done") or bool(self.kept) == (plain["phase"] == "dense"):
            raise CheckpointError(f"the checkpoint is in the phase {plain['phase']!r} with {len(self.kept)} kept tensors")
        self.phase, self.todo = plain["phase"], plain["todo"]
        self.reference, self.error = plain["reference"], plain["error"]
        self.path.penalty, self.path.good, self.path.bad = plain["penalty"], plain["good"], plain["bad"]
        self.descent.frozen = self.phase == "polish" and self.todo < POLISHED
