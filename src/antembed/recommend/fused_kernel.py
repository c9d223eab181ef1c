"""Matrix factorization in one compiled pass: mini-batches of gather, T·A, loss, gradients, Yogi and lazy prox.

Rating ≈ t_u·M·t_i + biases with M = A_u·A_iᵀ (K_u × K_i), so that no vector of width d is read for a single rating. With err
the gradient of the loss by a prediction, and s_u = Σ err·t_i over a user's ratings of the batch:

    ∂/∂t_u = M·s_u,     ∂/∂t_i = Mᵀ·s_i,     ∂/∂A_u = C·A_i,  ∂/∂A_i = Cᵀ·A_u   with C = Σ_u t_u ⊗ s_u

Two workers own the users' and the items' rows. In a batch each copies its distinct rows, brought up to date, to where both can
see them; waits for the other; and then works out predictions, gradients and steps of its rows alone. The anchors, which both
need, each updates for itself, from the same numbers in the same order. So one barrier a batch is enough, and one thread that
does both workers' work in turn gives the same bytes. Shared memory is double, for even and odd batches: no worker waits to be
read.

A row holds all data of its object in one stretch of memory: x, m and v of its weights, each padded with zeros to full registers
(`padded`), so that no loop has a remainder; the step at which it is current (LAST; within a batch, its index there), and its
bias with the bias's m and v. These are in x's padding where they fit (`head_of`): a row of up to fifteen weights is three cache
lines. Loops over rows do one thing each: with all cases in one loop, the compiler has no registers left for what is used.
The tests compare it with the torch engine.
"""

from typing import Any, NamedTuple

import numpy as np

from antembed.native.compile import compile_kernel
from antembed.native.large_arrays import ask_for_huge_pages
from antembed.native.vector import (
    VECTOR,
    add_product,
    add_scaled,
    barrier,
    dot,
    elementwise,
    multiply,
    prefetch,
    prefetch_near,
    read,
    sqrt,
    where,
    write,
)

AHEAD = 12  # examples or rows between the prefetch of a row into the first cache and its use
TILE = 128  # rows whose gradients are computed together
LINE = 64  # bytes of a cache line
STRIDE = 16  # numbers of single precision in it; a constant: a loop whose step is none would divide
LAST, BIAS = 1, 3  # numbers of a row besides its weights: the step at which it is current, and x, m and v of a bias
# Columns of History.idle (deferred updates of idle weights and biases, and their decay), Workspace.due and History.steps.
DRIFT, CLOCK, SCALE, BIAS_DRIFT, BIAS_SCALE, IDLE = *range(5), 8
BY_SCALE, BY_DRIFT, BY_OWED, BY_FADE, DUE = range(5)
STEP, TAKE, KEEP, KEEP_BIAS, KEEP_ANCHORS, KEEP_MEAN = range(6)


class Rule(NamedTuple):
    """Yogi's constants, and the floor of T (0, or −inf for a table without a constraint)."""

    beta1: float
    beta2: float
    eps: float
    floor: float


class History(NamedTuple):
    """The effect of an epoch's steps on idle rows, computed beforehand from the schedules."""

    idle: np.ndarray  # (steps + 1, IDLE) float64: DRIFT, CLOCK, SCALE, BIAS_DRIFT, BIAS_SCALE by step
    steps: np.ndarray  # (steps, 6) float64: STEP, TAKE, KEEP, KEEP_BIAS, KEEP_ANCHORS, KEEP_MEAN
    fading: np.ndarray  # beta1⁰, beta1¹, …, down to double precision, then 0


class Table(NamedTuple):
    """The rows of users, or of items, and the memory that its worker shares, for even and odd batches."""

    rows: np.ndarray  # (V, row_length)
    ints: np.ndarray  # the same memory as integers
    width: int  # weights of a row, without the zeros
    head: int  # where in a row LAST is; the bias follows
    inside: np.ndarray  # (K,): 1 for a weight, 0 for padding
    free_starts: np.ndarray  # entries without a penalty, in CSR form; empty if there are none
    free_columns: np.ndarray
    slot_of: np.ndarray  # (2, B) int32: the index of each example's row among the distinct rows
    x: np.ndarray  # (2, B, K): the distinct rows, up to date
    bias: np.ndarray  # (2, B)


class Sums(NamedTuple):
    """What the anchors' steps need, for even and odd batches: from the worker of the table that has fewer rows."""

    of_items: bool
    C: np.ndarray  # (2, Ku, Ki)
    total: np.ndarray  # (2,): Σ err


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

    starts: np.ndarray  # (B + 1,) int64: where in memory the distinct rows begin
    back: np.ndarray  # (B + 1,) int64: the steps at which they were current
    due: np.ndarray  # (B, DUE): what their idle steps do to them
    q: np.ndarray  # (B, K of the other table): its rows times M
    s: np.ndarray  # (B, K of the other table): Σ err·t of the other table
    g: np.ndarray  # (TILE, K): gradients of a few rows
    bias: np.ndarray  # (B, 4): x, m, v, gradient


def padded(K: int) -> int:
    """K, rounded up to full registers."""
    return -(-K // VECTOR) * VECTOR


def head_of(K: int, biased: bool) -> int:
    """Where LAST is: at the end of x's padding if there is room for it and the bias, else behind the weights."""
    extra = LAST + BIAS * biased
    return padded(K) - extra if padded(K) - K >= extra else 3 * padded(K)


def row_length(K: int, biased: bool = False, itemsize: int = 4) -> int:
    """Numbers in a row of K weights: full cache lines, if that adds at most an eighth."""
    used = max(3 * padded(K), head_of(K, biased) + LAST + BIAS * biased)
    lines = -(-used * itemsize // LINE) * LINE // itemsize
    return lines if 8 * (lines - used) <= used else -(-used // VECTOR) * VECTOR


def make_rows(V: int, length: int, dtype: Any) -> np.ndarray:
    """Zeroed rows for V objects, aligned to a cache line."""
    raw = np.zeros(V * length + LINE // np.dtype(dtype).itemsize, dtype)
    ask_for_huge_pages(raw.ctypes.data, raw.nbytes)
    start = -raw.ctypes.data % LINE // raw.itemsize
    return raw[start : start + V * length].reshape(V, length)


def integers(rows: np.ndarray) -> np.ndarray:
    """The same memory seen as integers of the same width: for LAST."""
    return rows.view(np.int32 if rows.dtype == np.float32 else np.int64)


def caught_up(x: Any, m: Any, v: Any, inside: Any, scale: Any, drift: Any, owed: Any, eps: Any, floor: Any) -> tuple[Any, ...]:
    """Idle weights brought up to date, and zeros for what else is in the padding."""
    y = where(inside < 0.5, 0.0, x) * scale - (m * drift + owed) / (sqrt(v) + eps)
    return (where(y < floor, floor, y),)


def stepped(
    x: Any, m: Any, v: Any, g: Any,
    fade: Any, keep: Any, step: Any, take: Any, gain: Any, slow: Any, eps: Any, floor: Any,
) -> tuple[Any, ...]:  # fmt: skip
    """One Yogi step and the prox, for weights that are up to date; their momentum is not, it has to fade first."""
    square, m = g * g, m * fade
    change = slow * square
    v = where(v < square, v + change, where(square < v, v - change, v + (change - change)))
    m = m + gain * (g - m)
    y = x * keep - (step * m + take) / (sqrt(v) + eps)
    return where(y < floor, floor, y), m, v


catch_up = elementwise(caught_up)
take_step = elementwise(stepped)
scaled = elementwise(lambda x, a: (x * a,))
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
    return read(history.fading, min(gap, history.fading.shape[0] - 1))


@inlined
def prefetch_row(ids: Any, p: int, rows: Any, length: int) -> None:
    """Row ids[p] into the second cache, if there is one; all of it: each half later would take as long again."""
    if p < ids.shape[0]:
        i = np.int64(ids[p])
        for to in range(0, length, STRIDE):
            prefetch(rows, i * length + to)


@uncounted
def find_rows(ids: Any, table: Table, half: int, workspace: Workspace) -> int:
    """The distinct rows of `ids`; → how many.

    A row's LAST becomes −1 − its index among them until its step: which rows come twice cannot be predicted, so no branch asks.
    """
    ints, length, starts, back = table.ints.reshape(-1), table.rows.shape[1], workspace.starts, workspace.back
    slot_of, head, found = table.slot_of[half], table.head, 0
    for p in range(ids.shape[0]):
        if p + AHEAD < ids.shape[0]:
            prefetch_near(ints, np.int64(ids[p + AHEAD]) * length + head)
        at = np.int64(ids[p]) * length
        last = np.int64(read(ints, at + head))
        slot = found if last >= 0 else -1 - last
        write(ints, at + head, -1 - slot)
        starts[found], back[found] = at, last
        found += 1 if last >= 0 else 0
        slot_of[p] = slot
    return found


@inlined
def settle(back: int, history: History, now: int, due: Any, u: int) -> None:
    """What steps back … now do to an idle row: x·scale − (m·drift + owed)/D, m·fade."""
    idle, faded = history.idle, fade(history, now - back)
    then, here = back * IDLE, now * IDLE
    scale = read(idle, here + SCALE)
    write(due, u * DUE + BY_SCALE, scale / read(idle, then + SCALE))
    write(due, u * DUE + BY_DRIFT, scale * (read(idle, then + DRIFT) - faded * read(idle, here + DRIFT)))
    write(due, u * DUE + BY_OWED, scale * (read(idle, here + CLOCK) - read(idle, then + CLOCK)))
    write(due, u * DUE + BY_FADE, faded)


@uncounted
def catch_up_rows(
    found: int, biased: bool, table: Table, history: History, rule: Rule, now: int, workspace: Workspace, x: Any, x_at: int
) -> None:
    """x of the rows that were found, up to date at step `now`, to x[x_at …], and what is due to them. Rows stay as they are."""
    rows, K, length, inside = table.rows, table.x.shape[2], table.rows.shape[1], table.inside
    starts, due, back = workspace.starts, workspace.due.reshape(-1), workspace.back
    for u in range(found):
        settle(back[u], history, now, due, u)
    for u in range(found):
        if u + AHEAD < found:
            for to in range(0, length, STRIDE):
                prefetch_near(rows, starts[u + AHEAD] + to)
        at, by = starts[u], u * DUE
        numbers = (read(due, by + BY_SCALE), read(due, by + BY_DRIFT), read(due, by + BY_OWED), rule.eps, rule.floor)
        catch_up(K, (rows, rows, rows, inside), (at, at + K, at + 2 * K, 0), (x,), (x_at + u * K,), numbers)
    if table.free_starts.shape[0] > 0:
        catch_up_free(found, table, rule, workspace, x, x_at)
    if biased:
        catch_up_biases(found, table, history, rule, now, workspace)


@uncounted
def catch_up_free(found: int, table: Table, rule: Rule, workspace: Workspace, x: Any, x_at: int) -> None:
    """Entries without a penalty once more: they owe nothing."""
    rows, K, length = table.rows, table.x.shape[2], table.rows.shape[1]
    for u in range(found):
        i, due = workspace.starts[u] // length, workspace.due[u]
        for j in range(table.free_starts[i], table.free_starts[i + 1]):
            k = table.free_columns[j]
            y = rows[i, k] * due[BY_SCALE] - rows[i, k + K] * due[BY_DRIFT] / (np.sqrt(rows[i, k + 2 * K]) + rule.eps)
            x[x_at + u * K + k] = max(y, rule.floor)


@uncounted
def catch_up_biases(found: int, table: Table, history: History, rule: Rule, now: int, workspace: Workspace) -> None:
    """The biases of the rows that were found, with their moments."""
    rows, idle, bias, head = table.rows.reshape(-1), history.idle, workspace.bias, table.head
    scale = idle[now, BIAS_SCALE]
    for u in range(found):
        at, back = workspace.starts[u] + head + LAST, workspace.back[u]
        faded = fade(history, now - back)
        drift = scale * (idle[back, BIAS_DRIFT] - faded * idle[now, BIAS_DRIFT])
        m, v = rows[at + 1], rows[at + 2]
        bias[u, 0] = rows[at] * (scale / idle[back, BIAS_SCALE]) - m * drift / (np.sqrt(v) + rule.eps)
        bias[u, 1], bias[u, 2], bias[u, 3] = m * faded, v, 0


@uncounted
def gather(ids: Any, biased: bool, table: Table, history: History, rule: Rule, now: int, workspace: Workspace) -> int:
    """The distinct rows of `ids`, up to date at step `now`, to where both workers see them; → how many."""
    half = now % 2
    found = find_rows(ids, table, half, workspace)
    start = half * table.x.shape[1] * table.x.shape[2]
    catch_up_rows(found, biased, table, history, rule, now, workspace, table.x.reshape(-1), start)
    if biased:
        for u in range(found):
            table.bias[half, u] = workspace.bias[u, 0]
    return found


@uncounted
def predict(
    batches: Batches, first: int, n: int, mean: float, model: Model, found: int, own: Table, other: Table, half: int, M: Any,
    workspace: Workspace,
) -> Any:  # fmt: skip
    """Predict n examples from a worker's rows times M, add up s and the biases' gradients; → Σ err·y and Σ err.

    Rows are numbered in the order in which they come, so a tile of them is multiplied when the first of them does: what is used
    next is in the first cache.
    """
    K, K2, base, theirs = own.x.shape[2], other.x.shape[2], half * own.x.shape[1], half * other.x.shape[1]
    q, x, s, slots, others = workspace.q, other.x, workspace.s, own.slot_of[half], other.slot_of[half]
    number, weighted, ratings, anchored = own.rows.dtype.type, batches.weights.shape[0] > 0, batches.ratings, model.anchored
    share, loss, total, p = number(1 / n), 0.0, 0.0, 0
    for start in range(0, found, TILE):
        stop = min(start + TILE, found)
        if anchored:
            multiply(stop - start, own.width, own.x, (base + start) * K, K, 1, K2, K2, M, 0, q, start * K2)
        for j in range(start * K2, stop * K2):
            write(s, j, 0)
        while p < n:
            u, t = np.int64(read(slots, p)), np.int64(read(others, p))
            if u >= stop:
                break
            at = (theirs + t) * K2
            product = dot(K2, q, u * K2, x, at) if anchored else dot(K2, own.x, (base + u) * K2, x, at)
            y = mean + product - read(ratings, first + p)
            if model.biased:
                y += workspace.bias[u, 0] + other.bias[half, t]
            err = y * share
            if weighted:
                err *= batches.weights[first + p]
            if model.biased:
                workspace.bias[u, 3] += err
            add_scaled(K2, (x, s), (at, u * K2), (s,), (u * K2,), (err,))
            loss += err * y
            total += err
            p += 1
    return loss, total


@uncounted
def step_table(
    batches: Batches, first: int, n: int, mean: float, model: Model, is_users: bool, own: Table, other: Table, sums: Sums,
    history: History, rule: Rule, now: int, found: int, M: Any, Mt: Any, workspace: Workspace,
) -> float:  # fmt: skip
    """Predict a batch and update the rows of one table; → the batch's mean loss.

    Meanwhile the rows of the next batch come from memory.
    """
    half, K, K2 = now % 2, own.x.shape[2], other.x.shape[2]
    base, s, steps = half * own.x.shape[1] * K, workspace.s.reshape(-1), history.steps[now]
    loss, total = predict(batches, first, n, mean, model, found, own, other, half, M, workspace)
    summing, size = is_users != sums.of_items, sums.C.shape[1] * sums.C.shape[2]
    C, C_at = sums.C.reshape(-1), half * size
    if summing:
        sums.total[half] = total
        for j in range(C_at, C_at + size):
            C[j] = 0
    coming = (batches.users if is_users else batches.items)[first + n : first + n + n]
    g = workspace.g.reshape(-1) if model.anchored else s
    for u in range(0, found, TILE):
        some = min(TILE, found - u)
        if model.anchored:
            multiply(some, other.width, s, u * K2, K2, 1, K, K, Mt, 0, g, 0)
        if model.anchored and summing and is_users:
            add_product(own.width, some, own.x, base + u * K, 1, K, K2, K2, s, u * K2, C, C_at)
        elif model.anchored and summing:
            add_product(other.width, some, s, u * K2, 1, K2, K, K, own.x, base + u * K, C, C_at)
        g_at = 0 if model.anchored else u * K
        step_rows(u, some, found, own, base, g, g_at, steps, rule, now, coming, workspace)
    for u in range(found, coming.shape[0]):
        prefetch_row(coming, u, own.rows, own.rows.shape[1])
    if own.free_starts.shape[0] > 0:
        step_free(found, own, base, steps, rule, workspace)
    if model.biased:
        step_biases(found, own, steps, rule, workspace)
    return loss / 2


@uncounted
def step_rows(
    first: int, n: int, found: int, own: Table, base: int, g: Any, g_at: int, steps: Any, rule: Rule, now: int, coming: Any,
    workspace: Workspace,
) -> None:  # fmt: skip
    """Steps of n of the rows that were found, from `first` on, with gradients g[g_at …]."""
    rows, ints, x, K, length, head = own.rows, own.ints, own.x, own.x.shape[2], own.rows.shape[1], own.head
    starts, due = workspace.starts, workspace.due.reshape(-1)
    keep, step, take, gain, slow = steps[KEEP], steps[STEP], steps[TAKE], 1 - rule.beta1, 1 - rule.beta2
    for j in range(n):
        u = first + j
        if u + AHEAD < found:
            for to in range(0, length, STRIDE):
                prefetch_near(rows, starts[u + AHEAD] + to)
        prefetch_row(coming, u, rows, length)
        at = starts[u]
        numbers = (read(due, u * DUE + BY_FADE), keep, step, take, gain, slow, rule.eps, rule.floor)
        froms, tos = (base + u * K, at + K, at + 2 * K, g_at + j * K), (at, at + K, at + 2 * K)
        take_step(K, (x, rows, rows, g), froms, (rows, rows, rows), tos, numbers)
        write(ints, at + head, now + 1)


@uncounted
def step_free(found: int, own: Table, base: int, steps: Any, rule: Rule, workspace: Workspace) -> None:
    """Entries without a penalty once more, after the steps of their rows."""
    rows, x, K, length = own.rows, own.x.reshape(-1), own.x.shape[2], own.rows.shape[1]
    for u in range(found):
        i = workspace.starts[u] // length
        for j in range(own.free_starts[i], own.free_starts[i + 1]):
            k = own.free_columns[j]
            moved = steps[STEP] * rows[i, K + k] / (np.sqrt(rows[i, 2 * K + k]) + rule.eps)
            rows[i, k] = max(x[base + u * K + k] * steps[KEEP] - moved, rule.floor)


@uncounted
def step_biases(found: int, own: Table, steps: Any, rule: Rule, workspace: Workspace) -> None:
    """Yogi for the biases of the rows that were found, after the steps of the rows."""
    rows, head, number = own.rows.reshape(-1), own.head, own.rows.dtype.type
    gain, slow, step, keep, eps = 1 - rule.beta1, 1 - rule.beta2, steps[STEP], steps[KEEP_BIAS], rule.eps
    for u in range(found):
        x, m, v, slope = workspace.bias[u, 0], workspace.bias[u, 1], workspace.bias[u, 2], workspace.bias[u, 3]
        square = slope * slope
        change = number(slow) * square
        v += change if v < square else (-change if v > square else change - change)
        m += number(gain) * (slope - m)
        at = workspace.starts[u] + head + LAST
        rows[at] = x * number(keep) - number(step) * m / (np.sqrt(v) + number(eps))
        rows[at + 1] = m
        rows[at + 2] = v


@fast
def make_workspace(B: int, K: int, K2: int, like: Any) -> Workspace:
    """Allocate it for batches of B examples."""
    starts, back = np.empty(B + 1, np.int64), np.empty(B + 1, np.int64)
    rounded = -(-B // VECTOR) * VECTOR
    q, s, g = np.zeros((rounded, K2), like.dtype), np.zeros((rounded, K2), like.dtype), np.zeros((TILE, K), like.dtype)
    return Workspace(starts, back, np.empty((B, DUE), like.dtype), q, s, g, np.zeros((B, 4), like.dtype))


@fast
def step_dense(p: Any, g: Any, keep: float, step: float, rule: Rule) -> None:
    """One Yogi step for a small parameter p: (3, rows, columns)."""
    n = g.shape[0] * g.shape[1]
    numbers = (1.0, keep, step, 0.0, 1 - rule.beta1, 1 - rule.beta2, rule.eps, -np.inf)
    take_step(n, (p, p, p, g), (0, n, 2 * n, 0), (p, p, p), (0, n, 2 * n), numbers)


@fast
def step_anchors(A: Anchors, anchored: bool, sums: Sums, history: History, rule: Rule, now: int, M: Any, Mt: Any) -> None:
    """Update the shared parameters, from what the workers have added up."""
    half, steps = now % 2, history.steps[now]
    Ku, Ki, d = sums.C.shape[1], sums.C.shape[2], A.users.shape[2]
    slope = np.zeros((1, VECTOR), A.bias.dtype)
    slope[0, 0] = sums.total[half]
    step_dense(A.bias, slope, steps[KEEP_MEAN], steps[STEP], rule)
    if not anchored:
        return
    C = sums.C[half]
    g_users, g_items = np.empty((Ku, d), M.dtype), np.empty((Ki, d), M.dtype)
    multiply(Ku, Ki, C, 0, Ki, 1, d, d, A.items, 0, g_users, 0)
    multiply(Ki, Ku, C, 0, 1, Ki, d, d, A.users, 0, g_items, 0)
    step_dense(A.users, g_users, steps[KEEP_ANCHORS], steps[STEP], rule)
    step_dense(A.items, g_items, steps[KEEP_ANCHORS], steps[STEP], rule)
    cross(A, M, Mt)


@fast
def cross(A: Anchors, M: Any, Mt: Any) -> None:
    """M = A_u·A_iᵀ and its transpose."""
    d, across = A.users.shape[2], np.empty((A.users.shape[2], M.shape[1]), M.dtype)
    for j in range(M.shape[1]):
        for k in range(d):
            across[k, j] = A.items[0, j, k]
    multiply(M.shape[0], d, A.users, 0, d, 1, M.shape[1], M.shape[1], across, 0, M, 0)
    for k in range(M.shape[0]):
        for j in range(M.shape[1]):
            Mt[j, k] = M[k, j]


@fast
def train_alone(
    batches: Batches, users: Table, items: Table, sums: Sums, A: Anchors, model: Model, history: History, rule: Rule,
    now: int, losses: Any,
) -> None:  # fmt: skip
    """Train on mini-batches from step `now` on, users and items in turn; losses[b] is batch b's mean loss."""
    B, K, K2 = batches.size, users.x.shape[2], items.x.shape[2]
    workspace_u, workspace_i = make_workspace(B, K, K2, users.x), make_workspace(B, K2, K, items.x)
    M, Mt = np.zeros((K, K2), users.x.dtype), np.zeros((K2, K), users.x.dtype)
    if model.anchored:
        cross(A, M, Mt)
    for b in range(losses.shape[0]):
        first = b * B
        stop = min(first + B, batches.users.shape[0])
        n, mean = stop - first, A.bias[0, 0, 0]
        found_u = gather(batches.users[first:stop], model.biased, users, history, rule, now, workspace_u)
        found_i = gather(batches.items[first:stop], model.biased, items, history, rule, now, workspace_i)
        losses[b] = step_table(
            batches, first, n, mean, model, True, users, items, sums, history, rule, now, found_u, M, Mt, workspace_u
        )
        step_table(batches, first, n, mean, model, False, items, users, sums, history, rule, now, found_i, Mt, M, workspace_i)
        step_anchors(A, model.anchored, sums, history, rule, now, M, Mt)
        now += 1


@fast
def train_table(
    is_users: bool, counter: Any, batches: Batches, users: Table, items: Table, sums: Sums, A: Anchors, model: Model,
    history: History, rule: Rule, now: int, losses: Any,
) -> None:  # fmt: skip
    """One worker's share of mini-batches from step `now` on; two of them wait for each other at `barrier_counter()`.

    A is its own copy.
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
        found = gather(ids[first:stop], model.biased, own, history, rule, now, workspace)
        if not barrier(counter, 2 * (b + 1)):
            return
        if b > 0:
            step_anchors(A, model.anchored, sums, history, rule, now - 1, M, Mt)
        n, mean = stop - first, A.bias[0, 0, 0]
        loss = step_table(
            batches, first, n, mean, model, is_users, own, other, sums, history, rule, now, found, forth, back, workspace
        )
        if is_users:
            losses[b] = loss
        now += 1
    if barrier(counter, 2 * (losses.shape[0] + 1)):
        step_anchors(A, model.anchored, sums, history, rule, now - 1, M, Mt)


@fast
def flush(table: Table, biased: bool, history: History, rule: Rule, now: int, anew: bool, start: int, stop: int) -> None:
    """Bring rows [start, stop) up to step `now`; `anew`: `now` becomes step 0 of a new history."""
    workspace = make_workspace(TILE, table.x.shape[2], VECTOR, table.x)
    for first in range(start, stop, TILE):
        flush_rows(table, biased, history, rule, now, anew, first, min(TILE, stop - first), workspace)


@uncounted
def flush_rows(
    table: Table, biased: bool, history: History, rule: Rule, now: int, anew: bool, first: int, n: int, workspace: Workspace
) -> None:
    """As `flush` says, n ≤ TILE rows."""
    rows, K, length, x, due = table.rows, table.x.shape[2], table.rows.shape[1], workspace.g.reshape(-1), workspace.due
    for u in range(n):
        workspace.starts[u], workspace.back[u] = (first + u) * length, table.ints[first + u, table.head]
    catch_up_rows(n, biased, table, history, rule, now, workspace, x, 0)
    for u in range(n):
        at, i = workspace.starts[u], first + u
        scaled(K, (x,), (u * K,), (rows,), (at,), (1.0,))
        scaled(K, (rows,), (at + K,), (rows,), (at + K,), (due[u, BY_FADE],))
        table.ints[i, table.head] = 0 if anew else now
        if biased:
            for j in range(BIAS):
                rows[i, table.head + LAST + j] = workspace.bias[u, j]
