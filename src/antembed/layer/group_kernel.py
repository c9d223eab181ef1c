"""Group equal ids of a batch, so that each row is read once and its gradients are summed once."""

from typing import Any, NamedTuple

import numpy as np

from antembed.native.compile import compile_kernel

compiled = compile_kernel(nogil=True)


class Groups(NamedTuple):
    """group[p] is the index of id p in `unique`; order[starts[u]:starts[u+1]] are the positions of unique[u]."""

    unique: np.ndarray
    group: np.ndarray
    starts: np.ndarray
    order: np.ndarray


def group(ids: np.ndarray, slot: np.ndarray) -> Groups:
    """Group equal ids. `slot` (V,) int32 is scratch, −1 everywhere before and after."""
    n = len(ids)
    unique, index = np.empty(n, np.int64), np.empty(n, np.int32)
    starts, order = np.empty(n + 1, np.int32), np.empty(n, np.int32)
    found = group_ids(ids, slot, unique, index, starts, order)
    return Groups(unique[:found], index, starts, order)


@compiled
def first_outside(ids: Any, rows: int) -> int:
    """Position of the first id outside [0, rows), or −1."""
    for position in range(ids.shape[0]):
        if ids[position] < 0 or ids[position] >= rows:
            return position
    return -1


@compiled
def group_ids(ids: Any, slot: Any, unique: Any, group: Any, starts: Any, order: Any) -> int:
    """Fill the fields of Groups; → how many ids are unique.

    `slot` (V,) is scratch, −1 everywhere before and after. Ids are listed in the order of their first occurrence.
    """
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
def sum_groups(start: int, stop: int, starts: Any, order: Any, values: Any, out: Any) -> None:
    """out[u] = Σ of values over the positions of group u."""
    width = values.shape[1]
    for u in range(start, stop):
        total, first = out[u], values[order[starts[u]]]
        for k in range(width):
            total[k] = first[k]
        for j in range(starts[u] + 1, starts[u + 1]):
            more = values[order[j]]
            for k in range(width):
                total[k] += more[k]
