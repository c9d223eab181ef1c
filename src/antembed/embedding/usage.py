"""The size of a table: parameters by the paper's count, and bytes of the exported file."""

from dataclasses import dataclass

from torch import Tensor

from antembed.serving import file_size


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


def count_parameters(T: Tensor, A: Tensor | None) -> int:
    """nnz(T) + K·d over anchors in use."""
    return int(T.count_nonzero()) + (0 if A is None else int((T != 0).any(0).sum()) * A.shape[1])


def usage_of(T: Tensor, A: Tensor | None, padding_idx: int | None, row_index: Tensor | None = None) -> Usage:
    """Count E = T·A, or (T·A)[row_index]: a shared row counts once, and the row index counts as bytes, not as parameters. An
    anchor whose column of T is zero is not in use. The padding row is not counted. Zeros of a plain table (A is None) are not
    counted either."""
    T_array, A_array, rows = (None if part is None else part.detach().cpu().numpy() for part in (T, A, row_index))
    assert T_array is not None
    size = file_size(T_array, A_array, rows)
    V, K = len(T) if row_index is None else len(row_index), T.shape[1]
    if padding_idx is not None and row_index is not None:
        padding_idx = int(row_index[padding_idx])
    nnz = count_nonzeros(T, padding_idx)
    if A is None:
        return Usage(V, K, 0, 0, nnz, nnz, size)
    in_use = int((T != 0).any(dim=0).sum())
    return Usage(V, A.shape[1], K, in_use, nnz, nnz + in_use * A.shape[1], size)
