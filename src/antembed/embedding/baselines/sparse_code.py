"""SparseCodeEmbedding (Chen et al. 2016): common words have vectors, all others are fixed sparse mixes of those, found
beforehand from features of the words (pretrained vectors, co-occurrences)."""

from typing import Any

import torch
from torch import Tensor

from antembed.embedding.anchor import DEFAULT_ANCHORS, AnchoredTable
from antembed.embedding.baselines.low_rank import start_normal
from antembed.embedding.factorize import descend_transform
from antembed.embedding.table import RowTable
from antembed.optim.prox import FreeEntries

FEW = 4  # words in a code that is drawn


@torch.no_grad()
def sparse_codes(features: Tensor, common: Tensor, *, l1_penalty: float = 0.1, sweeps: int = 30) -> Tensor:
    """features (V, f), common (K,) numbers of words → T (V, K): a common word is itself; for every other
    min_{t ≥ 0} ½‖f − t·F‖² + l1_penalty·‖t‖₁ by coordinate descent, F the common words' features. All features are taken at
    length 1, since a mix says which words, not how large; a word without features has no code."""
    K = len(common)
    if len(common.unique()) < K:
        raise ValueError(f"{K} common words are named, but only {len(common.unique())} different ones")
    unit = torch.nn.functional.normalize(features)
    F = unit[common]
    T = unit.new_zeros(len(unit), K)
    descend_transform(unit, F, T, l1_penalty, sweeps)
    T[common] = torch.eye(K, device=T.device, dtype=T.dtype)
    return T


class SparseCodeEmbedding(AnchoredTable):
    """ids (*batch) → vectors (*batch, d) = T[ids]·A with T (V, K) = `codes`, fixed, and A learned: the common words' vectors.

    None: codes are drawn, a word itself for the first K and at most four common words for each other. That is a hash into
    mixes, and as good as nothing; it is for tests, and for who loads a checkpoint.
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        *,
        num_anchors: int = DEFAULT_ANCHORS,
        codes: Tensor | None = None,
        sparse: bool = False,
        std: float = 1.0,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ):
        if codes is not None and codes.shape != (num_embeddings, num_anchors):
            raise ValueError(
                f"codes have the shape {tuple(codes.shape)}, for {num_embeddings} objects of {num_anchors} common ones; "
                "take them from sparse_codes(…)"
            )
        super().__init__(
            num_embeddings, embedding_dim, padding_idx, num_anchors=num_anchors, sparse=sparse, device=device, dtype=dtype
        )
        self.rows.weight.requires_grad_(False)
        start_normal(self)
        with torch.no_grad():
            self.anchors.mul_(std)
            if codes is not None:
                self.rows.weight.copy_(codes)
            else:
                own = min(num_embeddings, num_anchors)
                self.rows.weight[:own] = torch.eye(own, num_anchors, device=device, dtype=dtype)
            if self.padding_idx is not None:
                self.rows.weight[self.padding_idx].zero_()

    def forward(self, ids: Tensor) -> Tensor:
        return self.vectors(ids)

    def penalty_for(self, l1_penalty: float, free: FreeEntries | None) -> None:
        """None: codes do not change."""

    def new_rows(self, table: RowTable, n: int) -> Tensor:
        """n drawn codes."""
        weights = torch.rand(n, table.embedding_dim, device=table.weight.device, dtype=table.weight.dtype)
        least = weights.topk(min(FEW, table.embedding_dim), dim=1).values[:, -1:]
        return torch.where(weights >= least, weights / min(FEW, table.embedding_dim), 0.0)
