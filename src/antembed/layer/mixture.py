"""Mixtures of M sets of anchors: MixtureEmbedding is linear, Σ T_m·A_m; SoftmaxMixture is Σ softmax(T_m)·A_m, where the softmax
of a sparse row is never materialized."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.types import Device

from antembed.layer.anchor import more_half_normal
from antembed.layer.embedding import Embedding, Usage, count_nonzeros
from antembed.layer.optim.prox import NonNegativeL1
from antembed.layer.optim.proximal import Group
from antembed.layer.row_table import RowTable, check_sizes, half_normal


def sparse_softmax_weights(t: Tensor) -> tuple[Tensor, Tensor]:
    """softmax(t) over K, for t ≥ 0 mostly zero, as w + c: w (*batch, K) is zero where t is, c (*batch, 1) is common to a row.

    softmax_k = e^{t_k}/Z = (e^{t_k} − 1)/Z + 1/Z with Z = K + Σ(e^{t_k} − 1); the row's maximum is subtracted from all
    exponents, so nothing overflows.
    """
    top = t.amax(dim=-1, keepdim=True).detach()
    base = torch.exp(-top)
    risen = torch.exp(t - top) - base
    total = risen.sum(-1, keepdim=True) + t.shape[-1] * base
    return risen / total, base / total


class MixtureEmbedding(Embedding):
    """ids (*batch) → vectors (*batch, d), the sum of the vectors of several sets of anchors.

    `num_anchors` is the size of each set, or one number, which is split into two sets.
    """

    anchored = True
    uses_anchors = True

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
    def tables(self) -> list[RowTable]:
        return [table for table in self.rows if isinstance(table, RowTable)]

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
        rows = [table(ids) for table in self.tables]
        return torch.stack([t @ A for t, A in zip(rows, self.anchors, strict=True)]).sum(0)

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Initialize all T_m and A_m anew, as at construction. An optimizer keeps its moments: make a new one."""
        for table, A in self.pairs:
            table.reset_to(half_normal(*table.weight.shape, device=A.device, dtype=A.dtype))
            A.copy_(half_normal(*A.shape, device=A.device, dtype=A.dtype))

    def new_rows(self, table: RowTable, n: int) -> Tensor:
        return more_half_normal(table, n)

    def param_groups(self, l1_penalty: float) -> list[Group]:
        """Optimizer groups: each T_m with its penalty, then all A_m without one."""
        tables = [{"params": [t.weight], "prox": NonNegativeL1(l1_penalty), "table": t} for t in self.tables]
        return [*tables, {"params": list(self.anchors)}]

    def factors(self) -> tuple[Tensor, Tensor]:
        """All T_m side by side, all A_m stacked."""
        return torch.cat([table.current for table in self.tables], 1), torch.cat(list(self.anchors))

    def extra_repr(self) -> str:
        return f"{self.num_embeddings}, {self.embedding_dim}, num_anchors={self.num_anchors}"


class SoftmaxMixture(MixtureEmbedding):
    """The paper's nonlinear mixture: each set's vector is softmax(T_m[i])·A_m."""

    softmax = True

    def forward(self, ids: Tensor) -> Tensor:
        rows = [table(ids) for table in self.tables]
        total: Tensor | None = None
        for t, A in zip(rows, self.anchors, strict=True):
            weights, share = sparse_softmax_weights(t)
            part = weights @ A + share * A.sum(0)
            total = part if total is None else total + part
        assert total is not None
        if self.padding_idx is not None:  # the softmax of a zero row is uniform, but padding is the zero vector
            total = total * (ids != self.padding_idx).unsqueeze(-1)
        return total

    def factors(self) -> tuple[Tensor, Tensor]:
        """T and A with E = T·A. The share common to a row is one more anchor, Σ_k a_k, that every object uses."""
        columns: list[Tensor] = []
        vectors: list[Tensor] = []
        for table, A in self.pairs:
            columns += sparse_softmax_weights(table.current)
            vectors += [A, A.sum(0, keepdim=True)]
        T = torch.cat(columns, 1)
        if self.padding_idx is not None:
            T = T * (torch.arange(len(T), device=T.device) != self.padding_idx).unsqueeze(1)
        return T, torch.cat(vectors)

    def usage(self) -> Usage:
        """Counted over all sets: nnz of every T_m and all anchors; bytes are those of the file, which holds one T·A."""
        exported = super().usage()
        T, K = torch.cat([table.current for table in self.tables], 1), sum(self.num_anchors)
        # A softmax uses every anchor, even one without a non-zero weight; the common share is no parameter.
        nnz = count_nonzeros(T, self.padding_idx)
        return replace(exported, anchors=K, anchors_in_use=K, nnz=nnz, parameters=nnz + K * self.embedding_dim)
