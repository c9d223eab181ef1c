"""Convolution over windows of words and the maximum over time: compiled, without materialized windows; plain off the CPU.

A filter over w words is w vectors, one for each position of the window, and its value is a sum of w dot products. The product
of word u with position o of filter f does not depend on the neighbours of u, so all products are one small matrix P (distinct
words of the batch, positions × filters). A window is a sum of w numbers of P. Only the window with the largest sum gets a
gradient: w words for each filter of a document, not all of them.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from antembed.native.compile import compile_kernel
from antembed.native.threads import parallel_for

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


class PooledWindows(torch.autograd.Function):
    """words (U, k), weights (Σ widths·filters, k) → the largest window of each filter: (documents, len(widths)·filters)."""

    @staticmethod
    def forward(
        ctx: Any, words: Tensor, weights: Tensor, row_of: np.ndarray, starts: np.ndarray, widths: np.ndarray, filters: int
    ) -> Tensor:
        products, documents = (words @ weights.T).numpy(), len(starts) - 1
        largest = np.empty((documents, len(widths) * filters), np.float32)
        where = np.empty(largest.shape, np.int32)
        threads = torch.get_num_threads()
        parallel_for(
            lambda a, b: pool_windows(a, b, products, row_of, starts, widths, filters, largest, where),
            documents,
            products.shape[1],
            threads,
        )
        ctx.save_for_backward(words, weights)
        ctx.rest = where, row_of, starts, widths, filters
        return torch.from_numpy(largest)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        words, weights = ctx.saved_tensors
        where, row_of, starts, widths, filters = ctx.rest
        to_words, to_weights = torch.zeros_like(words), torch.zeros_like(weights)
        arrays = [gradient.contiguous().numpy(), where, row_of, starts, widths, filters]
        arrays += [part.numpy() for part in (words, weights, to_words, to_weights)]
        # Threads share the columns: no two write to one place, and the order of every sum is that of one thread.
        parallel_for(lambda a, b: spread_windows(a, b, *arrays), words.shape[1], gradient.numel(), torch.get_num_threads())
        return to_words, to_weights, None, None, None, None


def pooled_windows(words: Tensor, weights: Tensor, row_of: Tensor, starts: Tensor, widths: Sequence[int]) -> Tensor:
    """The same for any device: `row_of` (n,) says which row of `words` each word of the documents is, `starts` (documents +
    1,) where they begin."""
    filters = len(weights) // sum(widths)
    if words.device.type == "cpu" and words.dtype == torch.float32:
        spans = np.asarray(widths, np.int64)
        return PooledWindows.apply(words.contiguous(), weights.contiguous(), row_of.numpy(), starts.numpy(), spans, filters)
    return plain_windows(words, weights, row_of, starts, widths)


def plain_windows(words: Tensor, weights: Tensor, row_of: Tensor, starts: Tensor, widths: Sequence[int]) -> Tensor:
    """By convolution over documents of equal length, filled up with zeros."""
    lengths = starts[1:] - starts[:-1]
    longest, documents = max(int(lengths.max()), 1), len(lengths)
    steps = torch.arange(longest, device=words.device)
    inside = steps < lengths.unsqueeze(1)
    padded = words.new_zeros(documents, longest + max(widths) - 1, words.shape[1])
    padded[:, :longest][inside] = words[row_of.long()]
    pooled, base, filters = [], 0, len(weights) // sum(widths)
    for width in widths:
        kernel = weights[base : base + width * filters].view(width, filters, -1).permute(1, 2, 0)
        values = F.conv1d(padded[:, : longest + width - 1].transpose(1, 2), kernel)  # (documents, filters, longest)
        outside = ~inside & (steps > 0)  # an empty document has one window, of zeros
        pooled.append(values.masked_fill(outside.unsqueeze(1), -torch.inf).amax(2))
        base += width * filters
    return torch.cat(pooled, 1)
