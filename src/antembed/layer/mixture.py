"""Mixtures of M sets of anchors: MixtureEmbedding is linear, Σ T_m·A_m; SoftmaxMixture is Σ softmax(T_m)·A_m.

The softmax of a sparse row is never materialized.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.types import Device

from antembed.layer.anchor import MixOfAnchors
from antembed.layer.embedding import Usage
from antembed.layer.row_table import RowTable, check_sizes, half_normal


def sparse_softmax_weights(t: Tensor) -> tuple[Tensor, Tensor]:
    """softmax(t) over K, for t ≥ 0 mostly zero, as w + c: w (*batch, K) is zero where t is, c (*batch, 1) is common to a row.

    softmax_k = e^{t_k}/Z = (e^{t_k} − 1)/Z + 1/Z with Z = K + Σ(e^{t_k} − 1); the row's maximum is subtracted from all
    exponents, so nothing overflows."""
    top = t.amax(dim=-1, keepdim=True).detach()
    base = torch.exp(-top)
    risen = torch.exp(t - top) - base
    total = risen.sum(-1, keepdim=True) + t.shape[-1] * base
    return risen / total, base / total


class MixtureEmbedding(MixOfAnchors):
    """ids (*batch) → vectors (*batch, d), the sum of the vectors of several sets of anchors.

    `num_anchors` is the size of each set, or one number, which is split into two sets."""

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        *,
        num_anchors: int | Sequence[int] = (8, 8),
        sparse: bool = False,
        device: Device = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__()
        if isinstance(num_anchors, int):
            half = num_anchors // 2
            num_anchors = (num_anchors - half, half) if half else (num_anchors,)
        if not num_anchors:
            raise ValueError("num_anchors names the size of each set, e.g. (5, 5); got none")
        self.rows, self.anchors = nn.ModuleList(), nn.ParameterList()
        for K in num_anchors:
            check_sizes(num_embeddings, embedding_dim, K, dtype)
            weight = half_normal(num_embeddings, K, device=device, dtype=dtype)
            self.rows.append(RowTable(weight, padding_idx, sparse))
            self.anchors.append(nn.Parameter(half_normal(K, embedding_dim, device=device, dtype=dtype)))

    @property
    def pairs(self) -> list[tuple[RowTable, Tensor]]:
        return list(zip(self.tables, self.anchors, strict=True))

    @property
    def embedding_dim(self) -> int:
        return self.anchors[0].shape[1]

    @property
    def num_anchors(self) -> tuple[int, ...]:
        return tuple(A.shape[0] for A in self.anchors)

    def forward(self, ids: Tensor) -> Tensor:
        return torch.stack([table(ids) @ A for table, A in self.pairs]).sum(0)

    def factors(self) -> tuple[Tensor, Tensor]:
        """All T_m side by side, all A_m stacked."""
        return torch.cat([table.current for table in self.tables], 1), torch.cat(list(self.anchors))

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, num_anchors={self.num_anchors}"


class SoftmaxMixture(MixtureEmbedding):
    """The paper's nonlinear mixture: each set's vector is softmax(T_m[i])·A_m."""

    softmax = True

    def forward(self, ids: Tensor) -> Tensor:
        sets = [(sparse_softmax_weights(table(ids)), A) for table, A in self.pairs]
        first, *rest = [weights @ A + share * A.sum(0) for (weights, share), A in sets]
        total = sum(rest, first)
        if self.padding_idx is not None:  # the softmax of a zero row is uniform, but padding is the zero vector
            total = total * (ids != self.padding_idx).unsqueeze(-1)
        return total

    def factors(self) -> tuple[Tensor, Tensor]:
        """T and A with E = T·A. The share common to a row is one more anchor, Σ_k a_k, that every object uses."""
        T = torch.cat([part for table in self.tables for part in sparse_softmax_weights(table.current)], 1)
        if self.padding_idx is not None:
            T = T * (torch.arange(len(T), device=T.device) != self.padding_idx).unsqueeze(1)
        return T, torch.cat([part for A in self.anchors for part in (A, A.sum(0, keepdim=True))])

    def usage(self) -> Usage:
        """Counted over all sets: nnz of every T_m and all anchors; bytes are those of the file, which holds one T·A."""
        exported = super().usage()
        T, K = torch.cat([table.current for table in self.tables], 1), sum(self.num_anchors)
        # A softmax uses every anchor, even one without a non-zero weight; the common share is no parameter.
        nnz = int(T.count_nonzero()) - (0 if self.padding_idx is None else int(T[self.padding_idx].count_nonzero()))
        return replace(exported, anchors=K, anchors_in_use=K, nnz=nnz, parameters=nnz + K * self.embedding_dim)
