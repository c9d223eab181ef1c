"""Vocabulary selection: which objects keep a row, and how a table is stored when the others have none.

FrequencyEmbedding and TfidfEmbedding select by a score before training; all other objects share one row. Group lasso and
variational dropout select by training: rows of zeros are left out of the file.
"""

import torch
from torch import Tensor


def largest(scores: Tensor, n: int) -> Tensor:
    """True at the n largest scores (V,), of equal ones the first."""
    if n < 0:
        raise ValueError(f"the number of rows to keep must be ≥ 0, got {n}")
    kept = torch.zeros(len(scores), dtype=torch.bool, device=scores.device)
    kept[torch.argsort(scores, descending=True, stable=True)[:n]] = True
    return kept


def without_zero_rows(E: Tensor) -> tuple[Tensor, Tensor | None]:
    """E (V, d) → rows (R, d), row_index (V,) with E = rows[row_index]: all rows of zeros are one, the last. An index is two
    bytes where columns of a sparse table would be 1 + d/8. None where there are not two such rows."""
    left = (E != 0).any(dim=1)
    if int(left.sum()) > len(E) - 2:
        return E, None
    row_index = torch.where(left, left.cumsum(0) - 1, left.sum())
    return torch.cat([E[left], E.new_zeros(1, E.shape[1])]), row_index
