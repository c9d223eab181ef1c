"""Coordinate descent for a linear classifier of n-grams: an object's row is a small Newton problem over its documents.

    min over rows r_j :  Σ_i −Y_i·log softmax(s_i) + ½·Σ_j r_jᵀ·(ridge_j + noise·H_j)·r_j      s_i = scale_i·Σ_{j in i} r_j + b

Y_i is 1 for the label of document i, else 0. Object j occurs in documents[starts[j]:starts[j + 1]], and counts there as often
as `times` says. With all others fixed, the loss in r_j is, to second order about its present value, −g·r + ½·rᵀ·H·r, and
g (C) and H (C, C) are sums over its documents.
After each change the scores S and probabilities P of these documents are updated.

noise·H is the mean effect of dropout, to second order: if each object is kept in a document with probability q and scaled by
1/q, the scores are right on average, and the object's share of their variance is (1 − q)/q·scale²·r·rᵀ; half of that times the
curvature of the loss is the added loss, so noise = (1 − q)/q.
"""

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from antembed.native.compile import compile_kernel, compiled
from antembed.native.threads import PARALLEL_FROM, parallel_for, take_turns

MANY = 40  # classes, beyond which only the diagonals of the curvatures are used: all of them take C² for each occurrence
FREQUENT, LANES = 8, 256  # documents of an object from which they are taken side by side, and how many at once
# exp: 1/ln 2, ln 2 in two parts, and the least exponent whose result is no denormal.
LOG2E, LN2_HIGH, LN2_LOW, LOWEST = 1.4426950408889634, 6.93147180369123816490e-01, 1.90821492927058770002e-10, -708.0
FACTORIALS = (39916800.0, 3628800.0, 362880.0, 40320.0, 5040.0, 720.0, 120.0, 24.0, 6.0, 2.0, 1.0, 1.0)  # of 11 … 0
compile_sums: Any = compile_kernel(nogil=True, error_model="numpy", fastmath={"reassoc", "contract"})  # sums in vectors
SHARED_FROM = 1 << 20  # numbers of a block that threads share: two cores that read what both have written are slower than one
PARTS = 32  # of the rows of a logistic regression
TINY = 1e-6  # added to the diagonal: a softmax is invariant to a common shift, so H alone is singular


@compiled
def _accumulate_few(
    documents: Any, times: Any, first: int, stop: int, scales: Any, labels: Any, P: Any, g: Any, H: Any
) -> None:
    """Add to g and to the lower half of H, a document at a time."""
    C = len(g)
    for position in range(first, stop):
        i = documents[position]
        scale = times[position] * scales[i]
        square = scale * scale
        g[labels[i]] += scale
        for a in range(C):
            p = P[i, a]
            g[a] -= scale * p
            H[a, a] += square * p
            for c in range(a + 1):
                H[a, c] -= square * p * P[i, c]


@compile_sums
def _dot(one: Any, other: Any, n: int) -> float:
    total = 0.0
    for lane in range(n):
        total += one[lane] * other[lane]
    return total


@compiled
def _accumulate_lanes(
    documents: Any, times: Any, first: int, stop: int, scales: Any, labels: Any, P: Any, g: Any, H: Any, lanes: Any
) -> None:
    """The same for up to LANES documents side by side, so that sums are computed in vectors. `lanes` (C + 2, LANES): room."""
    C, n = len(g), stop - first
    p, scale, square = lanes, lanes[C], lanes[C + 1]
    for lane in range(n):
        i = documents[first + lane]
        scale[lane] = times[first + lane] * scales[i]
        g[labels[i]] += scale[lane]
        for a in range(C):
            p[a, lane] = P[i, a]
    for a in range(C):
        g[a] -= _dot(scale, p[a], n)
        for lane in range(n):
            square[lane] = scale[lane] * scale[lane] * p[a, lane]
            H[a, a] += square[lane]
        for c in range(a + 1):
            H[a, c] -= _dot(square, p[c], n)


@compiled
def accumulate(
    documents: Any, times: Any, first: int, stop: int, scales: Any, labels: Any, P: Any, r: Any, noise: float, g: Any, H: Any,
    lanes: Any,
) -> None:  # fmt: skip
    """g and (1 + noise)·H of an object whose row is r, without ridge; g is taken at r = 0."""
    C = len(r)
    g[:] = 0
    if C > MANY:
        for a in range(C):
            H[a, a] = TINY
        for position in range(first, stop):
            i = documents[position]
            scale, own = times[position] * scales[i], labels[i]
            g[own] += scale
            for a in range(C):
                g[a] -= scale * P[i, a]
                # Without − p·pᵀ, and no less than ¼ for a document's own class, whose p rises a long way from 1/C.
                H[a, a] += scale * scale * (max(P[i, a], 0.25) if a == own else P[i, a])
        for a in range(C):
            g[a] += H[a, a] * r[a]
            H[a, a] *= 1.0 + noise
        return
    H[:] = 0
    if stop - first < FREQUENT:
        _accumulate_few(documents, times, first, stop, scales, labels, P, g, H)
    else:
        for at in range(first, stop, LANES):
            _accumulate_lanes(documents, times, at, min(at + LANES, stop), scales, labels, P, g, H, lanes)
    for a in range(C):
        H[a, a] += TINY
        for c in range(a):
            H[c, a] = H[a, c]
    for a in range(C):
        for c in range(C):
            g[a] += H[a, c] * r[c]
    H *= 1.0 + noise


@compiled
def update_scores(
    documents: Any, times: Any, first: int, stop: int, scales: Any, change: Any, S: Any, P: Any, lanes: Any, exponents: Any
) -> None:
    """Scores and probabilities after an object's row has changed. lanes (C + 2, LANES), exponents (LANES,) int64: room."""
    if stop - first < FREQUENT:
        _update_few(documents, times, first, stop, scales, change, S, P)
        return
    for at in range(first, stop, LANES):
        _update_lanes(
            documents, times, at, min(at + LANES, stop), scales, change, S, P, lanes, exponents, exponents.view(np.float64)
        )


@compiled
def _exponentials(x: Any, most: Any, n: int, exponents: Any, power: Any, total: Any) -> None:
    """x ← exp(x − most), and total += x, in vectors; x ≤ most. `power`: the memory of `exponents` (int64) as float64."""
    for lane in range(n):
        y = max(x[lane] - most[lane], LOWEST)
        turns = np.floor(y * LOG2E + 0.5)
        r = (y - turns * LN2_HIGH) - turns * LN2_LOW
        exponents[lane] = (np.int64(np.int32(turns)) + 1023) << 52
        series = 1.0 / 479001600.0
        for factorial in FACTORIALS:
            series = series * r + 1.0 / factorial
        x[lane] = series
    for lane in range(n):
        x[lane] *= power[lane]
        total[lane] += x[lane]


@compiled
def _update_lanes(
    documents: Any, times: Any, first: int, stop: int, scales: Any, change: Any, S: Any, P: Any, lanes: Any, exponents: Any,
    power: Any,
) -> None:  # fmt: skip
    """Up to LANES documents side by side."""
    C, n = len(change), stop - first
    most, total = lanes[C], lanes[C + 1]
    for lane in range(n):
        i, position = documents[first + lane], first + lane
        largest = -np.inf
        total[lane] = 0.0
        for a in range(C):
            S[i, a] += times[position] * scales[i] * change[a]
            lanes[a, lane] = S[i, a]
            largest = max(largest, S[i, a])
        most[lane] = largest
    for a in range(C):
        _exponentials(lanes[a], most, n, exponents, power, total)
    for lane in range(n):
        i, share = documents[first + lane], 1.0 / total[lane]
        for a in range(C):
            P[i, a] = lanes[a, lane] * share


@compiled
def _update_few(documents: Any, times: Any, first: int, stop: int, scales: Any, change: Any, S: Any, P: Any) -> None:
    """A document at a time."""
    C = len(change)
    for position in range(first, stop):
        i = documents[position]
        most, total = -np.inf, 0.0
        for a in range(C):
            S[i, a] += times[position] * scales[i] * change[a]
            most = max(most, S[i, a])
        for a in range(C):
            P[i, a] = np.exp(S[i, a] - most)
            total += P[i, a]
        for a in range(C):
            P[i, a] /= total


@compiled
def solve(H: Any, g: Any) -> None:
    """Solve H·x = g; g becomes x, and H its Cholesky factor; with many classes by the diagonal alone. For a few classes this
    is faster than a call of LAPACK."""
    C = len(g)
    if C > MANY:
        for a in range(C):
            g[a] /= H[a, a]
        return
    for a in range(C):
        for c in range(a + 1):
            rest = H[a, c]
            for b in range(c):
                rest -= H[a, b] * H[c, b]
            H[a, c] = np.sqrt(rest) if a == c else rest / H[c, c]
        for b in range(a):
            g[a] -= H[a, b] * g[b]
        g[a] /= H[a, a]
    for a in range(C - 1, -1, -1):
        for b in range(a + 1, C):
            g[a] -= H[b, a] * g[b]
        g[a] /= H[a, a]


@compiled
def _dense_steps(
    first: int, stop: int, data: Any, ridge: Any, noise: float, order: Any, longest: float, R: Any, P: Any, changes: Any
) -> None:
    """A Newton step for the rows of order[first:stop], and what it changes. Steps are limited to `longest`, since H is valid
    only nearby."""
    starts, documents, times, scales, labels = data
    C = R.shape[1]
    g, H, lanes = np.empty(C), np.empty((C, C)), np.empty((C + 2, LANES))
    for n in range(first, stop):
        j = order[n]
        accumulate(documents, times, starts[j], starts[j + 1], scales, labels, P, R[j], noise, g, H, lanes)
        for a in range(C):
            H[a, a] += ridge[j]
        solve(H, g)
        most = 0.0
        for a in range(C):
            g[a] -= R[j, a]
            most = max(most, abs(g[a]))
        for a in range(C):
            changes[n, a] = g[a] * longest / most if most > longest else g[a]
            R[j, a] += changes[n, a]


@compiled
def _code_steps(
    first: int, stop: int, data: Any, ridge: Any, noise: float, order: Any, B: Any, values: Any, needed: float, frozen: bool,
    anchors: Any, levels: Any, gains: Any, R: Any, P: Any, changes: Any,
) -> None:  # fmt: skip
    """The best code of the objects of order[first:stop], and what it changes."""
    starts, documents, times, scales, labels = data
    K, C = B.shape
    g, H, lanes = np.empty(C), np.empty((C, C)), np.empty((C + 2, LANES))
    squares, slopes = np.zeros(K), np.empty(K)
    for k in range(K):
        for a in range(C):
            squares[k] += B[k, a] * B[k, a]
    for n in range(first, stop):
        j = order[n]
        accumulate(documents, times, starts[j], starts[j + 1], scales, labels, P, R[j], noise, g, H, lanes)
        best, anchor, level = needed, -1, -1
        likely = 0
        for k in range(K):
            slopes[k] = 0.0
            for a in range(C):
                slopes[k] += B[k, a] * g[a]
            if max(slopes[k], 0.0) ** 2 * squares[likely] > max(slopes[likely], 0.0) ** 2 * squares[k]:
                likely = k
        for position in range(-1, K):
            k = likely if position < 0 else position
            slope, curvature = slopes[k], ridge[j] * squares[k]
            # No value gains more than slope²/(2·curvature), and H only adds to the curvature: this excludes most anchors.
            if slope <= 0 or slope * slope <= 2 * best * curvature:
                continue
            for a in range(C):
                for c in range(a if C <= MANY else 0):
                    curvature += 2 * B[k, a] * H[a, c] * B[k, c]
                curvature += B[k, a] * H[a, a] * B[k, a]
            for q in range(len(values)):
                gain = values[q] * (slope - 0.5 * values[q] * curvature)
                if gain > best:
                    best, anchor, level = gain, k, q
        gains[j] = best if anchor >= 0 else 0.0
        changes[n] = 0
        if frozen and anchor < 0:
            continue
        anchors[j], levels[j] = anchor, level
        for a in range(C):
            row = B[anchor, a] * values[level] if anchor >= 0 else 0.0
            changes[n, a] = row - R[j, a]
            R[j, a] = row


@compiled
def _place(documents: Any, first: int, stop: int, least: int) -> int:
    """Where among documents[first:stop], which rise, those from `least` on begin. np.searchsorted takes a second to compile."""
    while first < stop:
        middle = (first + stop) >> 1
        if documents[middle] < least:
            first = middle + 1
        else:
            stop = middle
    return first


@compiled
def _apply(low: int, high: int, begin: int, end: int, data: Any, order: Any, changes: Any, S: Any, P: Any) -> None:
    """What order[begin:end] change in the scores of the documents from `low` to `high`."""
    starts, documents, times, scales, _ = data
    C, everything = S.shape[1], low == 0 and high == len(S)
    lanes, exponents = np.empty((C + 2, LANES)), np.empty(LANES, np.int64)
    for n in range(begin, end):
        changed = False
        for a in range(C):
            changed |= changes[n, a] != 0
        if changed:
            first, stop = starts[order[n]], starts[order[n] + 1]
            if not everything:
                first, stop = _place(documents, first, stop, low), _place(documents, first, stop, high)
            update_scores(documents, times, first, stop, scales, changes[n], S, P, lanes, exponents)


def _in_blocks(
    steps: Callable[[int, int], None], cuts: Any, data: Any, order: Any, changes: Any, S: Any, P: Any, threads: int
) -> None:
    """Blocks one after the other: the steps of a block's objects, all from the same scores, then the scores. Threads share
    objects in the first, and documents in the second, so nothing depends on how many there are."""
    pairs = np.concatenate([[0], np.cumsum(np.diff(data[0])[order])])
    for begin, end in pairwise(cuts.tolist()):
        some = (begin, end, data, order, changes, S, P)
        enough = S.shape[1] ** 2 * int(pairs[end] - pairs[begin]) >= SHARED_FROM
        share = threads if enough else 1
        # Parts with as many pairs each: a frequent object has as many as hundreds of others.
        wanted = pairs[begin] + (pairs[end] - pairs[begin]) * np.arange(1, share) / share
        parts = [begin, *(begin + np.searchsorted(pairs[begin:end], wanted)).tolist(), end]
        parallel_for(partial(_in_parts, steps, parts), share, PARALLEL_FROM, share)
        parallel_for(partial(_applied, some), len(S), PARALLEL_FROM, share)


def _in_parts(steps: Callable[[int, int], None], parts: list[int], first: int, stop: int) -> None:
    steps(parts[first], parts[stop])


def _applied(some: tuple[Any, ...], low: int, high: int) -> None:
    _apply(low, high, *some)


def descend_dense(
    data: Any, ridge: Any, noise: float, order: Any, cuts: Any, longest: float, R: Any, S: Any, P: Any, threads: int = 1
) -> None:
    """A Newton step for each row of R (V, C): order[cuts[n]:cuts[n + 1]] at the same time, these blocks one after the other.

    data: starts (V + 1,), documents and times (pairs,), scales and labels of the documents (n,)."""
    changes = np.empty((len(order), R.shape[1]))

    def steps(first: int, stop: int) -> None:
        _dense_steps(first, stop, data, ridge, noise, order, longest, R, P, changes)

    _in_blocks(steps, cuts, data, order, changes, S, P, threads)


def descend_codes(
    data: Any, ridge: Any, noise: float, order: Any, cuts: Any, B: Any, values: Any, l0_penalty: float, frozen: bool,
    anchors: Any, levels: Any, gains: Any, R: Any, S: Any, P: Any, threads: int = 1,
) -> None:  # fmt: skip
    """The best row values[q]·B[k] for each object, or none if it lowers the loss by no more than the penalty; in blocks, as
    descend_dense.

    anchors, levels: k and q, −1 for none. R holds the present rows (any values) and becomes the coded ones. gains: how much the
    best code lowers the loss, compared with none; 0 if not more than the penalty. With `frozen`, objects only change their
    code.
    """
    changes, needed = np.empty((len(order), R.shape[1])), 0.0 if frozen else l0_penalty

    def steps(first: int, stop: int) -> None:
        _code_steps(first, stop, data, ridge, noise, order, B, values, needed, frozen, anchors, levels, gains, R, P, changes)

    _in_blocks(steps, cuts, data, order, changes, S, P, threads)


@compiled
def count_objects(
    first: int, stop: int, tokens: Any, starts: Any, hashes: Any, prefixes: Any, orders: int, bits: int, rows: Any,
    counts: Any, last: Any, ends: Any, documents: Any, times: Any,
) -> None:  # fmt: skip
    """Words, runs of up to `orders` words and prefixes of documents [first, stop), by the first `bits` bits of their hashes
    (classify/ngram_file.py). prefixes: (V,), 0 for a word without one; (0,) if there are none.

    Without `rows` (2^bits; else empty): counts[bucket] = how many documents have it; `last` is −1 everywhere. With it, row
    rows[bucket] ≥ 0 of the table gets its documents, from ends[row] on, which moves on, and how often they have it.
    """
    shift = np.uint64(64 - bits)
    for i in range(first, stop):
        for t in range(starts[i], starts[i + 1]):
            run = hashes[tokens[t]]
            prefix = prefixes[tokens[t]] if len(prefixes) else np.uint64(0)
            for more in range(-1 if prefix else 0, min(orders, starts[i + 1] - t)):
                if more > 0:
                    run = _mixed(run * np.uint64(0x9E3779B97F4A7C15) + hashes[tokens[t + more]])
                bucket = np.int64((run if more > 0 else _mixed(run if more == 0 else prefix)) >> shift)
                if len(rows) == 0:
                    if last[bucket] != i:
                        last[bucket] = i
                        counts[bucket] += 1
                    continue
                row = rows[bucket]
                if row < 0:
                    continue
                at = ends[row]
                if last[row] == i:
                    times[at - 1] += 1
                else:
                    last[row] = i
                    documents[at], times[at] = i, 1
                    ends[row] = at + 1


@compiled
def _mixed(bits: Any) -> Any:
    bits = (bits ^ (bits >> np.uint64(33))) * np.uint64(0xFF51AFD7ED558CCD)
    bits = (bits ^ (bits >> np.uint64(33))) * np.uint64(0xC4CEB9FE1A85EC53)
    return bits ^ (bits >> np.uint64(33))


@compiled
def _gather_part(low: int, high: int, data: Any, anchors: Any, weights: Any, Z: Any, squares: Any) -> None:
    """Of the documents from `low` to `high`."""
    starts, documents, times, scales, _ = data
    for j in range(len(anchors)):
        k = anchors[j]
        if k >= 0:
            first, stop = starts[j], starts[j + 1]
            for position in range(_place(documents, first, stop, low), _place(documents, first, stop, high)):
                i = documents[position]
                weight = scales[i] * times[position] * weights[j]
                Z[i, k] += weight
                squares[i, k] += weight * weight


def gather_codes(data: Any, anchors: Any, weights: Any, Z: Any, squares: Any, threads: int = 1) -> None:
    """Add the weights of each document's objects, times its scale, to Z (n, K), by anchor, and their squares to squares (n, K).
    Threads share documents."""
    parallel_for(lambda low, high: _gather_part(low, high, data, anchors, weights, Z, squares), len(Z), PARALLEL_FROM, threads)


# Logistic regression of the anchors, in one pass over the rows of Z, on all cores:
#
#    loss = Σ_i −log softmax(Z_i·B + bias)[labels_i]        d loss/dB = Zᵀ·(P − Y)        d loss/dbias = Σ_i (P_i − Y_i)
#
# Rows are summed in PARTS parts, which are added in their order: the same numbers for any number of threads.


@compiled
def probabilities_of(s: Any) -> Any:
    """s ← softmax(s), and the logarithm of Σ exp(s) before."""
    most, total = s[0], 0.0
    for a in range(1, len(s)):
        most = max(most, s[a])
    for a in range(len(s)):
        s[a] = np.exp(s[a] - most)
        total += s[a]
    for a in range(len(s)):
        s[a] /= total
    return most + np.log(total)


@compiled
def _sum_rows(Z: Any, labels: Any, columns: Any, bias: Any, first: int, stop: int, gradient: Any, slope: Any) -> float:
    """The loss of rows [first, stop); their gradients (C, K) and (C) are added. `columns` (C, K) is Bᵀ."""
    C, K = columns.shape
    s, z, loss = np.empty(C), np.empty(K), 0.0
    for i in range(first, stop):
        for k in range(K):
            z[k] = Z[i, k]
        for a in range(C):
            s[a] = bias[a] + _dot(z, columns[a], K)
        own = s[labels[i]]
        loss += probabilities_of(s) - own
        s[labels[i]] -= 1.0
        for a in range(C):
            slope[a] += s[a]
            for k in range(K):
                gradient[a, k] += s[a] * z[k]
    return loss


def logistic_loss(Z: Any, labels: Any, B: Any, bias: Any, threads: int = 1) -> tuple[float, Any, Any]:
    """The loss, and its gradients for B (K, C) and bias (C). Z (n, K), labels (n,) integers."""
    columns, bias = np.ascontiguousarray(B.T, np.float64), np.ascontiguousarray(bias, np.float64)
    losses, gradients, slopes = np.zeros(PARTS), np.zeros((PARTS, *columns.shape)), np.zeros((PARTS, len(bias)))
    cuts = [len(Z) * part // PARTS for part in range(PARTS + 1)]

    def work(part: int) -> None:
        losses[part] = _sum_rows(Z, labels, columns, bias, cuts[part], cuts[part + 1], gradients[part], slopes[part])

    take_turns(work, PARTS, threads)
    return float(losses.sum()), gradients.sum(0).T, slopes.sum(0)


@compiled
def _score_rows(Z: Any, columns: Any, bias: Any, first: int, stop: int, S: Any, P: Any) -> None:
    C, K = columns.shape
    z = np.empty(K)
    for i in range(first, stop):
        for k in range(K):
            z[k] = Z[i, k]
        for a in range(C):
            S[i, a] = bias[a] + _dot(z, columns[a], K)
            P[i, a] = S[i, a]
        probabilities_of(P[i])


def score_rows(Z: Any, B: Any, bias: Any, S: Any, P: Any, threads: int = 1) -> None:
    """S ← Z·B + bias, and P ← softmax(S)."""
    columns, cuts = np.ascontiguousarray(B.T, np.float64), [len(Z) * part // PARTS for part in range(PARTS + 1)]
    take_turns(lambda part: _score_rows(Z, columns, bias, cuts[part], cuts[part + 1], S, P), PARTS, threads)
