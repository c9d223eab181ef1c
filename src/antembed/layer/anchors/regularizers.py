"""Penalties of the paper's extensions: unrelated objects should share no anchors, anchors should be orthogonal."""

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from antembed.data.vocabulary import RESERVED

TRIES = 100  # draws of pairs before it gives up: nearly all objects are related


def negative_pairs(t_u: Tensor, t_v: Tensor) -> Tensor:
    """Σ over pairs of |t_u|·|t_v|, rows of T (n, K) each: zero when no pair has an anchor in common."""
    return (t_u.abs() * t_v.abs()).sum()


def orthogonality(A: Tensor, *, cosine: bool = False) -> Tensor:
    """Σ_{i≠j} |a_i·a_j| over the anchors A (K, d), or over their cosines, which do not depend on the scale of A."""
    if cosine:
        A = torch.nn.functional.normalize(A, dim=1)
    gram = A @ A.T
    return (gram - torch.diag(gram.diagonal())).abs().sum()


class UnrelatedPairs:
    """Draws pairs of different, unrelated objects, seeded by the step: a resumed run draws the same pairs.

        pairs = UnrelatedPairs(relations, seed=0)
        u, v = pairs(256, step, among=words_of_the_batch)
        loss = loss + weight * negative_pairs(layer.rows(u), layer.rows(v))

    With lazy rows, draw among the words of the batch, so that a step touches no other rows."""

    def __init__(self, relations: sparse.csr_array, *, seed: int = 0, reserved: int = RESERVED):
        self.V, self.seed, self.reserved = relations.shape[0], seed, reserved
        related = relations.astype(bool)
        self.related = (related + related.T).tocsr()  # in both directions, also for relations that are not symmetric

    def __call__(self, n: int, step: int, among: np.ndarray | Tensor | None = None) -> tuple[Tensor, Tensor]:
        """n pairs as two int64 tensors. `among`: ids to draw from (repeated ones are more likely); None: all objects."""
        rng = np.random.default_rng((self.seed, step))
        ids = np.arange(self.reserved, self.V) if among is None else np.asarray(among, np.int64).ravel()
        ids = ids[ids >= self.reserved]
        found = np.empty((2, 0), np.int64)
        for _ in range(TRIES if len(ids) else 0):
            u, v = ids[rng.integers(0, len(ids), (2, 2 * (n - found.shape[1]) + 8))]
            good = (u != v) & ~np.asarray(self.related[u, v])
            found = np.concatenate([found, np.stack([u[good], v[good]])], axis=1)[:, :n]
            if found.shape[1] == n:
                return torch.from_numpy(found[0].copy()), torch.from_numpy(found[1].copy())
        raise ValueError(
            f"only {found.shape[1]} of {n} unrelated pairs were found among {len(np.unique(ids))} objects in {TRIES} tries; "
            "draw among more objects, or filter the relations"
        )
