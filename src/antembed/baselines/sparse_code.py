"""SparseCodeEmbedding (Chen et al. 2016): common words have vectors, all others are fixed sparse combinations of those.

They are computed before training from features of the words (pretrained vectors, co-occurrences).
"""

from typing import Unpack

import torch
from torch import Tensor

from antembed.baselines.low_rank import LowRankEmbedding
from antembed.layer.anchor import AnchorOptions
from antembed.layer.factorize import descend_transform
from antembed.layer.row_table import RowTable

RANDOM_CODE = 4  # non-zeros of a random code


@torch.no_grad()
def sparse_codes(features: Tensor, common: Tensor, *, l1_penalty: float = 0.1, sweeps: int = 30) -> Tensor:
    """features (V, f), ids of common words (K,) → T (V, K). A common word is itself. For every other word,
    min_{t ≥ 0} ½‖f − t·F‖² + l1_penalty·‖t‖₁ by coordinate descent, where F are the common words' features. All features are
    scaled to length 1, since a mix says which words, not how large; a word without features has a row of zeros."""
    K = len(common)
    if len(common.unique()) < K:
        raise ValueError(f"{K} common words are named, but only {len(common.unique())} different ones")
    directions = torch.nn.functional.normalize(features)
    F = directions[common]
    T = directions.new_zeros(len(directions), K)
    descend_transform(directions, F, T, l1_penalty, sweeps)
    T[common] = torch.eye(K, device=T.device, dtype=T.dtype)
    return T


class SparseCodeEmbedding(LowRankEmbedding):
    """ids (*batch) → vectors (*batch, d) = T[ids]·A with T (V, K) = `codes`, fixed, and A learned: the common words' vectors.

    Without `codes` they are random: each of the first K words is itself, every other word a mix of at most four of them. That
    is no more than a hash, and meant for tests and for loading a checkpoint."""

    requires = frozenset({"features"})
    small_init = None

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        *,
        codes: Tensor | None = None,
        std: float = 1.0,
        **options: Unpack[AnchorOptions],
    ):
        super().__init__(num_embeddings, embedding_dim, padding_idx, std=std, **options)
        self.rows.weight.requires_grad_(False)
        V, K = self.rows.weight.shape
        if codes is not None and codes.shape != (V, K):
            raise ValueError(
                f"codes have the shape {tuple(codes.shape)}, for {V} objects of {K} common ones; take them from sparse_codes(…)"
            )
        drawn = self.new_rows(self.rows, V)
        drawn[:K] = torch.eye(K)[:V]
        self.rows.reset_to(drawn if codes is None else codes)

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Initialize A anew, as at construction; the codes stay."""
        self.anchors.normal_(std=self.std * self.embedding_dim**-0.5)

    def new_rows(self, table: RowTable, n: int) -> Tensor:
        """n random codes."""
        weights = torch.rand(n, table.embedding_dim, device=table.weight.device, dtype=table.weight.dtype)
        size = min(RANDOM_CODE, table.embedding_dim)
        least = weights.topk(size, dim=1).values[:, -1:]
        return torch.where(weights >= least, weights / size, 0.0)
