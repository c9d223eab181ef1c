"""SparseCodeEmbedding (Chen et al. 2016): common words have vectors, all others are fixed sparse mixes of those, computed
before training from features of the words (pretrained vectors, co-occurrences)."""

import torch
from torch import Tensor
from torch.types import Device

from antembed.baselines.low_rank import normal_init_
from antembed.layer.anchor import DEFAULT_ANCHORS, AnchoredTable
from antembed.layer.factorize import descend_transform
from antembed.layer.optim.prox import FreeEntries
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
    unit = torch.nn.functional.normalize(features)
    F = unit[common]
    T = unit.new_zeros(len(unit), K)
    descend_transform(unit, F, T, l1_penalty, sweeps)
    T[common] = torch.eye(K, device=T.device, dtype=T.dtype)
    return T


class SparseCodeEmbedding(AnchoredTable):
    """ids (*batch) → vectors (*batch, d) = T[ids]·A with T (V, K) = `codes`, fixed, and A learned: the common words' vectors.

    Without `codes` they are random: each of the first K words is itself, every other word a mix of at most four of them. That
    is no more than a hash, and meant for tests and for loading a checkpoint.
    """

    requires = frozenset({"features"})

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
        device: Device = None,
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
        normal_init_(self)
        self.std = std
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

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Initialize A anew, as at construction; the codes stay."""
        self.anchors.normal_(std=self.std * self.embedding_dim**-0.5)

    def penalty_for(self, l1_penalty: float, free: FreeEntries | None) -> None:
        """None: the codes are fixed."""

    def new_rows(self, table: RowTable, n: int) -> Tensor:
        """n random codes."""
        weights = torch.rand(n, table.embedding_dim, device=table.weight.device, dtype=table.weight.dtype)
        size = min(RANDOM_CODE, table.embedding_dim)
        least = weights.topk(size, dim=1).values[:, -1:]
        return torch.where(weights >= least, weights / size, 0.0)
