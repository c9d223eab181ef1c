"""What a table costs, counted in one place: the paper's parameters and the exported file's bytes."""

from dataclasses import dataclass

from torch import Tensor

from antembed.serving import file_size


@dataclass(frozen=True)
class Usage:
    """V objects of d dimensions; K anchors (0: a plain table) and those in use; nnz(T) + K·d parameters; bytes of the file."""

    objects: int
    dimensions: int
    anchors: int
    anchors_in_use: int
    nnz: int
    parameters: int
    bytes: int


def count_nonzeros(T: Tensor, padding_idx: int | None) -> int:
    """nnz(T); a padding row has nothing that counts."""
    return int(T.count_nonzero()) - (0 if padding_idx is None else int(T[padding_idx].count_nonzero()))


def usage_of(T: Tensor, A: Tensor | None, padding_idx: int | None) -> Usage:
    """Count E = T·A. A column of zeros is no anchor in use; the padding row is not counted. No A: a plain table."""
    V, K = T.shape
    size = file_size(T.detach().cpu().numpy(), None if A is None else A.detach().cpu().numpy())
    if A is None:
        counted = (V - (padding_idx is not None)) * K
        return Usage(V, K, 0, 0, counted, counted, size)
    in_use, nnz = int((T != 0).any(dim=0).sum()), count_nonzeros(T, padding_idx)
    return Usage(V, A.shape[1], K, in_use, nnz, nnz + in_use * A.shape[1], size)
