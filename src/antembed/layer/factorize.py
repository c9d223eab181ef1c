"""Non-negative codes of given vectors, compiled: the twin of factorize.descend_transform, on all cores."""

import numpy as np
import torch
from torch import Tensor

from antembed.layer import factorize_kernel as kernel
from antembed.native.blocks import along
from antembed.native.threads import take_turns
from antembed.recommend.descent_kernel import padded, padded_columns

ROWS = 512  # at a time: what they aim at stays in the cache


def descend_codes(
    E: Tensor, A: Tensor, T: Tensor, l1_penalty: float, sweeps: int = 2, support: Tensor | None = None, threads: int = 1
) -> None:
    """Set each weight of T to its minimum given the others, in place: the steps of descend_transform, row by row. With
    `support` (a mask like T) weights outside it stay as they are."""
    vectors, anchors, weights = E.numpy(), A.double().numpy(), T.numpy()
    gram, K = padded_columns(anchors @ anchors.T), len(anchors)
    free = np.empty((0, 0), np.bool_) if support is None else support.numpy()

    def work(piece: int) -> None:
        first, stop = piece * ROWS, min((piece + 1) * ROWS, len(vectors))
        target = np.zeros((stop - first, padded(K)))
        target[:, :K] = along(vectors[first:stop], anchors.T)
        target[:, :K] -= l1_penalty
        kernel.descend_codes(weights, target, gram, free, sweeps, first, stop)

    take_turns(work, -(-len(vectors) // ROWS), threads)


def can_be_compiled(E: Tensor) -> bool:
    """Whether the kernel takes tensors of this kind."""
    return E.device.type == "cpu" and E.dtype in (torch.float32, torch.float64)
