"""A trained table → sparse combinations of K vectors: by the nearest of K centres (post-sparse hash), or by k-SVD."""

import torch
from torch import Tensor, nn

from antembed.baselines.low_rank import LowRankEmbedding
from antembed.baselines.product_quantized import learn_book, vectors_of
from antembed.layer.embedding import Embedding

ROWS_AT_ONCE = 1 << 11  # their small systems are held


@torch.no_grad()
def post_sparse_hash(
    weight: Tensor | nn.Embedding | Embedding, *, num_anchors: int, nonzeros: int, iterations: int = 15, seed: int = 0
) -> LowRankEmbedding:
    """Anchors are k-means centres; each row is the best mix (least squares) of its `nonzeros` nearest (Guo et al. 2017)."""
    E = vectors_of(weight)
    _check(num_anchors, nonzeros, len(E))
    A = learn_book(E, num_anchors, iterations, torch.Generator().manual_seed(seed))
    T = E.new_zeros(len(E), num_anchors)
    for rows in torch.arange(len(E)).split(ROWS_AT_ONCE):
        distances = A.square().sum(1) - 2 * E[rows] @ A.T
        _least_squares(E[rows], A, distances.topk(nonzeros, largest=False).indices, T, rows)
    return _layer(E, T, A)


@torch.no_grad()
def ksvd(
    weight: Tensor | nn.Embedding | Embedding, *, num_anchors: int, nonzeros: int, iterations: int = 10, seed: int = 0
) -> LowRankEmbedding:
    """k-SVD (Aharon et al. 2006): orthogonal matching pursuit for the rows; then anchor by anchor, with the weights of it, the
    best rank one of what the others leave (one power step, Rubinstein et al. 2008)."""
    E = vectors_of(weight)
    _check(num_anchors, nonzeros, len(E))
    generator = torch.Generator().manual_seed(seed)
    some = torch.randperm(len(E), generator=generator)[:num_anchors]
    A = nn.functional.normalize(E[some] + 1e-6 * torch.randn(num_anchors, E.shape[1], generator=generator))
    T = pursuit(E, A, nonzeros)
    for _ in range(iterations):
        left = E - T @ A
        for k in range(num_anchors):
            rows = T[:, k].nonzero()[:, 0]
            if not len(rows):  # unused: take the row that is worst
                A[k] = nn.functional.normalize(left[left.square().sum(1).argmax()], dim=0)
                continue
            own = left[rows] + T[rows, k : k + 1] * A[k]
            A[k] = nn.functional.normalize(T[rows, k] @ own, dim=0)
            T[rows, k] = own @ A[k]
            left[rows] = own - T[rows, k : k + 1] * A[k]
        T = pursuit(E, A, nonzeros)
    return _layer(E, T, A)


def pursuit(E: Tensor, A: Tensor, nonzeros: int) -> Tensor:
    """Orthogonal matching pursuit: rows (V, d) by `nonzeros` of the vectors A (K, d), of length 1, each → T (V, K)."""
    T = E.new_zeros(len(E), len(A))
    for rows in torch.arange(len(E)).split(ROWS_AT_ONCE):
        chosen = torch.empty(len(rows), 0, dtype=torch.int64)
        left = E[rows]
        for _ in range(nonzeros):
            fit = (left @ A.T).abs().scatter(1, chosen, -1.0)
            chosen = torch.cat([chosen, fit.argmax(1, keepdim=True)], 1)
            _least_squares(E[rows], A, chosen, T, rows)
            left = E[rows] - T[rows] @ A
    return T


def _least_squares(E: Tensor, A: Tensor, chosen: Tensor, T: Tensor, rows: Tensor) -> None:
    """Row n of T: the best weights of the anchors chosen[n]."""
    B = A[chosen]  # (n, s, d)
    gram = B @ B.transpose(1, 2)
    gram.diagonal(dim1=1, dim2=2).add_(1e-6 * gram.diagonal(dim1=1, dim2=2).mean() + torch.finfo(E.dtype).tiny)
    weights = torch.linalg.solve(gram, B @ E.unsqueeze(2)).squeeze(2)
    T[rows] = 0
    T[rows.unsqueeze(1), chosen] = weights


def _check(K: int, nonzeros: int, V: int) -> None:
    if not 1 <= nonzeros <= K <= V:
        raise ValueError(f"{nonzeros} of {K} anchors for {V} rows; there must be 1 ≤ nonzeros ≤ num_anchors ≤ rows")


def _layer(E: Tensor, T: Tensor, A: Tensor) -> LowRankEmbedding:
    layer = LowRankEmbedding(*E.shape, num_anchors=len(A), dtype=E.dtype)
    layer.rows.reset_to(T)
    layer.anchors.copy_(A)
    layer.reconstruction_error = float((E - T @ A).norm() / E.norm().clamp(min=1e-30))
    return layer
