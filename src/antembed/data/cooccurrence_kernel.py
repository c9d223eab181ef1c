"""Rows of co-occurrence counts, one word after the other.

From the positions of a word, all its neighbours are counted in one scratch row. A row is complete, and can be filtered, before
the next one starts, so the counts of all pairs are never in memory.
"""

from typing import Any

import numpy as np

from antembed.native.compile import compile_kernel

compiled: Any = compile_kernel(nogil=True)


@compiled
def neighbour_counts(tokens: Any, starts: Any, window: int, reserved: int, out: Any) -> None:
    """out[u] += how many other words occur within `window` positions of u, over all occurrences of u."""
    for n in range(starts.shape[0] - 1):
        for i in range(starts[n], starts[n + 1]):
            u = tokens[i]
            if u < reserved:
                continue
            for j in range(i + 1, min(i + window + 1, starts[n + 1])):
                v = tokens[j]
                if v >= reserved and v != u:
                    out[u] += 1
                    out[v] += 1


@compiled
def find_positions(tokens: Any, starts: Any, low: int, high: int, cursor: Any, positions: Any, documents: Any) -> None:
    """Where each word low ≤ u < high occurs: positions[cursor[u − low] …], with its document. Moves the cursors to the ends."""
    for n in range(starts.shape[0] - 1):
        for i in range(starts[n], starts[n + 1]):
            u = tokens[i]
            if low <= u < high:
                positions[cursor[u - low]] = i
                documents[cursor[u - low]] = n
                cursor[u - low] += 1


@compiled
def count_rows(
    tokens: Any, starts: Any, window: int, reserved: int, low: int, row: int, high: int, begins: Any, positions: Any,
    documents: Any, totals: Any, total: float, min_count: int, min_pmi: float, scratch: Any, touched: Any, ends: Any,
    columns: Any, counts: Any,
) -> int:  # fmt: skip
    """Rows row, row + 1, … of the counts, filtered by count and PMI.

    Columns and counts are written to `columns` and `counts`; row r ends at ends[r − row]. Stops before a row that might not
    fit, or at `high`; → the row before which it stopped. `scratch` (V,) is zero before and after.
    """
    filled = 0
    first = row
    while row < high:
        found = 0
        for p in range(begins[row - low], begins[row - low + 1]):
            i, n = positions[p], documents[p]
            for j in range(max(i - window, starts[n]), min(i + window + 1, starts[n + 1])):
                v = tokens[j]
                if v >= reserved and v != row:
                    if scratch[v] == 0:
                        touched[found] = v
                        found += 1
                    scratch[v] += 1
        fits = filled + found <= columns.shape[0]
        for t in range(found):
            v = touched[t]
            count = scratch[v]
            scratch[v] = 0
            if fits and count >= min_count and np.log(count * total / (totals[row] * totals[v])) >= min_pmi:
                columns[filled] = v
                counts[filled] = count
                filled += 1
        if not fits:
            return row
        ends[row - first] = filled
        row += 1
    return row
