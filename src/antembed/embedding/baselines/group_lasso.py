"""GroupLassoEmbedding: a full table whose rows pay for their lengths, so that whole objects are dropped."""

from typing import Any

import torch
from torch import Tensor

from antembed.embedding.base import check_kept
from antembed.embedding.baselines.full import PlainTable
from antembed.embedding.baselines.selection import largest, without_zero_rows
from antembed.optim.prox import GroupL2


class GroupLassoEmbedding(PlainTable):
    """ids (*batch) → vectors (*batch, d), with the penalty l1_penalty·Σ_v ‖e_v‖₂.

    No closed form says where an idle row is after many steps of this prox and a fading momentum. So the prox acts every
    `every`-th step, for all of them at once and in the plain metric, and in between rows are exactly lazy. (All lengths fall by
    lr·l1_penalty a step, so with Yogi the penalty is some hundred times what it would be in its metric: think of 0.1 to 10.)
    every=1 is the prox at each step, in the optimizer's metric: dense, whatever `sparse` says, 20 s a step for 62,000 × 256.
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        *,
        every: int = 32,
        sparse: bool = False,
        std: float | None = None,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__(num_embeddings, embedding_dim, padding_idx, sparse=sparse, std=std, device=device, dtype=dtype)
        self.every = every

    def param_groups(self, l1_penalty: float) -> list[dict[str, Any]]:
        """One group, with the penalty l1_penalty·Σ‖e_v‖₂."""
        return [{"params": [self.rows.weight], "prox": GroupL2(l1_penalty, self.every), "table": self.rows}]

    @torch.no_grad()
    def keep_rows(self, n: int) -> int:
        """Set all but the n longest rows to zero; → how many that were not zero."""
        lengths = self.rows.current.norm(dim=1)
        dropped = ~largest(lengths, n)
        self.rows.weight[dropped] = 0
        return int((dropped & (lengths > 0)).sum())

    def keep(self, n: int) -> int:
        """As many whole rows as have n weights."""
        check_kept(n)
        return self.keep_rows(n // self.embedding_dim) * self.embedding_dim

    def factors(self) -> tuple[Tensor, None]:
        return without_zero_rows(self.rows.current)[0], None

    def row_index(self) -> Tensor | None:
        return without_zero_rows(self.rows.current)[1]
