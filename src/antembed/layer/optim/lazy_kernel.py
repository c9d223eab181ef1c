"""Compiled steps on exactly lazy rows, and the grouping of equal ids of a batch, so that each row is read and stepped once.

A row last current at step `last` is brought up to date in closed form: its momentum has moved it by m·drift[last]/D, and the
prox shrinks it by (clock[now] − clock[last])/D, where D = √v + eps has not changed in between; with weight decay all three are
scaled (layer/optim/lazy.py has the derivation).
"""

from typing import Any, NamedTuple

import numpy as np

from antembed.native.compile import compile_kernel
from antembed.native.vector import prefetch

AHEAD = 4  # rows: they are fetched so far before they are needed
LINE = 16  # numbers in a cache line, of single precision

compiled = compile_kernel(nogil=True, error_model="numpy")


class Groups(NamedTuple):
    """group[p] is the index of id p in `unique`; order[starts[u]:starts[u+1]] are the positions of unique[u]."""

    unique: np.ndarray
    group: np.ndarray
    starts: np.ndarray
    order: np.ndarray


class Rows(NamedTuple):
    """The table and the state of its rows. `momentum` and `second` have no rows if the rule does not use them."""

    weight: np.ndarray  # (V, K)
    momentum: np.ndarray  # (V, K) or (0, K)
    second: np.ndarray  # (V, K) or (0, K): Yogi's v
    last: np.ndarray  # (V,) int32: the step at which a row is current
    drift: np.ndarray  # (steps,) float64: Σ_j a_{L+j}·decay^j from step L to now
    clock: np.ndarray  # (steps,) float64: the total amount of the prox up to step L
    scale: np.ndarray  # (steps,) float64: the product of the weight decay factors up to step L
    free_starts: np.ndarray  # (V + 1,) int64, or empty: the entries without a penalty, in CSR form
    free_columns: np.ndarray


class Rule(NamedTuple):
    """How a gradient changes momentum and v: m ← decay·m + gain·g; Yogi's v with beta2; D = √v + eps."""

    decay: float
    gain: float
    beta2: float
    eps: float
    unscaled: bool  # the prox's amount is not divided by D (the plain metric)
    floor: float  # 0 with a non-negative prox, −inf without


class Step(NamedTuple):
    """The numbers of one step: x ← prox(keep·x − size·m/D), where the prox shrinks by `shrink` (λ·a_t, or λ·lr in the plain
    metric)."""

    keep: float  # 1 − lr·weight_decay
    size: float  # a_t
    shrink: float


def group(ids: np.ndarray, slot: np.ndarray) -> Groups:
    """Group equal ids. `slot` (V,) int32 is scratch, −1 everywhere before and after."""
    n = len(ids)
    unique, index = np.empty(n, np.int64), np.empty(n, np.int32)
    starts, order = np.empty(n + 1, np.int32), np.empty(n, np.int32)
    found = group_ids(ids, slot, unique, index, starts, order)
    return Groups(unique[:found], index, starts, order)


@compiled
def group_ids(ids: Any, slot: Any, unique: Any, group: Any, starts: Any, order: Any) -> int:
    """Fill the fields of Groups; → how many ids are unique. They are listed in the order of their first occurrence."""
    found = 0
    n = ids.shape[0]
    for position in range(n):
        s = slot[ids[position]]
        if s < 0:
            s = found
            slot[ids[position]] = s
            unique[s] = ids[position]
            starts[s + 1] = 0
            found += 1
        starts[s + 1] += 1
        group[position] = s
    starts[0] = 0
    for u in range(found):
        slot[unique[u]] = -1
        starts[u + 1] += starts[u]
    cursor = starts[:found].copy()
    for position in range(n):
        s = group[position]
        order[cursor[s]] = position
        cursor[s] += 1
    return found


@compiled
def _mark_free(rows: Rows, i: int, penalized: Any, mark: float) -> None:
    if rows.free_starts.shape[0] > 0:
        for j in range(rows.free_starts[i], rows.free_starts[i + 1]):
            penalized[rows.free_columns[j]] = mark


@compiled
def _fetch(rows: Rows, i: int) -> None:
    """Have row i and its state brought into the cache: rows are in no order, so the processor does not foresee them."""
    K = rows.weight.shape[1]
    for at in range(i * K, i * K + K, LINE):
        prefetch(rows.weight, at)
        if rows.momentum.shape[0] > 0:
            prefetch(rows.momentum, at)
        if rows.second.shape[0] > 0:
            prefetch(rows.second, at)


@compiled
def read_rows(start: int, stop: int, ids: Any, out: Any, rows: Rows, rule: Rule, now: int) -> None:
    """out[p] = row ids[p] up to date at step `now`; the table itself is not changed."""
    K = rows.weight.shape[1]
    number = rows.weight.dtype.type
    penalized = np.ones(K, rows.weight.dtype)
    eps, floor, one = number(rule.eps), number(rule.floor), number(1)
    for p in range(start, stop):
        if p + AHEAD < stop:
            _fetch(rows, ids[p + AHEAD])
        i = ids[p]
        x, y = rows.weight[i], out[p]
        back = rows.last[i]
        if back == now:
            for k in range(K):
                y[k] = x[k]
            continue
        scale = rows.scale[now]
        kept, drift = number(scale / rows.scale[back]), number(scale * rows.drift[back])
        owed = number(scale * (rows.clock[now] - rows.clock[back]))
        _mark_free(rows, i, penalized, number(0))
        if rows.second.shape[0] > 0:
            m, v = rows.momentum[i], rows.second[i]
            for k in range(K):
                inverse = one / (np.sqrt(v[k]) + eps)
                metric = one if rule.unscaled else inverse
                z = x[k] * kept - (m[k] * drift * inverse + owed * penalized[k] * metric)
                y[k] = floor if z < floor else z
        elif rows.momentum.shape[0] > 0:
            m = rows.momentum[i]
            for k in range(K):
                z = x[k] * kept - (m[k] * drift + owed * penalized[k])
                y[k] = floor if z < floor else z
        else:
            for k in range(K):
                z = x[k] * kept - owed * penalized[k]
                y[k] = floor if z < floor else z
        _mark_free(rows, i, penalized, number(1))


@compiled
def flush_rows(start: int, stop: int, rows: Rows, rule: Rule, now: int) -> None:
    """Bring rows [start, stop) of the table, and their momentum, up to step `now`."""
    K = rows.weight.shape[1]
    number = rows.weight.dtype.type
    one_id = np.empty(1, np.int64)
    current = np.empty((1, K), rows.weight.dtype)
    for i in range(start, stop):
        back = rows.last[i]
        if back == now:
            continue
        one_id[0] = i
        read_rows(0, 1, one_id, current, rows, rule, now)
        x = rows.weight[i]
        for k in range(K):
            x[k] = current[0, k]
        if rows.momentum.shape[0] > 0:
            faded = number(rule.decay ** (now - back))
            m = rows.momentum[i]
            for k in range(K):
                m[k] *= faded
        rows.last[i] = now


@compiled
def step_rows(
    start: int, stop: int, unique: Any, starts: Any, order: Any, gradient: Any, rows: Rows, rule: Rule, now: int, step: Step
) -> None:
    """Step now + 1 for the rows unique[start:stop]: catch up, sum their gradients, update, prox.

    The catching up stands here again, fused with the update: as a function of both it made steps five times slower.
    """
    K = rows.weight.shape[1]
    number = rows.weight.dtype.type
    penalized = np.ones(K, rows.weight.dtype)
    g = np.empty(K, rows.weight.dtype)
    eps, floor, one = number(rule.eps), number(rule.floor), number(1)
    gain, slow = number(rule.gain), number(1 - rule.beta2)
    left, a, taken = number(step.keep), number(step.size), number(step.shrink)
    for u in range(start, stop):
        if u + AHEAD < stop:
            _fetch(rows, unique[u + AHEAD])
        i = unique[u]
        first = gradient[order[starts[u]]]
        for k in range(K):
            g[k] = first[k]
        for j in range(starts[u] + 1, starts[u + 1]):
            more = gradient[order[j]]
            for k in range(K):
                g[k] += more[k]
        back = rows.last[i]
        scale = rows.scale[now]
        kept, drift = number(scale / rows.scale[back]), number(scale * rows.drift[back])
        owed = number(scale * (rows.clock[now] - rows.clock[back]))
        faded = number(rule.decay ** (now + 1 - back))
        x = rows.weight[i]
        _mark_free(rows, i, penalized, number(0))
        if rows.second.shape[0] > 0:
            m, v = rows.momentum[i], rows.second[i]
            for k in range(K):
                inverse = one / (np.sqrt(v[k]) + eps)
                metric = one if rule.unscaled else inverse
                z = x[k] * kept - (m[k] * drift * inverse + owed * penalized[k] * metric)
                z = floor if z < floor else z
                square = g[k] * g[k]
                gap = v[k] - square
                # Yogi: v − (1−β2)·sign(v − g²)·g²
                v[k] += slow * (square if gap < 0 else (-square if gap > 0 else number(0)))
                m[k] = faded * m[k] + gain * g[k]
                inverse = one / (np.sqrt(v[k]) + eps)
                metric = one if rule.unscaled else inverse
                z = z * left - (a * m[k] * inverse + taken * penalized[k] * metric)
                x[k] = floor if z < floor else z
        elif rows.momentum.shape[0] > 0:
            m = rows.momentum[i]
            for k in range(K):
                z = x[k] * kept - (m[k] * drift + owed * penalized[k])
                z = floor if z < floor else z
                m[k] = faded * m[k] + gain * g[k]
                z = z * left - (a * m[k] + taken * penalized[k])
                x[k] = floor if z < floor else z
        else:
            for k in range(K):
                z = x[k] * kept - owed * penalized[k]
                z = floor if z < floor else z
                z = z * left - (a * gain * g[k] + taken * penalized[k])
                x[k] = floor if z < floor else z
        _mark_free(rows, i, penalized, number(1))
        rows.last[i] = now + 1
