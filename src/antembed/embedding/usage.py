"""What a table costs, counted in one place: the paper's parameters and the exported file's bytes."""

from dataclasses import dataclass

from torch import Tensor

from antembed.serving import file_size


@dataclass(frozen=True)
class Usage:
    """objects V and dimensions d; anchors K and those in use; nnz(T); parameters nnz(T) + K·d; bytes of the small file."""

    objects: int
    dimensions: int
    anchors: int
    anchors_in_use: int
    nnz: int
    parameters: int
    bytes: int


def usage_of(transform: Tensor, anchors: Tensor | None, dimensions: int, padding_idx: int | None) -> Usage:
    """Count E = T·A. A column of zeros is no anchor in use; the padding row is not counted. No anchors: a plain table."""
    nonzero = transform != 0
    if padding_idx is not None:
        nonzero[padding_idx] = False
    bytes_ = file_size(
        transform.detach().cpu().numpy(), None if anchors is None else anchors.detach().cpu().numpy()
    )
    V, K = transform.shape
    if anchors is None:
        counted = (V - (padding_idx is not None)) * K
        return Usage(V, dimensions, V, V, counted, counted, bytes_)
    in_use, nnz = int(nonzero.any(dim=0).sum()), int(nonzero.sum())
    return Usage(V, dimensions, K, in_use, nnz, nnz + in_use * dimensions, bytes_)
