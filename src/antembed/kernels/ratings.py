"""Matrix factorization in one compiled pass: whole mini-batches of gather, T·A, loss, gradients, Yogi and lazy prox.

Rating ≈ t_u·M·t_i + biases with M = A_u·A_iᵀ (K_u × K_i), so that no vector of width d is read for a single rating. With err
the gradient of the loss by a prediction, and s_u = Σ err·t_i over a user's ratings of the batch:

    ∂/∂t_u = M·s_u,     ∂/∂t_i = Mᵀ·s_i,     ∂/∂A_u = C·A_i,  ∂/∂A_i = Cᵀ·A_u   with C = Σ_u t_u ⊗ s_u

Each worker owns a part of one side's rows (all users, say, or every fourth item). In a batch it copies the distinct rows that
it owns, brought up to date, to where all can see them; meets the others; and then works out predictions, gradients and steps of
its rows alone. What all need, the anchors, everybody updates for himself, from the same numbers in the same order. So one
barrier a batch is enough, results depend on the number of workers and never on their timing, and one thread that does both
sides' work in turn gives the same as two. Shared memory is double, for even and odd batches: nobody waits to be read.

A row holds all data of its object in one piece of memory: the step at which it is current, its index in the batch, its bias
with the bias's m and v, then x, m and v of its weights, each padded with zeros to full registers (`padded`): the zeros stay
zeros, and no loop has a remainder. The tests compare it with the torch engine.
"""

from typing import Any, NamedTuple

import numpy as np

from antembed.kernels.compiled import compile_kernel
from antembed.kernels.pages import ask_for_huge_pages
from antembed.kernels.vector import (
    VECTOR,
    add_product,
    add_scaled,
    barrier,
    dot,
    elementwise,
    multiply,
    prefetch,
    prefetch_near,
    sqrt,
    where,
)

LAST, STAMP, SLOT, BIAS, WEIGHTS = 0, 1, 2, 3, 8
AHEAD = 12  # examples or rows between the prefetch of a row into the first cache and its use
TILE = 64  # rows whose gradients are computed together
LINE = 16  # numbers of single precision in a cache line
# Columns of History.idle (deferred updates of idle weights and biases, and their decay) and of History.steps.
DRIFT, CLOCK, SCALE, BIAS_DRIFT, BIAS_SCALE = range(5)
STEP, TAKE, KEEP, KEEP_BIAS, KEEP_ANCHORS, KEEP_MEAN = range(6)


class Rule(NamedTuple):
    """Yogi's constants, and the floor of T (0, or −inf for a table without a constraint)."""

    beta1: float
    beta2: float
    eps: float
    floor: float


class History(NamedTuple):
    """The effect of an epoch's steps on idle rows, computed beforehand from the schedules."""

    idle: np.ndarray  # (steps + 1, 8) float64: DRIFT, CLOCK, SCALE, BIAS_DRIFT, BIAS_SCALE by step
    steps: np.ndarray  # (steps, 6) float64: STEP, TAKE, KEEP, KEEP_BIAS, KEEP_ANCHORS, KEEP_MEAN
    fading: np.ndarray  # beta1⁰, beta1¹, …, down to double precision


class Side(NamedTuple):
    """One side's rows, and the shared memory of its workers, for even and odd batches."""

    rows: np.ndarray  # (V, row_length)
    ints: np.ndarray  # the same memory as integers
    width: int  # weights of a row, without the zeros
    free_starts: np.ndarray  # entries without a penalty, in CSR form; empty if there are none
    free_columns: np.ndarray
    slot_of: np.ndarray  # (2, B) int32: the index of each example's row among the distinct rows
    x: np.ndarray  # (2, parts·B, K): the distinct rows, up to date
    bias: np.ndarray  # (2, parts·B)
    C: np.ndarray  # (2, parts, Ku, Ki): each worker's part of C; used by the users' workers only
    total: np.ndarray  # (2, parts): each worker's Σ err; the same


class Model(NamedTuple):
    """The terms of a prediction."""

    anchored: bool  # t_u·M·t_i; else full tables: t_u·t_i
    biased: bool  # users' and items' biases


class Anchors(NamedTuple):
    """x, m and v of the small shared parameters, padded: A_u, A_i and the global bias."""

    users: np.ndarray  # (3, Ku, d)
    items: np.ndarray  # (3, Ki, d)
    bias: np.ndarray  # (3, 1, VECTOR)


class Batches(NamedTuple):
    """Examples in the order of their use; weights are empty if all are 1."""

    users: np.ndarray
    items: np.ndarray
    ratings: np.ndarray
    weights: np.ndarray
    size: int


class Workspace(NamedTuple):
    """A worker's private memory."""

    mine: np.ndarray  # (B,) int32: the examples whose rows it owns
    ids: np.ndarray  # (B + 1,) int64: the distinct rows
    slot: np.ndarray  # (B,) int32: for each of its examples, which of them
    q: np.ndarray  # (B, K of the other side): its rows times M
    s: np.ndarray  # (B, K of the other side): Σ err·t of the other side
    g: np.ndarray  # (TILE, K): gradients of a few rows
    bias: np.ndarray  # (B, 4): x, m, v, gradient
    free_values: np.ndarray  # (K,): values of a row's free entries


def padded(K: int) -> int:
    """K, rounded up to whole registers."""
    return -(-K // VECTOR) * VECTOR


def row_length(K: int) -> int:
    """Numbers in a row of K weights."""
    return WEIGHTS + 3 * padded(K)


def make_rows(V: int, K: int, dtype: Any) -> np.ndarray:
    """Zeroed rows for V objects, aligned to a cache line."""
    shape = (V, row_length(K))
    raw = np.zeros(shape[0] * shape[1] + 64 // np.dtype(dtype).itemsize, dtype)
    ask_for_huge_pages(raw.ctypes.data, raw.nbytes)
    start = -raw.ctypes.data % 64 // raw.itemsize
    return raw[start : start + shape[0] * shape[1]].reshape(shape)


def integers(rows: np.ndarray) -> np.ndarray:
    """The same memory seen as integers of the same width: for LAST, STAMP and SLOT."""
    return rows.view(np.int32 if rows.dtype == np.float32 else np.int64)


def caught_up(x: Any, m: Any, v: Any, scale: Any, drift: Any, owed: Any, fade: Any, eps: Any, floor: Any) -> tuple[Any, ...]:
    """Idle weights and their momentum brought up to date (v does not change)."""
    y = x * scale - (m * drift + owed) / (sqrt(v) + eps)
    return where(y < floor, floor, y), m * fade


def stepped(
    x: Any, m: Any, v: Any, g: Any, keep: Any, step: Any, take: Any, gain: Any, slow: Any, eps: Any, floor: Any
) -> tuple[Any, ...]:
    """One Yogi step and the prox, for weights that are up to date."""
    square = g * g
    change = slow * square
    v = where(v < square, v + change, where(square < v, v - change, v + (change - change)))
    m = m + gain * (g - m)
    y = x * keep - (step * m + take) / (sqrt(v) + eps)
    return where(y < floor, floor, y), m, v


catch_up = elementwise(caught_up)
take_step = elementwise(stepped)
fast: Any = compile_kernel(nogil=True, error_model="numpy")
# Without reference counts: an atomic instruction for every array in a loop, and two workers fight for the counters' cache line.
uncounted: Any = compile_kernel(nogil=True, error_model="numpy", _nrt=False)
# For functions called for every row: passing the tuples would cost more than the work.
inlined: Any = compile_kernel(cache=False, inline="always", error_model="numpy")


@fast
def future_drift(steps: Any, beta1: float, drift: Any) -> None:
    """drift[t] = Σ_{j>t} a_j·beta1^{j−t} to the end of the epoch: the drift, in units of m/D, of a row that is idle from t on.

    Up to step `now` it is drift[t] − beta1^{now−t}·drift[now].
    """
    drift[steps.shape[0]] = 0.0
    for t in range(steps.shape[0] - 1, -1, -1):
        drift[t] = beta1 * (steps[t] + drift[t + 1])


@inlined
def fade(history: History, gap: int) -> float:
    """beta1^gap; 0 below double precision, since arithmetic with denormals is slow."""
    return history.fading[gap] if gap < history.fading.shape[0] else 0.0


@inlined
def catch_up_row(
    i: int, biased: bool, side: Side, history: History, rule: Rule, now: int,
    x: Any, x_at: int, bias: Any, bias_at: int, free_values: Any,
) -> None:  # fmt: skip
    """Row i up to date at step `now`: m in its place, x to where it is wanted, the bias to three numbers of `bias`."""
    rows, ints, idle, K, free = side.rows, side.ints, history.idle, side.x.shape[2], side.free_starts.shape[0] > 0
    at, back = i * rows.shape[1] + WEIGHTS, np.int64(ints[i, LAST])
    faded, scale_now = fade(history, now - back), idle[now, SCALE]
    scale, owed = scale_now / idle[back, SCALE], scale_now * (idle[now, CLOCK] - idle[back, CLOCK])
    drift = scale_now * (idle[back, DRIFT] - faded * idle[now, DRIFT])
    if free:
        for j in range(side.free_starts[i], side.free_starts[i + 1]):
            k = WEIGHTS + side.free_columns[j]
            y = rows[i, k] * scale - rows[i, k + K] * drift / (np.sqrt(rows[i, k + 2 * K]) + rule.eps)
            free_values[k - WEIGHTS] = max(y, rule.floor)
    numbers = (scale, drift, owed, faded, rule.eps, rule.floor)
    catch_up(K, (rows, rows, rows), (at, at + K, at + 2 * K), (x, rows), (x_at, at + K), numbers)
    if free:
        for j in range(side.free_starts[i], side.free_starts[i + 1]):
            x[x_at + side.free_columns[j]] = free_values[side.free_columns[j]]
    if biased:
        scale_now = idle[now, BIAS_SCALE]
        drift = scale_now * (idle[back, BIAS_DRIFT] - faded * idle[now, BIAS_DRIFT])
        m_b, v_b = rows[i, BIAS + 1], rows[i, BIAS + 2]
        bias[bias_at] = rows[i, BIAS] * (scale_now / idle[back, BIAS_SCALE]) - m_b * drift / (np.sqrt(v_b) + rule.eps)
        bias[bias_at + 1], bias[bias_at + 2] = m_b * faded, v_b


@uncounted
def gather(ids: Any, biased: bool, part: int, side: Side, history: History, rule: Rule, now: int, workspace: Workspace) -> Any:
    """Bring this part's distinct rows of `ids` up to step `now` and copy their x; → the numbers of its examples and rows.

    A row's x and bias stay as they were, until its step: only m is written.
    """
    ints, parts, K, B = side.ints, side.C.shape[1], side.x.shape[2], side.slot_of.shape[1]
    half, offset = now % 2, part * B
    start = (half * side.x.shape[1] + offset) * K
    x, bias, free_values = side.x.reshape(-1), workspace.bias.reshape(-1), workspace.free_values
    rows, length = side.rows, side.rows.shape[1]
    examples = found = 0
    for p in range(ids.shape[0]):  # without branches that depend on the ids: which rows come twice cannot be predicted
        i = np.int64(ids[p])
        if p + AHEAD < ids.shape[0]:
            prefetch_near(rows, np.int64(ids[p + AHEAD]) * length)
        if parts > 1 and i % parts != part:
            continue
        new = ints[i, STAMP] != now + 1
        slot = found if new else np.int64(ints[i, SLOT])
        ints[i, STAMP], ints[i, SLOT] = now + 1, slot
        workspace.ids[found] = i
        found += 1 if new else 0
        workspace.mine[examples] = p
        workspace.slot[examples] = slot
        side.slot_of[half, p] = offset + slot
        examples += 1
    for u in range(found):
        if u + AHEAD < found:
            for line in range(0, length, LINE):
                prefetch_near(rows, workspace.ids[u + AHEAD] * length + line)
        i = workspace.ids[u]
        catch_up_row(i, biased, side, history, rule, now, x, start + u * K, bias, u * 4, free_values)
        if biased:
            bias[u * 4 + 3] = 0
            side.bias[half, offset + u] = bias[u * 4]
    return examples, found


@uncounted
def step_part(
    batches: Batches, first: int, n: int, mean: float, model: Model, is_users: bool, part: int, own: Side,
    other: Side, history: History, rule: Rule, now: int, examples: int, found: int, M: Any, Mt: Any, workspace: Workspace,
) -> float:  # fmt: skip
    """Predict a part's examples and update its rows; → the contribution of its examples to the batch's mean loss.

    Meanwhile the rows of the next batch come from memory.
    """
    half, anchored, biased = now % 2, model.anchored, model.biased
    rows, parts, K, K2, B = own.rows, own.C.shape[1], own.x.shape[2], other.x.shape[2], own.slot_of.shape[1]
    number = rows.dtype.type
    base, length = (half * own.x.shape[1] + part * B) * K, rows.shape[1]
    theirs = half * other.x.shape[1]
    s, s_flat = workspace.s, workspace.s.reshape(-1)
    for u in range(found * K2):
        s_flat[u] = 0
    q, q_base = workspace.q.reshape(-1), 0
    if anchored:
        multiply(found, own.width, own.x, base, K, 1, K2, M, 0, workspace.q, 0)
    else:
        q, q_base = own.x.reshape(-1), base
    loss, total, share = 0.0, 0.0, 1 / n
    weighted = batches.weights.shape[0] > 0
    for e in range(examples):
        p, u = workspace.mine[e], workspace.slot[e]
        t = np.int64(other.slot_of[half, p])
        at = (theirs + t) * K2
        y = mean + dot(K2, q, q_base + u * K2, other.x, at) - batches.ratings[first + p]
        if biased:
            y += workspace.bias[u, 0] + other.bias[half, t]
        err = y * share
        if weighted:
            err *= batches.weights[first + p]
        add_scaled(K2, (other.x, s), (at, u * K2), (s,), (u * K2,), (err,))
        if biased:
            workspace.bias[u, 3] += err
        loss += err * y
        total += err
    C, C_at = own.C.reshape(-1), (half * parts + part) * K * K2
    if is_users:
        for j in range(C_at, C_at + K * K2):
            C[j] = 0
    own.total[half, part] = total
    steps = history.steps[now]
    step, gain, slow, eps, floor = steps[STEP], 1 - rule.beta1, 1 - rule.beta2, rule.eps, rule.floor
    g = workspace.g.reshape(-1) if anchored else s_flat
    ids, coming = (batches.users if is_users else batches.items), first + n
    for u in range(found):
        if u + AHEAD < found:
            for line in range(0, length, LINE):
                prefetch_near(rows, workspace.ids[u + AHEAD] * length + line)
        if coming + u < ids.shape[0]:
            later = np.int64(ids[coming + u])
            if parts == 1 or later % parts == part:
                for line in range(0, length, LINE):
                    prefetch(rows, later * length + line)
        i = workspace.ids[u]
        at = i * length + WEIGHTS
        if anchored and u % TILE == 0:
            some = min(TILE, found - u)
            multiply(some, other.width, s, u * K2, K2, 1, K, Mt, 0, workspace.g, 0)
            if is_users:
                add_product(own.width, some, own.x, base + u * K, 1, K, K2, s, u * K2, C, C_at)
        g_at = u % TILE * K if anchored else u * K
        numbers = (steps[KEEP], step, steps[TAKE], gain, slow, eps, floor)
        tos = (at, at + K, at + 2 * K)
        take_step(K, (own.x, rows, rows, g), (base + u * K, at + K, at + 2 * K, g_at), (rows, rows, rows), tos, numbers)
        if own.free_starts.shape[0] > 0:
            for j in range(own.free_starts[i], own.free_starts[i + 1]):
                k = own.free_columns[j]
                y = own.x[half, part * B + u, k] * steps[KEEP] - step * rows[i, WEIGHTS + K + k] / (
                    np.sqrt(rows[i, WEIGHTS + 2 * K + k]) + eps
                )
                rows[i, WEIGHTS + k] = max(y, floor)
        if biased:
            x, m, v, slope = workspace.bias[u, 0], workspace.bias[u, 1], workspace.bias[u, 2], workspace.bias[u, 3]
            square = slope * slope
            change = number(slow) * square
            v += change if v < square else (-change if v > square else change - change)
            m += number(gain) * (slope - m)
            rows[i, BIAS] = x * number(steps[KEEP_BIAS]) - number(step) * m / (np.sqrt(v) + number(eps))
            rows[i, BIAS + 1] = m
            rows[i, BIAS + 2] = v
        own.ints[i, LAST] = now + 1
    return loss / 2


@fast
def make_workspace(B: int, K: int, K2: int, like: Any) -> Workspace:
    """Allocate it for batches of B examples."""
    mine, ids, slot = np.empty(B, np.int32), np.empty(B + 1, np.int64), np.empty(B, np.int32)
    whole = -(-B // VECTOR) * VECTOR
    q, s, g = np.zeros((whole, K2), like.dtype), np.zeros((whole, K2), like.dtype), np.zeros((TILE, K), like.dtype)
    return Workspace(mine, ids, slot, q, s, g, np.zeros((B, 4), like.dtype), np.empty(K, like.dtype))


@fast
def step_dense(p: Any, g: Any, keep: float, step: float, rule: Rule) -> None:
    """One Yogi step for a small parameter p: (3, rows, columns)."""
    n = g.shape[0] * g.shape[1]
    numbers = (keep, step, 0.0, 1 - rule.beta1, 1 - rule.beta2, rule.eps, -np.inf)
    take_step(n, (p, p, p, g), (0, n, 2 * n, 0), (p, p, p), (0, n, 2 * n), numbers)


@fast
def step_anchors(A: Anchors, anchored: bool, users: Side, history: History, rule: Rule, now: int, M: Any, Mt: Any) -> None:
    """Update the shared parameters, from the sums left by the users' workers."""
    half, steps = now % 2, history.steps[now]
    parts, Ku, Ki, d = users.C.shape[1], users.C.shape[2], users.C.shape[3], A.users.shape[2]
    slope = np.zeros((1, VECTOR), A.bias.dtype)
    for part in range(parts):
        slope[0, 0] += users.total[half, part]
    step_dense(A.bias, slope, steps[KEEP_MEAN], steps[STEP], rule)
    if not anchored:
        return
    C = users.C[half, 0].copy()
    for part in range(1, parts):
        C += users.C[half, part]
    g_users, g_items = np.empty((Ku, d), M.dtype), np.empty((Ki, d), M.dtype)
    multiply(Ku, Ki, C, 0, Ki, 1, d, A.items, 0, g_users, 0)
    multiply(Ki, Ku, C, 0, 1, Ki, d, A.users, 0, g_items, 0)
    step_dense(A.users, g_users, steps[KEEP_ANCHORS], steps[STEP], rule)
    step_dense(A.items, g_items, steps[KEEP_ANCHORS], steps[STEP], rule)
    cross(A, M, Mt)


@fast
def cross(A: Anchors, M: Any, Mt: Any) -> None:
    """M = A_u·A_iᵀ and its transpose."""
    d = A.users.shape[2]
    for k in range(M.shape[0]):
        for j in range(M.shape[1]):
            M[k, j] = Mt[j, k] = dot(d, A.users, k * d, A.items, j * d)


@fast
def train_alone(
    batches: Batches, users: Side, items: Side, A: Anchors, model: Model, history: History, rule: Rule,
    now: int, losses: Any,
) -> None:  # fmt: skip
    """Train on mini-batches from step `now` on, both sides in turn; losses[b, 0] is batch b's mean loss."""
    B, K, K2 = batches.size, users.x.shape[2], items.x.shape[2]
    workspace_u, workspace_i = make_workspace(B, K, K2, users.x), make_workspace(B, K2, K, items.x)
    M, Mt = np.zeros((K, K2), users.x.dtype), np.zeros((K2, K), users.x.dtype)
    if model.anchored:
        cross(A, M, Mt)
    for b in range(losses.shape[0]):
        first = b * B
        stop = min(first + B, batches.users.shape[0])
        n, mean = stop - first, A.bias[0, 0, 0]
        mine_u, found_u = gather(batches.users[first:stop], model.biased, 0, users, history, rule, now, workspace_u)
        mine_i, found_i = gather(batches.items[first:stop], model.biased, 0, items, history, rule, now, workspace_i)
        losses[b, 0] = step_part(
            batches, first, n, mean, model, True, 0, users,
            items, history, rule, now, mine_u, found_u, M, Mt, workspace_u,
        )  # fmt: skip
        step_part(
            batches, first, n, mean, model, False, 0, items,
            users, history, rule, now, mine_i, found_i, Mt, M, workspace_i,
        )  # fmt: skip
        step_anchors(A, model.anchored, users, history, rule, now, M, Mt)
        now += 1


@fast
def train_part(
    is_users: bool, part: int, workers: int, counter: Any, batches: Batches, users: Side, items: Side, A: Anchors, model: Model,
    history: History, rule: Rule, now: int, losses: Any,
) -> None:  # fmt: skip
    """One worker's share of mini-batches from step `now` on; `workers` of them wait for each other at `barrier_counter()`.

    A is its own copy; counter[SLEPT] says how often a worker had to sleep.
    """
    own, other, ids = (users, items, batches.users) if is_users else (items, users, batches.items)
    B, K, K2 = batches.size, users.x.shape[2], items.x.shape[2]
    workspace = make_workspace(B, own.x.shape[2], other.x.shape[2], own.x)
    M, Mt = np.zeros((K, K2), users.x.dtype), np.zeros((K2, K), users.x.dtype)
    if model.anchored:
        cross(A, M, Mt)
    forth, back = (M, Mt) if is_users else (Mt, M)
    for b in range(losses.shape[0]):
        first = b * B
        stop = min(first + B, ids.shape[0])
        mine, found = gather(ids[first:stop], model.biased, part, own, history, rule, now, workspace)
        if not barrier(counter, workers * (b + 1)):
            return
        if b > 0:
            step_anchors(A, model.anchored, users, history, rule, now - 1, M, Mt)
        loss = step_part(
            batches, first, stop - first, A.bias[0, 0, 0], model, is_users, part, own,
            other, history, rule, now, mine, found, forth, back, workspace,
        )  # fmt: skip
        if is_users:
            losses[b, part] = loss
        now += 1
    if barrier(counter, workers * (losses.shape[0] + 1)):
        step_anchors(A, model.anchored, users, history, rule, now - 1, M, Mt)


@fast
def flush(side: Side, biased: bool, history: History, rule: Rule, now: int, anew: bool, start: int, stop: int) -> None:
    """Bring rows [start, stop) up to step `now`; `anew`: `now` becomes step 0 of a new history."""
    flush_rows(side, biased, history, rule, now, anew, start, stop, np.empty(side.x.shape[2], side.rows.dtype))


@uncounted
def flush_rows(
    side: Side, biased: bool, history: History, rule: Rule, now: int, anew: bool, start: int, stop: int, free_values: Any
) -> None:
    """As `flush` says."""
    rows, length = side.rows.reshape(-1), side.rows.shape[1]
    for i in range(start, stop):
        at = i * length
        catch_up_row(i, biased, side, history, rule, now, rows, at + WEIGHTS, rows, at + BIAS, free_values)
        side.ints[i, LAST] = 0 if anew else now
        side.ints[i, STAMP] = 0


@fast
def touch(ids: Any, rows: Any) -> None:
    """Read and write a number in every cache line of these rows: the memory traffic of a pass, for the benchmark."""
    for p in range(ids.shape[0]):
        row = rows[ids[p]]
        for line in range(0, row.shape[0], LINE):
            row[line] += row.dtype.type(1)
