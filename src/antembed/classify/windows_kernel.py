"""Convolution over windows of words and the maximum over time, without materialized windows.

A filter over w words is w vectors, one for each position of the window, and its value is a sum of w dot products. The product
of word u with position o of filter f does not depend on the neighbours of u, so all products are one small matrix P (distinct
words of the batch, positions × filters). A window is a sum of w numbers of P. Only the window with the largest sum gets a
gradient: w words for each filter of a document, not all of them.
"""

from typing import Any

import numpy as np

from antembed.native.compile import compile_kernel

compiled = compile_kernel(nogil=True, fastmath={"contract"})


@compiled
def pool_windows(
    first: int, last: int, products: Any, row_of: Any, starts: Any, widths: Any, filters: int, largest: Any, where: Any
) -> None:
    """For documents first … last − 1: the largest window of every filter, and the first word of that window.

    products (U, Σ widths·filters), position by position; row_of (n,): row of each word; starts (documents + 1,).
    Windows start at every word of a document; positions beyond its end add nothing. An empty document has the value 0.
    largest, where: (documents, len(widths)·filters), `where` counted from the document's first word.
    """
    sums = np.empty(filters, np.float32)
    for document in range(first, last):
        begin, end = starts[document], starts[document + 1]
        base = 0
        for block in range(widths.shape[0]):
            best = largest[document, block * filters : (block + 1) * filters]
            at = where[document, block * filters : (block + 1) * filters]
            best[:] = np.float32(0) if begin == end else np.float32(-np.inf)
            at[:] = 0
            for word in range(begin, end):
                row = products[row_of[word], base : base + filters]
                for f in range(filters):
                    sums[f] = row[f]
                for o in range(1, min(widths[block], end - word)):
                    row = products[row_of[word + o], base + o * filters : base + (o + 1) * filters]
                    for f in range(filters):
                        sums[f] += row[f]
                here = np.int32(word - begin)
                for f in range(filters):
                    at[f] = here if sums[f] > best[f] else at[f]
                    best[f] = max(sums[f], best[f])
            base += widths[block] * filters


@compiled
def spread_windows(
    first: int,
    last: int,
    gradient: Any,
    where: Any,
    row_of: Any,
    starts: Any,
    widths: Any,
    filters: int,
    words: Any,
    weights: Any,
    to_words: Any,
    to_weights: Any,
) -> None:
    """Columns first … last − 1 of both gradients, from that of the largest windows: (documents, len(widths)·filters).

    words (U, k) and weights (Σ widths·filters, k) are the factors of `products` = words·weightsᵀ.
    """
    for document in range(starts.shape[0] - 1):
        begin, end = starts[document], starts[document + 1]
        base = 0
        for block in range(widths.shape[0]):
            for f in range(filters):
                g = gradient[document, block * filters + f]
                if g == 0:
                    continue
                word = begin + where[document, block * filters + f]
                for o in range(min(widths[block], end - word)):
                    u, m = row_of[word + o], base + o * filters + f
                    # Two loops: one loop over four arrays is not vectorized, and 4 times slower.
                    target, source = to_words[u, first:last], weights[m, first:last]
                    for k in range(last - first):
                        target[k] += g * source[k]
                    target, source = to_weights[m, first:last], words[u, first:last]
                    for k in range(last - first):
                        target[k] += g * source[k]
            base += widths[block] * filters
