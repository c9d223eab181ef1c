"""Mini-batches: a shuffle that depends on the seed and the epoch only, so that a resumed run sees what it would have seen."""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor


def epoch_batches(columns: tuple[Tensor, ...], batch_size: int, seed: int, epoch: int) -> Iterator[tuple[Tensor, ...]]:
    """One pass over aligned columns in a new order; the last batch may be smaller."""
    order = torch.from_numpy(np.random.default_rng([seed, epoch]).permutation(len(columns[0])))
    shuffled = [column[order.to(column.device)] for column in columns]  # once an epoch; batches are then views
    return zip(*(column.split(batch_size) for column in shuffled), strict=True)
