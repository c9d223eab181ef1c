"""The order of an epoch: it depends on the seed and the epoch only, so that a resumed run sees what it would have seen."""

import numpy as np
import torch
from torch import Tensor


def shuffled(columns: tuple[Tensor, ...], seed: int, epoch: int) -> tuple[Tensor, ...]:
    """Aligned columns in the order of this epoch; batches are then slices."""
    order = torch.from_numpy(np.random.default_rng([seed, epoch]).permutation(len(columns[0])))
    return tuple(column[order.to(column.device)] for column in columns)
