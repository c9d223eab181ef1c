"""GroupLassoEmbedding: a full table with a penalty on the length of every row, which sets entire rows to zero."""

from typing import Unpack

import torch
from torch import Tensor

from antembed.baselines.variational import largest, without_zero_rows
from antembed.layer.embedding import check_kept
from antembed.layer.full import PlainTable, TableOptions
from antembed.layer.optim.prox import GroupL2


class GroupLassoEmbedding(PlainTable):
    """ids (*batch) → vectors (*batch, d), with the penalty l1_penalty·Σ_v ‖e_v‖₂.

    There is no closed form for an idle row after many steps of this prox and a fading momentum. So the prox acts at every
    `every`-th step only, for all skipped steps at once and in the plain metric; in between, rows are exactly lazy. (All lengths
    fall by lr·l1_penalty a step, so with Yogi the penalty is some hundred times larger than in Yogi's metric: try 0.1 to 10.)
    every=1 applies the prox at each step, in the optimizer's metric: dense whatever `sparse` is, 20 s a step for 62,000 × 256.
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        *,
        every: int = 32,
        **options: Unpack[TableOptions],
    ):
        super().__init__(num_embeddings, embedding_dim, padding_idx, **options)
        self.every = every

    def penalty(self, l1_penalty: float) -> GroupL2:
        return GroupL2(l1_penalty, self.every)

    @torch.no_grad()
    def keep_rows(self, n: int) -> int:
        """Set all but the n longest rows to zero; → how many of them were not zero before."""
        lengths = self.rows.current.norm(dim=1)
        dropped = ~largest(lengths, n)
        self.rows.weight[dropped] = 0
        return int((dropped & (lengths > 0)).sum())

    def keep(self, n: int) -> int:
        """Keep as many rows as have n weights."""
        check_kept(n)
        return self.keep_rows(n // self.embedding_dim) * self.embedding_dim

    def factors(self) -> tuple[Tensor, None]:
        return without_zero_rows(self.rows.current)[0], None

    def row_index(self) -> Tensor | None:
        return without_zero_rows(self.rows.current)[1]
