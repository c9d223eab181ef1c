"""The look-up T[ids]·A of a batch whose ids repeat, and its gradients, each in one pass over the distinct rows.

Rows go through the cache in blocks: read (layer/optim/lazy_kernel.py), multiplied by the anchors, and written wherever their
id stands; on the way back the gradients of equal ids are summed, and multiplied by the anchors and by the rows. Threads take
chunks of rows in turn. Chunks depend on the number of rows alone, and so do all sums: results are the same with any number of
threads.
"""

from typing import Any

import numpy as np

from antembed.layer.optim.lazy_kernel import LINE, Groups, Rows, Rule, read_rows
from antembed.native.compile import compile_kernel
from antembed.native.threads import take_turns
from antembed.native.vector import VECTOR, add_product, multiply, padded, prefetch, spaced, stride_of

BLOCK = 12 * VECTOR  # rows that are in the cache at a time, beside the anchors and their gradient
CHUNK = 1024  # rows that a thread takes at a time
MOST_CHUNKS = 32  # each has a gradient of the anchors of its own, until they are summed
AHEAD = 2  # vectors are fetched so many before they are needed

compiled = compile_kernel(nogil=True, error_model="numpy")


def look_up(groups: Groups, rows: Rows, rule: Rule, now: int, anchors: np.ndarray, out: np.ndarray, threads: int) -> np.ndarray:
    """out[p] = row p of T[ids]·A, up to date at step `now`. → the distinct rows of T, as `gradients` takes them."""
    U = len(groups.unique)
    read, A, chunks = np.empty((U + VECTOR, rows.weight.shape[1]), anchors.dtype), spaced(anchors), _chunks(U)
    given = groups.unique, groups.starts, groups.order, rows, rule, now, read, A, out
    take_turns(lambda c: look_up_chunk(*chunks[c], *given), len(chunks), threads)
    return read


def gradients(
    groups: Groups, read: np.ndarray, anchors: np.ndarray, arriving: np.ndarray, threads: int
) -> tuple[np.ndarray, np.ndarray]:
    """The gradients of the distinct rows (U, K) and of the anchors (K, d), of what `look_up` has computed."""
    U, (K, d) = len(groups.unique), anchors.shape
    chunks, transposed, of_rows = _chunks(U), spaced(anchors.T), np.empty((U, K), anchors.dtype)
    of_anchors = np.empty((len(chunks), padded(K), stride_of(d)), anchors.dtype)

    def work(c: int) -> None:
        of_anchors[c] = 0
        gradients_chunk(*chunks[c], groups.starts, groups.order, arriving, read, transposed, of_rows, of_anchors[c])

    take_turns(work, len(chunks), threads)
    return of_rows, np.add.reduce(of_anchors, axis=0)[:K, :d]


def _chunks(rows: int) -> list[tuple[int, int]]:
    size = max(CHUNK, -(-rows // (MOST_CHUNKS * BLOCK)) * BLOCK)
    return [(start, min(start + size, rows)) for start in range(0, rows, size)]


@compiled
def _fetch(matrix: Any, row: int) -> None:
    """Have a row brought into the cache: rows are in no order, so the processor does not foresee them."""
    width = matrix.shape[1]
    for at in range(row * width, row * width + width, LINE):
        prefetch(matrix, at)


@compiled
def look_up_chunk(
    start: int, stop: int, unique: Any, starts: Any, order: Any, rows: Rows, rule: Rule, now: int, read: Any, A: Any, out: Any
) -> None:
    """`look_up` of the distinct rows [start, stop)."""
    K, stride, d = rows.weight.shape[1], A.shape[1], out.shape[1]
    columns = -(-d // VECTOR) * VECTOR
    mixed = np.empty((BLOCK, stride), A.dtype)
    for first in range(start, stop, BLOCK):
        last = min(first + BLOCK, stop)
        read_rows(first, last, unique, read, rows, rule, now)
        multiply(last - first, K, read, first * K, K, 1, columns, stride, A, 0, mixed, 0)
        for u in range(first, last):
            vector = mixed[u - first]
            for j in range(starts[u], starts[u + 1]):
                if j + AHEAD < starts[stop]:
                    _fetch(out, order[j + AHEAD])
                target = out[order[j]]
                for k in range(d):
                    target[k] = vector[k]


@compiled
def gradients_chunk(
    start: int, stop: int, starts: Any, order: Any, arriving: Any, read: Any, At: Any, of_rows: Any, of_anchors: Any
) -> None:
    """`gradients` of the distinct rows [start, stop), and their part of the anchors' gradient, which is added to."""
    K, d, stride = of_rows.shape[1], arriving.shape[1], of_anchors.shape[1]
    columns, wide = -(-K // VECTOR) * VECTOR, -(-d // VECTOR) * VECTOR
    summed, moved = np.zeros((BLOCK, stride), At.dtype), np.empty((BLOCK, At.shape[1]), At.dtype)
    for first in range(start, stop, BLOCK):
        last = min(first + BLOCK, stop)
        for u in range(first, last):
            total = summed[u - first]
            for j in range(starts[u], starts[u + 1]):
                if j + AHEAD < starts[stop]:
                    _fetch(arriving, order[j + AHEAD])
                more = arriving[order[j]]
                if j == starts[u]:
                    for k in range(d):
                        total[k] = more[k]
                else:
                    for k in range(d):
                        total[k] += more[k]
        multiply(last - first, d, summed, 0, stride, 1, columns, At.shape[1], At, 0, moved, 0)
        add_product(K, last - first, read, first * K, 1, K, wide, stride, summed, 0, of_anchors, 0)
        for u in range(first, last):
            target, source = of_rows[u], moved[u - first]
            for k in range(K):
                target[k] = source[k]
