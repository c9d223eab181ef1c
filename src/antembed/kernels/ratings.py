"""Matrix factorisation in one compiled pass: whole mini-batches of gather, T·A, loss, gradients, Yogi and lazy prox.

Rating ≈ t_u·M·t_i + biases with M = A_u·A_iᵀ (K_u × K_i), so that nothing of width d is touched for a single rating. With err
the gradient of the loss by a prediction, and s_u = Σ err·t_i over a user's ratings of the batch:

    ∂/∂t_u = M·s_u,     ∂/∂t_i = Mᵀ·s_i,     ∂/∂A_u = C·A_i,  ∂/∂A_i = Cᵀ·A_u   with C = Σ_u t_u ⊗ s_u

The distinct rows of a batch are copied to one dense block, brought up to date, multiplied, updated and copied back: the loops
over the block are long and vectorise (a loop over one row of K numbers does not: LLVM unrolls it first), the products are BLAS.
All on one thread.

A row holds all that belongs to its object, in one piece of memory: when it was last current, its place in the batch, its bias
with the bias's m and v, then x, m and v of its weights, each K of them and zeros up to a full vector register (`padded`): the
zeros stay zeros, and no loop has a remainder. The twin is the torch engine; the tests compare them.
"""

from typing import Any, NamedTuple

import numpy as np
from numba import njit

LAST, STAMP, SLOT, BIAS, WEIGHTS = 0, 1, 2, 3, 8
VECTOR = 8  # numbers in a register, so many that single precision fills AVX2
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


class Block(NamedTuple):
    """The distinct rows of a batch, and what is worked out for them."""

    ids: np.ndarray  # (B,) int64
    place: np.ndarray  # (B,) int32: the place of each example's row in the block
    x: np.ndarray  # (B, K), and so m and v
    m: np.ndarray
    v: np.ndarray
    s: np.ndarray  # (B, K of the other side): Σ err·t of the other side
    g: np.ndarray  # (B, K): the gradient
    bias: np.ndarray  # (4, B): x, m, v, gradient


class Dense(NamedTuple):
    """A small parameter with its moments."""

    x: np.ndarray
    m: np.ndarray
    v: np.ndarray


def padded(K: int) -> int:
    """K, rounded up to whole registers."""
    return -(-K // VECTOR) * VECTOR


def row_length(K: int) -> int:
    """Numbers in a row of K weights."""
    return WEIGHTS + 3 * padded(K)


def integers(rows: np.ndarray) -> np.ndarray:
    """The same memory seen as integers of the same width: for LAST, STAMP and SLOT."""
    return rows.view(np.int32 if rows.dtype == np.float32 else np.int64)


fast = njit(nogil=True, cache=True, fastmath=FAST, error_model="numpy")


@fast
def make_block(B: int, K: int, K_other: int, like: Any) -> Block:
    """An empty block."""
    x, m, v = np.empty((B, K), like.dtype), np.empty((B, K), like.dtype), np.empty((B, K), like.dtype)
    s, g = np.empty((B, K_other), like.dtype), np.empty((B, K), like.dtype)
    ids, place = np.empty(B, np.int64), np.empty(B, np.int32)
    return Block(ids, place, x, m, v, s, g, np.zeros((4, B), like.dtype))


@njit(inline="always")
def current(x: float, m: float, v: float, drift: float, owed: float, eps: float, floor: float) -> float:
    """A weight that has been idle, as it is now."""
    y = x - (m * drift + owed) / (np.sqrt(v) + eps)
    return floor if y < floor else y


@fast
def update(
    x: Any, m: Any, v: Any, g: Any, step: float, take: float, gain: float, slow: float, eps: float, floor: float
) -> None:
    """One Yogi step and the prox, for weights that are up to date; flat."""
    for k in range(x.shape[0]):
        square = g[k] * g[k]
        change = slow * square
        v[k] += change if v[k] < square else (-change if v[k] > square else change - change)
        m[k] += gain * (g[k] - m[k])
        y = x[k] - (step * m[k] + take) / (np.sqrt(v[k]) + eps)
        x[k] = floor if y < floor else y


@fast
def gather(ids: Any, rows: Any, ints: Any, K: int, biased: bool, history: History, rule: Yogi, now: int, block: Block) -> int:
    """The distinct rows of `ids` into the block, brought up to step `now`; → how many."""
    number = rows.dtype.type
    eps, floor = number(rule.eps), number(rule.floor)
    powers = history.fading.shape[0]
    # All rows at once: the processor fetches many lines from memory side by side, if nothing waits for one of them.
    touched = number(0)
    for p in range(ids.shape[0]):
        row = rows[ids[p]]
        for line in range(0, row.shape[0], 16):
            touched += row[line]
    block.g[0, 0] = touched  # written over later; without a use the loop would be dropped
    found = 0
    for p in range(ids.shape[0]):
        i = ids[p]
        if ints[i, STAMP] != now + 1:
            ints[i, STAMP] = now + 1
            ints[i, SLOT] = found
            block.ids[found] = i
            found += 1
        block.place[p] = ints[i, SLOT]
    for u in range(found):
        i = block.ids[u]
        row, back = rows[i], ints[i, LAST]
        drift, owed = number(history.drift[back]), number(history.clock[now] - history.clock[back])
        gap = now - back
        # What has faded beyond double precision is gone: as a denormal it would cost a hundred cycles a number.
        faded = number(1) if gap == 0 else number(history.fading[powers - gap]) if gap <= powers else number(0)
        x, m, v = block.x[u], block.m[u], block.v[u]
        x_, m_, v_ = row[WEIGHTS:], row[WEIGHTS + K :], row[WEIGHTS + 2 * K :]
        for k in range(K):
            x[k] = current(x_[k], m_[k], v_[k], drift, owed, eps, floor)
            m[k] = m_[k] * faded
            v[k] = v_[k]
        if biased:
            m_b, v_b = row[BIAS + 1], row[BIAS + 2]
            block.bias[0, u] = current(row[BIAS], m_b, v_b, drift, number(0), eps, number(-np.inf))
            block.bias[1, u] = m_b * faded
            block.bias[2, u] = v_b
    return found


@fast
def add_up(err: Any, block: Block, found: int, other: Block, biased: bool) -> None:
    """s = Σ err·t of the other side, and the biases' gradient, for every row of the block."""
    K = block.s.shape[1]
    block.s[:found] = 0
    for p in range(err.shape[0]):
        s, t, e = block.s[block.place[p]], other.x[other.place[p]], err[p]
        for k in range(K):
            s[k] += e * t[k]
    if biased:
        gradient = block.bias[3]
        gradient[:found] = 0
        for p in range(err.shape[0]):
            gradient[block.place[p]] += err[p]


@fast
def scatter(rows: Any, ints: Any, K: int, biased: bool, block: Block, found: int, now: int) -> None:
    """The block's rows back to where they came from; they are current at step `now`."""
    for u in range(found):
        i = block.ids[u]
        row = rows[i]
        x, m, v = block.x[u], block.m[u], block.v[u]
        x_, m_, v_ = row[WEIGHTS:], row[WEIGHTS + K :], row[WEIGHTS + 2 * K :]
        for k in range(K):
            x_[k] = x[k]
            m_[k] = m[k]
            v_[k] = v[k]
        if biased:
            for part in range(3):
                row[BIAS + part] = block.bias[part, u]
        ints[i, LAST] = now


@fast
def learn(
    rows: Any, ints: Any, K: int, biased: bool, block: Block, found: int, g: Any, step: float, take: float, rule: Yogi, now: int
) -> None:
    """Update the block's rows with their gradients g, and put them back."""
    number = rows.dtype.type
    gain, slow, eps = number(1 - rule.beta1), number(1 - rule.beta2), number(rule.eps)
    n = found * K
    x, m, v = block.x.reshape(-1)[:n], block.m.reshape(-1)[:n], block.v.reshape(-1)[:n]
    update(x, m, v, g.reshape(-1)[:n], step, take, gain, slow, eps, number(rule.floor))
    if biased:
        b = block.bias[:, :found]
        update(b[0], b[1], b[2], b[3], step, number(0), gain, slow, eps, number(-np.inf))
    scatter(rows, ints, K, biased, block, found, now)


@fast
def learn_dense(p: Dense, g: Any, step: float, rule: Yogi) -> None:
    """One Yogi step for a whole small parameter."""
    number = p.x.dtype.type
    gain, slow, eps = number(1 - rule.beta1), number(1 - rule.beta2), number(rule.eps)
    x, m, v = p.x.reshape(-1), p.m.reshape(-1), p.v.reshape(-1)
    update(x, m, v, g.reshape(-1), step, number(0), gain, slow, eps, number(-np.inf))


@fast
def touch(ids: Any, rows: Any) -> None:
    """Read and write a number in every cache line of these rows: the memory's share of a pass, for the benchmark."""
    for p in range(ids.shape[0]):
        row = rows[ids[p]]
        for line in range(0, row.shape[0], 16):
            row[line] += row.dtype.type(1)


@fast
def remember(history: History, now: int, step: float, take: float) -> None:
    """Step `now` has been taken."""
    powers = history.fading.shape[0]
    reach = min(powers, now)
    drift, fading = history.drift[now - reach : now], history.fading[powers - reach :]
    for j in range(reach):
        drift[j] += step * fading[j]
    history.drift[now] = 0.0
    history.clock[now] = history.clock[now - 1] + take


@fast
def flush(rows: Any, ints: Any, K: int, biased: bool, history: History, rule: Yogi, now: int, start: int, stop: int) -> None:
    """Bring rows [start, stop) up to step `now`, which becomes step 0."""
    size = 1024
    block = make_block(size, K, 1, rows)
    ids = np.empty(size, np.int64)
    for first in range(start, stop, size):
        n = min(size, stop - first)
        for j in range(n):
            ids[j] = first + j
        found = gather(ids[:n], rows, ints, K, biased, history, rule, now, block)
        scatter(rows, ints, K, biased, block, found, 0)
        for j in range(n):
            ints[first + j, STAMP] = 0


@fast
def train(
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
    anchored: bool,
    biased: bool,
    history: History,
    rule: Yogi,
    steps: Any,
    takes: Any,
    now: int,
    losses: Any,
) -> int:
    """Mini-batches of B over the ratings given, from step `now` on; losses[b] is batch b's mean loss. → the step after."""
    number, dtype = rows_u.dtype.type, rows_u.dtype
    Ku, Ki = (rows_u.shape[1] - WEIGHTS) // 3, (rows_i.shape[1] - WEIGHTS) // 3
    block_u, block_i = make_block(B, Ku, Ki, rows_u), make_block(B, Ki, Ku, rows_i)
    M, Mt, C = np.zeros((Ku, Ki), dtype), np.zeros((Ki, Ku), dtype), np.zeros((Ku, Ki), dtype)
    mixed, err = np.empty((B, Ku), dtype), np.empty(B, dtype)
    g_bias = np.empty((1, 1), dtype)
    for b in range(steps.shape[0]):
        first = b * B
        n = min(B, users.shape[0] - first)
        step, take = number(steps[b]), number(takes[b])
        n_u = gather(users[first : first + n], rows_u, ints_u, Ku, biased, history, rule, now, block_u)
        n_i = gather(items[first : first + n], rows_i, ints_i, Ki, biased, history, rule, now, block_i)
        q = block_i.x
        if anchored:
            M[: A_u.x.shape[0], : A_i.x.shape[0]] = A_u.x @ A_i.x.T
            Mt[:] = M.T
            np.dot(block_i.x[:n_i], Mt, mixed[:n_i])
            q = mixed
        loss, total = 0.0, 0.0
        for p in range(n):
            u, i = block_u.place[p], block_i.place[p]
            y = bias.x[0, 0] + block_u.bias[0, u] + block_i.bias[0, i] - ratings[first + p]
            t, other = block_u.x[u], q[i]
            for k in range(Ku):
                y += t[k] * other[k]
            err[p] = y / n
            loss += y * y
            total += err[p]
        losses[b] = loss / (2 * n)
        add_up(err[:n], block_u, n_u, block_i, biased)
        add_up(err[:n], block_i, n_i, block_u, biased)
        g_u, g_i = block_u.s, block_i.s
        if anchored:
            np.dot(block_u.x[:n_u].T, block_u.s[:n_u], C)
            np.dot(block_u.s[:n_u], Mt, block_u.g[:n_u])
            np.dot(block_i.s[:n_i], M, block_i.g[:n_i])
            g_u, g_i = block_u.g, block_i.g
        # Only now: each side's sums are over the other's old rows.
        learn(rows_u, ints_u, Ku, biased, block_u, n_u, g_u, step, take, rule, now + 1)
        learn(rows_i, ints_i, Ki, biased, block_i, n_i, g_i, step, take, rule, now + 1)
        g_bias[0, 0] = number(total)
        learn_dense(bias, g_bias, step, rule)
        if anchored:
            used = np.ascontiguousarray(C[: A_u.x.shape[0], : A_i.x.shape[0]])
            g_A_u, g_A_i = used @ A_i.x, np.ascontiguousarray(used.T) @ A_u.x
            learn_dense(A_u, g_A_u, step, rule)
            learn_dense(A_i, g_A_i, step, rule)
        now += 1
        remember(history, now, steps[b], takes[b])
    return now
