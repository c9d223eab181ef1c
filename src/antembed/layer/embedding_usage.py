"""The size of a table: parameters by the paper's count, and bytes of the exported file."""

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from antembed.tables.nonzeros import Nonzeros
from antembed.tables.save import file_size


@dataclass(frozen=True)
class Usage:
    """K `anchors` (0: a plain table) and those in use; nnz(T) + K·d parameters; bytes of the exported file."""

    num_embeddings: int
    embedding_dim: int
    anchors: int
    anchors_in_use: int
    nnz: int
    parameters: int
    bytes: int


def count_nonzeros(T: Tensor, padding_idx: int | None) -> int:
    """nnz(T) without the padding row."""
    return int(T.count_nonzero()) - (0 if padding_idx is None else int(T[padding_idx].count_nonzero()))


def usage_of(
    T: np.ndarray | Nonzeros, A: np.ndarray | None, row_index: np.ndarray | None = None, padding_idx: int | None = None
) -> Usage:
    """Count E = T·A, or (T·A)[row_index]: a shared row counts once, and the row index counts as bytes, not as parameters. An
    anchor whose column of T is zero is not in use. The padding row is not counted. Zeros of a plain table (A is None) are not
    counted either."""
    found = T if isinstance(T, Nonzeros) else Nonzeros.of(T)
    size = file_size(found, A, row_index)
    V, K = len(T) if row_index is None else len(row_index), found.width
    if padding_idx is not None and row_index is not None:
        padding_idx = int(row_index[padding_idx])
    nnz = len(found.values) - (0 if padding_idx is None else int(found.counts[padding_idx]))
    if A is None:
        return Usage(V, K, 0, 0, nnz, nnz, size)
    in_use = int((found.by_column() > 0).sum())
    return Usage(V, A.shape[1], K, in_use, nnz, nnz + in_use * A.shape[1], size)
