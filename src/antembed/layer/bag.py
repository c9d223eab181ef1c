"""AnchorEmbeddingBag: sums or means over bags of objects, computed on the K weights before multiplying by the anchors."""

from typing import Unpack

import torch
import torch.nn.functional as F
from torch import Tensor

from antembed.layer.anchor import AnchoredTable, AnchorOptions
from antembed.layer.row_table import check_ids, check_integers


class AnchorEmbeddingBag(AnchoredTable):
    """A drop-in replacement for nn.EmbeddingBag with mode "sum" or "mean": ids → one vector per bag, (B, d).

    ids is (B, n), one bag per row, or 1-D with `offsets` (B), where each bag starts; with include_last_offset, offsets end
    with len(ids). Padding ids are left out of sums and counts. `per_sample_weights` (as ids) go with mode "sum" only."""

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        *,
        mode: str = "mean",
        include_last_offset: bool = False,
        **options: Unpack[AnchorOptions],
    ):
        if mode not in ("sum", "mean"):
            raise ValueError(f"mode is 'sum' or 'mean', not {mode!r}: a maximum does not commute with the anchors")
        super().__init__(num_embeddings, embedding_dim, padding_idx, **options)
        self.mode, self.include_last_offset = mode, include_last_offset

    def forward(self, ids: Tensor, offsets: Tensor | None = None, per_sample_weights: Tensor | None = None) -> Tensor:
        check_integers(ids)
        if per_sample_weights is not None and self.mode != "sum":
            raise ValueError(f"per_sample_weights go with mode='sum', this bag has mode={self.mode!r}")
        if offsets is not None and offsets.device.type == "cpu" and not torch.compiler.is_compiling():
            check_offsets(offsets, len(ids))
        rows, padding, sparse = self.rows.weight, self.padding_idx, self.rows.sparse
        if self.rows.pending is not None or self.rows.shared:
            ids, rows, padding = self._distinct(ids)
            sparse, offsets = False, None if offsets is None else offsets.long()
        else:
            check_ids(ids, self.num_embeddings)
        mixed = F.embedding_bag(
            ids,
            rows,
            offsets,
            mode=self.mode,
            sparse=sparse,
            per_sample_weights=per_sample_weights,
            include_last_offset=self.include_last_offset,
            padding_idx=padding,
        )
        return mixed @ self.anchors

    def _distinct(self, ids: Tensor) -> tuple[Tensor, Tensor, int | None]:
        """The index of each id among the distinct ones, their rows, up to date, and the index of the padding."""
        if (groups := self.rows.groups(ids)) is not None:
            distinct, index = torch.from_numpy(groups.unique), torch.from_numpy(groups.group).long().view(ids.shape)
        else:
            distinct, index = ids.unique(return_inverse=True)
        padding = None if self.padding_idx is None else (distinct == self.padding_idx).nonzero()[:, 0].tolist()
        return index, self.rows(distinct), padding[0] if padding else None

    def coordinates(self, ids: Tensor) -> tuple[Tensor, None]:
        return self(ids), None  # forward applies the anchors to B vectors only

    def extra_repr(self) -> str:
        return super().extra_repr() + f", mode={self.mode!r}"


def check_offsets(offsets: Tensor, n: int) -> None:
    """Raise if bags of n ids do not begin at 0, or overlap, or begin after the last id: torch does not see every such case."""
    if len(offsets) and (int(offsets[0]) != 0 or bool((offsets.diff() < 0).any()) or int(offsets[-1]) > n):
        raise ValueError(
            f"offsets begin with 0, never fall, and are at most the number of ids, {n}; these begin with "
            f"{int(offsets[0])} and reach {int(offsets.max())}"
        )
