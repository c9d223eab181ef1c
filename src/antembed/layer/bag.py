"""AnchorEmbeddingBag: sums or means over bags of objects, computed on the K weights before multiplying by the anchors."""

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.types import Device

from antembed.layer.anchor import DEFAULT_ANCHORS, AnchoredTable, more_half_normal
from antembed.layer.lookup import SumBags
from antembed.layer.optim.prox import FreeEntries, NonNegativeL1
from antembed.layer.row_table import RowTable, check_integers


class AnchorEmbeddingBag(AnchoredTable):
    """A drop-in replacement for nn.EmbeddingBag with mode "sum" or "mean": ids → one vector per bag, (B, d).

    ids is (B, n), one bag per row, or 1-D with `offsets` (B), where each bag starts; with include_last_offset, offsets end
    with len(ids). Padding ids are left out of sums and counts. `per_sample_weights` (as ids) go with mode "sum" only.
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        *,
        num_anchors: int = DEFAULT_ANCHORS,
        mode: str = "mean",
        include_last_offset: bool = False,
        sparse: bool = False,
        device: Device = None,
        dtype: torch.dtype | None = None,
    ):
        if mode not in ("sum", "mean"):
            raise ValueError(f"mode is 'sum' or 'mean', not {mode!r}: a maximum does not commute with the anchors")
        super().__init__(
            num_embeddings,
            embedding_dim,
            padding_idx,
            num_anchors=num_anchors,
            sparse=sparse,
            device=device,
            dtype=dtype,
        )
        self.mode = mode
        self.include_last_offset = include_last_offset

    def penalty_for(self, l1_penalty: float, free: FreeEntries | None) -> NonNegativeL1:
        return NonNegativeL1(l1_penalty, free)

    def new_rows(self, table: RowTable, n: int) -> Tensor:
        return more_half_normal(table, n)

    def forward(self, ids: Tensor, offsets: Tensor | None = None, per_sample_weights: Tensor | None = None) -> Tensor:
        check_integers(ids)
        if per_sample_weights is not None and self.mode != "sum":
            raise ValueError(f"per_sample_weights go with mode='sum', this bag has mode={self.mode!r}")
        if self.rows.pending is not None or self.rows.shared:
            return self._from_rows(ids, offsets, per_sample_weights) @ self.anchors
        if not torch.compiler.is_compiling() and ids.device.type == "cpu":
            self.rows.check_range(ids)
        mixed = F.embedding_bag(
            ids,
            self.rows.weight,
            offsets,
            mode=self.mode,
            sparse=self.rows.sparse,
            per_sample_weights=per_sample_weights,
            include_last_offset=self.include_last_offset,
            padding_idx=self.padding_idx,
        )
        return mixed @ self.anchors

    def coordinates(self, ids: Tensor) -> tuple[Tensor, None]:
        return self(ids), None  # forward applies the anchors to B vectors only

    def _from_rows(self, ids: Tensor, offsets: Tensor | None, per_sample: Tensor | None) -> Tensor:
        """Weights of the bags (B, K), from rows read through the optimizer's lazy state."""
        if ids.dim() == 2:
            if offsets is not None:
                raise ValueError("offsets go with 1-D ids; these are 2-D, with one bag per row")
            B, n = ids.shape
            bounds = torch.arange(0, B * n + 1, max(n, 1), device=ids.device) if n else ids.new_zeros(B + 1, dtype=torch.long)
            ids, per_sample = ids.reshape(-1), None if per_sample is None else per_sample.reshape(-1)
        else:
            if offsets is None:
                raise ValueError("1-D ids need offsets, the position at which each bag starts")
            B = len(offsets) - self.include_last_offset
            bounds = torch.cat([offsets[:B].long(), torch.tensor([len(ids)], device=ids.device)])
            if ids.device.type == "cpu":
                check_bounds(bounds)
        bag = torch.searchsorted(bounds[:B], torch.arange(len(ids), device=ids.device), right=True) - 1
        counted = torch.ones_like(ids, dtype=self.rows.weight.dtype)
        if self.padding_idx is not None:
            counted = (ids != self.padding_idx).to(counted)
        weights = counted if per_sample is None else counted * per_sample.to(counted)
        groups, pending = self.rows.groups(ids), self.rows.pending
        if groups is not None and pending is not None:
            mixed = SumBags.apply(self.rows.weight, weights.contiguous(), bag, bounds, groups, self.padding_idx, pending)
        else:
            mixed = weights.new_zeros(B, self.num_anchors).index_add(0, bag, self.rows(ids) * weights.unsqueeze(1))
        if self.mode == "mean":
            mixed = mixed / counted.new_zeros(B).index_add(0, bag, counted).clamp(min=1).unsqueeze(1)
        return mixed

    def extra_repr(self) -> str:
        return super().extra_repr() + f", mode={self.mode!r}"


def check_bounds(bounds: Tensor) -> None:
    """Raise if bags do not begin at 0, or overlap, or end after the last id; bounds: (B + 1,)."""
    if int(bounds[0]) != 0 or bool((bounds.diff() < 0).any()):
        raise ValueError(
            f"offsets begin with 0, never fall, and are at most the number of ids, {int(bounds[-1])}; these begin with "
            f"{int(bounds[0])} and reach {int(bounds[:-1].max()) if len(bounds) > 1 else 0}"
        )
