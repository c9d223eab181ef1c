"""Non-negative codes of given vectors, compiled: the twin of embedding.factorize.descend_transform, on all cores."""

import numpy as np
from torch import Tensor

from antembed.kernels import codes as kernel
from antembed.kernels.descent import padded, padded_columns
from antembed.kernels.threads import take_turns
from antembed.solvers.products import along

ROWS = 512  # at a time: what they aim at stays in the cache


def descend_codes(E: Tensor, A: Tensor, T: Tensor, l1_penalty: float, sweeps: int = 2, threads: int = 1) -> None:
    """Set each weight of T to its minimum given the others, in place: the steps of descend_transform, row by row."""
    vectors, anchors, weights = E.numpy(), A.numpy(), T.numpy()
    gram, K = padded_columns(anchors @ anchors.T), len(anchors)

    def work(piece: int) -> None:
        first, stop = piece * ROWS, min((piece + 1) * ROWS, len(vectors))
        target = np.zeros((stop - first, padded(K)))
        target[:, :K] = along(vectors[first:stop], anchors.T)
        target[:, :K] -= l1_penalty
        kernel.descend_codes(weights, target, gram, sweeps, first, stop)

    take_turns(work, -(-len(vectors) // ROWS), threads)
