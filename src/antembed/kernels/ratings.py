"""Matrix factorisation in one compiled pass: whole mini-batches of gather, T·A, loss, gradients, Yogi and lazy prox.

Rating ≈ t_u·M·t_i + biases with M = A_u·A_iᵀ (K_u × K_i), so that nothing of width d is touched for a single rating. With err
the gradient of the loss by a prediction, and s_u = Σ err·t_i over a user's ratings of the batch:

    ∂/∂t_u = M·s_u,     ∂/∂t_i = Mᵀ·s_i,     ∂/∂A_u = C·A_i,  ∂/∂A_i = Cᵀ·A_u   with C = Σ_u t_u ⊗ s_u

A row holds all that belongs to its object, in one piece of memory: when it was last current, its place in the batch, its bias
with the bias's m and v, then x, m and v of its K weights (`Layout`). The twin is the torch engine; the tests compare them.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numba import njit, prange

LAST, STAMP, SLOT, BIAS, WEIGHTS = 0, 1, 2, 3, 6
ALIGN = 8  # a row is a multiple of this many numbers
# No reordering that could lose a NaN: only what lets sums be vectorised and products fused.
FAST = {"reassoc", "contract", "nsz", "arcp"}


class Yogi(NamedTuple):
    """The rule's constants, and the floor of T (0, or −inf for a table without a constraint)."""

    beta1: float
    beta2: float
    eps: float
    floor: float


class History(NamedTuple):
    """What idle rows are owed since each step, as in optim/lazy.py; `fading` is beta1's powers, the first step's last."""

    drift: np.ndarray
    clock: np.ndarray
    fading: np.ndarray


class Dense(NamedTuple):
    """A small parameter with its moments."""

    x: np.ndarray
    m: np.ndarray
    v: np.ndarray


def row_length(K: int) -> int:
    """Numbers in a row of K weights."""
    return -(-(WEIGHTS + 3 * K) // ALIGN) * ALIGN


def integers(rows: np.ndarray) -> np.ndarray:
    """The same memory seen as integers of the same width: for LAST, STAMP and SLOT."""
    return rows.view(np.int32 if rows.dtype == np.float32 else np.int64)


@njit(nogil=True, cache=True, fastmath=FAST, error_model="numpy")
def settle(row: Any, at: int, K: int, drift: float, owed: float, faded: float, eps: float, floor: float) -> None:
    """Bring K weights at row[at:] (x, then m, then v) up to date."""
    for k in range(K):
        x, m = row[at + k], row[at + K + k]
        x -= (m * drift + owed) / (np.sqrt(row[at + 2 * K + k]) + eps)
        row[at + k] = floor if x < floor else x
        row[at + K + k] = m * faded


@njit(nogil=True, cache=True, fastmath=FAST, error_model="numpy")
def update(
    row: Any, at: int, K: int, g: Any, step: float, take: float, gain: float, slow: float, eps: float, floor: float
) -> None:
    """One Yogi step and the prox for K weights that are up to date."""
    keep = row.dtype.type(1) - gain
    for k in range(K):
        square = g[k] * g[k]
        v = row[at + 2 * K + k]
        v += slow * (square if v < square else (-square if v > square else square - square))
        m = keep * row[at + K + k] + gain * g[k]
        x = row[at + k] - (step * m + take) / (np.sqrt(v) + eps)
        row[at + 2 * K + k] = v
        row[at + K + k] = m
        row[at + k] = floor if x < floor else x


@njit(nogil=True, cache=True, fastmath=FAST, error_model="numpy")
def update_dense(p: Dense, g: Any, step: float, gain: float, slow: float, eps: float) -> None:
    """One Yogi step for a whole small parameter."""
    keep = p.x.dtype.type(1) - gain
    for i in range(p.x.shape[0]):
        for j in range(p.x.shape[1]):
            square = g[i, j] * g[i, j]
            v = p.v[i, j]
            v += slow * (square if v < square else (-square if v > square else square - square))
            p.v[i, j] = v
            p.m[i, j] = keep * p.m[i, j] + gain * g[i, j]
            p.x[i, j] -= step * p.m[i, j] / (np.sqrt(v) + eps)


@njit(nogil=True, cache=True)
def group(ids: Any, ints: Any, stamp: int, unique: Any, place: Any, starts: Any, order: Any) -> int:
    """As kernels/groups.py, with the scratch inside the rows, which are needed anyway."""
    found = 0
    for p in range(ids.shape[0]):
        i = ids[p]
        if ints[i, STAMP] != stamp:
            ints[i, STAMP] = stamp
            ints[i, SLOT] = found
            unique[found] = i
            starts[found + 1] = 0
            found += 1
        s = ints[i, SLOT]
        place[p] = s
        starts[s + 1] += 1
    starts[0] = 0
    for u in range(found):
        starts[u + 1] += starts[u]
    cursor = starts[:found].copy()
    for p in range(ids.shape[0]):
        s = place[p]
        order[cursor[s]] = p
        cursor[s] += 1
    return found


@njit(nogil=True, cache=True, fastmath=FAST, error_model="numpy")
def flush(rows: Any, ints: Any, K: int, biased: bool, history: History, rule: Yogi, now: int, start: int, stop: int) -> None:
    """Bring rows [start, stop) up to step `now`, which becomes step 0."""
    number = rows.dtype.type
    for i in range(start, stop):
        back = ints[i, LAST]
        if back != now:
            drift, owed = number(history.drift[back]), number(history.clock[now] - history.clock[back])
            faded = number(rule.beta1 ** (now - back))
            settle(rows[i], WEIGHTS, K, drift, owed, faded, number(rule.eps), number(rule.floor))
            if biased:
                settle(rows[i], BIAS, 1, drift, number(0), faded, number(rule.eps), number(-np.inf))
        ints[i, LAST] = 0
        ints[i, STAMP] = 0


@lru_cache(maxsize=64)
def make_pass(Ku: int, Ki: int, anchored: bool, biased: bool, parallel: bool) -> Callable[..., int]:
    """The pass for these sizes, which become constants of the compiled code."""

    @njit(nogil=True, cache=True, fastmath=FAST, error_model="numpy", parallel=parallel)
    def run(
        users: Any,
        items: Any,
        ratings: Any,
        B: int,
        rows_u: Any,
        ints_u: Any,
        rows_i: Any,
        ints_i: Any,
        A_u: Dense,
        A_i: Dense,
        bias: Dense,
        history: History,
        rule: Yogi,
        steps: Any,
        takes: Any,
        now: int,
        parts: int,
        losses: Any,
    ) -> int:
        """Mini-batches of B over the ratings given, from step `now` on; losses[b] is batch b's mean loss. → the step after."""
        number = rows_u.dtype.type
        dtype = rows_u.dtype
        gain, slow = number(1 - rule.beta1), number(1 - rule.beta2)
        eps, floor, unbounded = number(rule.eps), number(rule.floor), number(-np.inf)
        unique_u, unique_i = np.empty(B, np.int64), np.empty(B, np.int64)
        place_u, place_i = np.empty(B, np.int32), np.empty(B, np.int32)
        starts_u, starts_i = np.empty(B + 1, np.int32), np.empty(B + 1, np.int32)
        order_u, order_i = np.empty(B, np.int32), np.empty(B, np.int32)
        T_u, T_i, Q = np.empty((B, Ku), dtype), np.empty((B, Ki), dtype), np.empty((B, Ku), dtype)
        b_u, b_i, err = np.zeros(B, dtype), np.zeros(B, dtype), np.empty(B, dtype)
        M, Mt, C = np.zeros((Ku, Ki), dtype), np.zeros((Ki, Ku), dtype), np.zeros((parts, Ku, Ki), dtype)
        g_bias = np.empty((1, 1), dtype)
        found = np.empty(2, np.int64)
        totals = np.zeros((parts, 2))
        for b in range(steps.shape[0]):
            first = b * B
            n = min(B, users.shape[0] - first)
            here_u, here_i, wanted = users[first : first + n], items[first : first + n], ratings[first : first + n]
            step, take = number(steps[b]), number(takes[b])
            if anchored:
                for j in range(Ku):
                    for k in range(Ki):
                        total = number(0)
                        for c in range(A_u.x.shape[1]):
                            total += A_u.x[j, c] * A_i.x[k, c]
                        M[j, k] = total
                        Mt[k, j] = total
            for side in prange(2):
                if side == 0:
                    found[0] = group(here_u, ints_u, now + 1, unique_u, place_u, starts_u, order_u)
                else:
                    found[1] = group(here_i, ints_i, now + 1, unique_i, place_i, starts_i, order_i)
            n_u, n_i = found[0], found[1]
            for part in prange(parts):
                for u in range(part * n_u // parts, (part + 1) * n_u // parts):
                    row, back = rows_u[unique_u[u]], ints_u[unique_u[u], LAST]
                    drift, owed = number(history.drift[back]), number(history.clock[now] - history.clock[back])
                    faded = number(rule.beta1 ** (now - back))
                    settle(row, WEIGHTS, Ku, drift, owed, faded, eps, floor)
                    for k in range(Ku):
                        T_u[u, k] = row[WEIGHTS + k]
                    if biased:
                        settle(row, BIAS, 1, drift, number(0), faded, eps, unbounded)
                        b_u[u] = row[BIAS]
                for u in range(part * n_i // parts, (part + 1) * n_i // parts):
                    row, back = rows_i[unique_i[u]], ints_i[unique_i[u], LAST]
                    drift, owed = number(history.drift[back]), number(history.clock[now] - history.clock[back])
                    faded = number(rule.beta1 ** (now - back))
                    settle(row, WEIGHTS, Ki, drift, owed, faded, eps, floor)
                    for k in range(Ki):
                        T_i[u, k] = row[WEIGHTS + k]
                    if biased:
                        settle(row, BIAS, 1, drift, number(0), faded, eps, unbounded)
                        b_i[u] = row[BIAS]
                    if anchored:
                        for j in range(Ku):
                            Q[u, j] = 0
                        for k in range(Ki):
                            t = T_i[u, k]
                            if t != 0:
                                for j in range(Ku):
                                    Q[u, j] += t * Mt[k, j]
            for part in prange(parts):
                loss, gradient = 0.0, 0.0
                for p in range(part * n // parts, (part + 1) * n // parts):
                    t, q = T_u[place_u[p]], Q[place_i[p]] if anchored else T_i[place_i[p]]
                    y = bias.x[0, 0] + b_u[place_u[p]] + b_i[place_i[p]] - wanted[p]
                    for k in range(Ku):
                        y += t[k] * q[k]
                    err[p] = y / n
                    loss += y * y
                    gradient += err[p]
                totals[part, 0], totals[part, 1] = loss, gradient
            for part in prange(parts):
                s_u, s_i = np.empty(Ki, dtype), np.empty(Ku, dtype)
                g_u, g_i, g_b = np.empty(Ku, dtype), np.empty(Ki, dtype), np.empty(1, dtype)
                c = C[part]
                for j in range(Ku):
                    for k in range(Ki):
                        c[j, k] = 0
                for u in range(part * n_u // parts, (part + 1) * n_u // parts):
                    i = unique_u[u]
                    g_b[0] = 0
                    for k in range(Ki):
                        s_u[k] = 0
                    for o in range(starts_u[u], starts_u[u + 1]):
                        e, t = err[order_u[o]], T_i[place_i[order_u[o]]]
                        g_b[0] += e
                        for k in range(Ki):
                            s_u[k] += e * t[k]
                    if anchored:
                        for j in range(Ku):
                            g_u[j] = 0
                        for k in range(Ki):
                            s = s_u[k]
                            if s != 0:
                                for j in range(Ku):
                                    g_u[j] += s * Mt[k, j]
                        for j in range(Ku):
                            t_j = T_u[u, j]
                            if t_j != 0:
                                for k in range(Ki):
                                    c[j, k] += t_j * s_u[k]
                        update(rows_u[i], WEIGHTS, Ku, g_u, step, take, gain, slow, eps, floor)
                    else:
                        update(rows_u[i], WEIGHTS, Ku, s_u, step, take, gain, slow, eps, floor)
                    if biased:
                        update(rows_u[i], BIAS, 1, g_b, step, number(0), gain, slow, eps, unbounded)
                    ints_u[i, LAST] = now + 1
                for u in range(part * n_i // parts, (part + 1) * n_i // parts):
                    i = unique_i[u]
                    g_b[0] = 0
                    for k in range(Ku):
                        s_i[k] = 0
                    for o in range(starts_i[u], starts_i[u + 1]):
                        e, t = err[order_i[o]], T_u[place_u[order_i[o]]]
                        g_b[0] += e
                        for k in range(Ku):
                            s_i[k] += e * t[k]
                    if anchored:
                        for k in range(Ki):
                            g_i[k] = 0
                        for j in range(Ku):
                            s = s_i[j]
                            if s != 0:
                                for k in range(Ki):
                                    g_i[k] += s * M[j, k]
                        update(rows_i[i], WEIGHTS, Ki, g_i, step, take, gain, slow, eps, floor)
                    else:
                        update(rows_i[i], WEIGHTS, Ki, s_i, step, take, gain, slow, eps, floor)
                    if biased:
                        update(rows_i[i], BIAS, 1, g_b, step, number(0), gain, slow, eps, unbounded)
                    ints_i[i, LAST] = now + 1
            loss, g_bias[0, 0] = 0.0, 0
            for part in range(parts):
                loss += totals[part, 0]
                g_bias[0, 0] += totals[part, 1]
            losses[b] = loss / (2 * n)
            update_dense(bias, g_bias, step, gain, slow, eps)
            if anchored:
                for part in range(1, parts):
                    C[0] += C[part]
                g_A_u, g_A_i = C[0] @ A_i.x, C[0].T.copy() @ A_u.x
                update_dense(A_u, g_A_u, step, gain, slow, eps)
                update_dense(A_i, g_A_i, step, gain, slow, eps)
            now += 1
            reach = min(history.fading.shape[0], now)
            for back in range(now - reach, now):
                history.drift[back] += steps[b] * history.fading[history.fading.shape[0] - (now - back)]
            history.drift[now] = 0.0
            history.clock[now] = history.clock[now - 1] + takes[b]
        return now

    return run
