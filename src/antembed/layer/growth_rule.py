"""nbANT, the number of anchors found in training: the objective (eq. 5), when to add and to remove anchors, and the prior.

A policy is a function (state, check) → (state, decision), called at the end of every epoch. Its state is plain data, for
checkpoints. The prior behind the objective is the Indian buffet process, whose limit gives eq. 5.
"""

from dataclasses import dataclass, replace

import numpy as np
from scipy.special import gammaln

from antembed.layer.optim.proximal_optimizer import ProximalOptimizer


@dataclass(frozen=True)
class Check:
    """The input of a policy: eq. 5 and the loss alone, on validation data, and the present number of anchors."""

    objective: float
    loss: float
    K: tuple[int, ...]  # anchors in use, one number for each table
    removed: bool = False  # whether there are removed anchors that could be added again


@dataclass(frozen=True)
class Keep:
    """Continue without a change."""


@dataclass(frozen=True)
class Add:
    """Add n anchors, in one table or (None) in each. `undo`: restore the last snapshot first.

    `fresh`: removed anchors have been tried again without success; add new ones."""

    n: int
    table: int | None = None
    undo: bool = False
    fresh: bool = False


@dataclass(frozen=True)
class Remove:
    """Remove the n least used anchors, in one table or (None) in each. `undo` as above."""

    n: int
    table: int | None = None
    undo: bool = False


@dataclass(frozen=True)
class Stop:
    """K is final."""

    undo: bool = False


Decision = Keep | Add | Remove | Stop


# The paper's rule ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TrendState:
    last: tuple[float, ...] = ()


@dataclass(frozen=True)
class Trend:
    """The paper's rule: if the last three objectives fall, add ΔK anchors; if they rise, remove ΔK; until the last epoch."""

    step: int = 1  # ΔK: 1 for MovieLens 1M, 2 for 25M

    def initial_state(self) -> TrendState:
        return TrendState()

    def __call__(self, state: TrendState, check: Check) -> tuple[TrendState, Decision]:
        last = (*state.last, check.objective)[-3:]
        state = TrendState(last)
        if len(last) < 3:
            return state, Keep()
        if last[0] > last[1] > last[2]:
            return state, Add(self.step)
        if last[0] < last[1] < last[2] and min(check.K) > self.step:
            return state, Remove(self.step)
        return state, Keep()

    def finish(self, state: TrendState) -> Stop:
        return Stop()


# Our rule -----------------------------------------------------------------------------------------------------------------

DOUBLING = -1  # the first phase
Direction = tuple[bool, int | None]  # whether to add (or to remove), and in which table; None: in all


@dataclass(frozen=True)
class PlateauState:
    since: tuple[float, ...] = ()  # objectives since the last change,
    losses: tuple[float, ...] = ()  # and losses
    before: float = float("inf")  # the objective before the current trial,
    before_loss: float = float("inf")  # and the loss
    trying: int = DOUBLING  # index of the direction
    n: int = 0  # anchors added or removed by the trial
    K: tuple[int, ...] = ()  # before the trial
    removed: bool = False  # whether there were removed anchors then
    fresh: bool = False  # the trial adds new anchors instead of removed ones
    failed: tuple[int, ...] = ()  # directions that have failed since the last success


@dataclass(frozen=True)
class Plateau:
    """Train to a plateau, try a change, train to a plateau again: keep what lowers the objective, undo what does not.

    First it doubles K as long as the loss falls, regardless of the penalty: a single new anchor often finds no role beside the
    others, and a model grown one by one stays worse than one that had too many anchors and lost some. Then it tries directions
    in turn: fewer in all tables, more in all tables, and (for several tables) fewer and more in each one. The first trial
    removes half of K, later ones start with one anchor; a success doubles the size of the next trial, a failure halves it, and
    a failure with one anchor ends the direction. When all directions have failed since the last success, K is final."""

    tables: int = 1
    patience: int = 3  # so many checks without a fall are a plateau
    tolerance: float = 0.003  # smaller relative falls do not count
    gain: float = 0.005  # relative gain that a change must bring; less may be due to the training alone
    longest: int = 15  # wait for a plateau for at most so many checks
    enough: int = 16  # with fewer anchors, do not wait for a plateau before doubling

    @property
    def directions(self) -> list[Direction]:
        where: list[int | None] = [None, *range(self.tables)] if self.tables > 1 else [None]
        return [(more, table) for table in where for more in (False, True)]

    def initial_state(self) -> PlateauState:
        return PlateauState()

    def settled(self, since: tuple[float, ...]) -> bool:
        """Whether the last `patience` checks are no lower than those before (up to the tolerance), or there were `longest`."""
        if len(since) <= self.patience:
            return False
        return len(since) >= self.longest or min(since[-self.patience :]) > min(since[: -self.patience]) * (1 - self.tolerance)

    def level(self, since: tuple[float, ...]) -> float:
        """The median of the last `patience` checks, since single ones are noisy."""
        last = sorted(since[-self.patience :])
        return last[len(last) // 2]

    def __call__(self, state: PlateauState, check: Check) -> tuple[PlateauState, Decision]:
        state = replace(state, since=(*state.since, check.objective), losses=(*state.losses, check.loss))
        too_few = not state.K and max(check.K) < self.enough
        if not too_few and not self.settled(state.since):
            return state, Keep()
        level, loss = self.level(state.since), self.level(state.losses)
        here = replace(state, before=level, before_loss=loss, K=check.K, removed=check.removed, since=(), losses=())
        if state.trying == DOUBLING:
            # Relative to the objective: where losses are small beside the penalties, no anchor is worth its penalty.
            if not state.K or loss < state.before_loss - self.gain * level:
                return here, Add(max(*check.K, self.enough))
            return self._try(here, 0, max(check.K) // 2)  # from the doubled model, which may have found better anchors
        more, table = self.directions[state.trying]
        better = level < state.before * (1 - self.gain)
        if state.n > 1 and not more and loss > state.before_loss + self.gain * level:
            better = False  # some of them were needed: removing half as many may be better still
        if better and more and sum(check.K) <= sum(state.K):  # new anchors are unused: the gain is due to training alone
            return self._try(replace(here, failed=(*state.failed, state.trying)), state.trying + 1)
        if better:
            # The opposite of a single step that has just helped cannot help.
            failed = (state.trying ^ 1,) if state.n == 1 else ()
            return self._try(replace(here, failed=failed), state.trying, 2 * state.n)
        if state.n > 1:
            return self._try(state, state.trying, state.n // 2, undo=True)
        if more and state.removed and not state.fresh:  # removed anchors did not help again; new ones may
            return replace(state, since=(), losses=(), fresh=True), Add(1, table, undo=True, fresh=True)
        state = replace(state, failed=(*state.failed, state.trying))
        return self._try(state, state.trying + 1, undo=True)

    def _try(self, state: PlateauState, first: int, n: int = 1, undo: bool = False) -> tuple[PlateauState, Decision]:
        """A change of size n in direction `first`, or of one anchor in the next that has not failed."""
        for turn in range(len(self.directions)):
            number = (first + turn) % len(self.directions)
            more, table = self.directions[number]
            most = max(state.K) if table is None else state.K[table]
            if number in state.failed or (not more and most < 2):
                continue
            size = max(n, 1) if turn == 0 else 1
            size = size if more else min(size, most // 2)
            state = replace(state, since=(), losses=(), trying=number, n=size, fresh=False)
            return state, Add(size, table, undo) if more else Remove(size, table, undo)
        return state, Stop(undo)

    def finish(self, state: PlateauState) -> Stop:
        """The last epoch is over: keep the current trial if it has lowered the objective so far, else undo it."""
        ahead = bool(state.since) and self.level(state.since) < state.before * (1 - self.gain)
        return Stop(undo=bool(state.K) and not ahead)


def nbant_objective(mean_loss: float, nnz: int, anchors: int, anchor_penalty: float, l0_penalty: float) -> float:
    """mean D + λ2·‖T‖₀ + (λ1 − λ2)·K with λ1 = anchor_penalty, λ2 = l0_penalty: eq. 5 of the paper with D the mean over
    examples (which reproduces the numbers of its Appendix L)."""
    return mean_loss + l0_penalty * nnz + (anchor_penalty - l0_penalty) * anchors


def penalties(optimizer: ProximalOptimizer, strength: float | None = None) -> float:
    """The penalty term of ANT's objective: Σ λ2·‖T‖₁ over every T, with λ2 from the groups, or `strength` for all."""
    optimizer.flush()
    total = 0.0
    for group in optimizer.param_groups:
        if (prox := group["prox"]) is not None and prox.scheduled:
            prox = prox if strength is None else replace(prox, strength=strength)
            own = sum(prox.penalty(weight.detach()) for weight in group["params"])
            total += float(own if group["table"] is None else group["table"].summed(own))
    return total


# The prior ----------------------------------------------------------------------------------------------------------------


def sample_ibp(num_objects: int, a: float, b: float = 1.0, *, rng: np.random.Generator) -> np.ndarray:
    """Z (num_objects, K) of 0 and 1 with random K, from the two-parameter process; b = 1 is the one-parameter process.

    Object i (from 1) uses each anchor that m_k objects use before it with probability m_k/(b + i − 1), and
    Poisson(a·b/(b + i − 1)) new ones. (The paper's appendix prints the denominators as i + b, which contradicts its own
    probability of Z; this is Ghahramani et al. 2007.)"""
    Z = np.zeros((num_objects, 0), np.int8)
    for i in range(num_objects):
        old = rng.random(Z.shape[1]) < Z.sum(axis=0) / (b + i)
        new = rng.poisson(a * b / (b + i))
        Z = np.pad(Z, ((0, 0), (0, new)))
        Z[i] = np.append(old, np.ones(new))
    return Z


def log_probability(Z: np.ndarray, log_a: float, log_b: float = 0.0) -> float:
    """log p([Z]) of the two-parameter process (Appendix A). a and b are given as logarithms, so that e^(±βλ) does not overflow.

    [Z] is the class of matrices with the same columns in any order; empty columns do not count."""
    Z = Z[:, Z.any(axis=0)]
    V, K = Z.shape
    m = Z.sum(axis=0).astype(float)
    harmonic = np.exp(log_a + log_b - _log_plus(log_b, V)).sum()  # a·b·Σ 1/(b + j − 1)
    same = np.unique(Z, axis=1, return_counts=True)[1] if K else np.zeros(0)
    columns = gammaln(m) + _log_rising(V - m, log_b) - _log_rising(np.full_like(m, V), log_b)
    return float(K * (log_a + log_b) - gammaln(same + 1).sum() - harmonic + columns.sum())


def _log_plus(log_b: float, n: int) -> np.ndarray:
    """log(b + j) for j = 0 … n − 1."""
    return np.logaddexp(log_b, np.log(np.maximum(np.arange(n), np.finfo(float).tiny)))


def _log_rising(n: np.ndarray, log_b: float) -> np.ndarray:
    """log Γ(n + b)/Γ(b) = Σ_{j<n} log(b + j), accurate also for huge b."""
    steps = np.concatenate([[0.0], np.cumsum(_log_plus(log_b, int(n.max(initial=0))))])
    return steps[n.astype(int)]


def small_variance_limit(Z: np.ndarray, anchor_penalty: float, l0_penalty: float) -> float:
    """−λ2·‖Z‖₀ − (λ1 − λ2)·K, the limit of (1/β)·log p(Z) with a = e^(−βλ1), b = e^(βλ2) (Appendix B).

    λ1 is `anchor_penalty`, λ2 `l0_penalty`."""
    return float(-l0_penalty * Z.sum() - (anchor_penalty - l0_penalty) * int(Z.any(axis=0).sum()))
