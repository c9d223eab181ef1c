"""The largest value of every filter over a document's windows: compiled on a CPU, plain elsewhere."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from antembed.classify.windows_kernel import pool_windows, spread_windows
from antembed.native.threads import parallel_for


class PooledWindows(torch.autograd.Function):
    """words (U, k), weights (Σ widths·filters, k) → the largest window of each filter: (documents, len(widths)·filters)."""

    @staticmethod
    def forward(
        ctx: Any, words: Tensor, weights: Tensor, places: np.ndarray, starts: np.ndarray, widths: np.ndarray, filters: int
    ) -> Tensor:
        products, documents = (words @ weights.T).numpy(), len(starts) - 1
        largest = np.empty((documents, len(widths) * filters), np.float32)
        where = np.empty(largest.shape, np.int32)
        threads = torch.get_num_threads()
        parallel_for(
            lambda a, b: pool_windows(a, b, products, places, starts, widths, filters, largest, where),
            documents,
            products.shape[1],
            threads,
        )
        ctx.save_for_backward(words, weights)
        ctx.rest = where, places, starts, widths, filters
        return torch.from_numpy(largest)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        words, weights = ctx.saved_tensors
        where, places, starts, widths, filters = ctx.rest
        to_words, to_weights = torch.zeros_like(words), torch.zeros_like(weights)
        arrays = [gradient.contiguous().numpy(), where, places, starts, widths, filters]
        arrays += [part.numpy() for part in (words, weights, to_words, to_weights)]
        # Threads share the columns: no two write to one place, and the order of every sum is that of one thread.
        parallel_for(lambda a, b: spread_windows(a, b, *arrays), words.shape[1], gradient.numel(), torch.get_num_threads())
        return to_words, to_weights, None, None, None, None


def pooled_windows(words: Tensor, weights: Tensor, places: Tensor, starts: Tensor, widths: Sequence[int]) -> Tensor:
    """The same for any device: `places` (n,) says which row of `words` each word of the documents is, `starts` (documents +
    1,) where they begin."""
    filters = len(weights) // sum(widths)
    if words.device.type == "cpu" and words.dtype == torch.float32:
        spans = np.asarray(widths, np.int64)
        return PooledWindows.apply(words.contiguous(), weights.contiguous(), places.numpy(), starts.numpy(), spans, filters)
    return plain_windows(words, weights, places, starts, widths)


def plain_windows(words: Tensor, weights: Tensor, places: Tensor, starts: Tensor, widths: Sequence[int]) -> Tensor:
    """By convolution over documents of equal length, filled up with zeros."""
    lengths = starts[1:] - starts[:-1]
    longest, documents = max(int(lengths.max()), 1), len(lengths)
    steps = torch.arange(longest, device=words.device)
    inside = steps < lengths.unsqueeze(1)
    padded = words.new_zeros(documents, longest + max(widths) - 1, words.shape[1])
    padded[:, :longest][inside] = words[places.long()]
    pooled, base, filters = [], 0, len(weights) // sum(widths)
    for width in widths:
        kernel = weights[base : base + width * filters].view(width, filters, -1).permute(1, 2, 0)
        values = F.conv1d(padded[:, : longest + width - 1].transpose(1, 2), kernel)  # (documents, filters, longest)
        outside = ~inside & (steps > 0)  # an empty document has one window, of zeros
        pooled.append(values.masked_fill(outside.unsqueeze(1), -torch.inf).amax(2))
        base += width * filters
    return torch.cat(pooled, 1)
