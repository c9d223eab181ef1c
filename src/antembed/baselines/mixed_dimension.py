"""MixedDimensionEmbedding (Ginart et al.): blocks by popularity, narrower for less popular objects, each projected to d."""

from collections.abc import Iterator
from itertools import count, pairwise, takewhile
from typing import Unpack

import numpy as np
import torch
from torch import Tensor, nn

from antembed.baselines.hashed import SharedRows, ids_by_count
from antembed.files import JSON
from antembed.layer.full import TableOptions
from antembed.layer.row_table import RowTable, check_ids


def blocks_of(popularity: np.ndarray, blocks: int, d: int, alpha: float) -> list[tuple[int, int]]:
    """Objects in falling order of popularity → (objects, width) of each block, at most `blocks` of them.

    Every block has about the same share of all occurrences. Its width is d·(p/p₀)^alpha, p the mean popularity in it and p₀
    that of the first, rounded to a power of two, 1 at least; the first has d."""
    p = popularity if popularity.sum() > 0 else np.ones(len(popularity))
    if not len(p):
        return [(0, d)]
    before = (np.cumsum(p) - p) / p.sum()
    sizes = np.bincount(np.minimum((before * blocks).astype(int), blocks - 1))
    ends = np.cumsum([0, *sizes[sizes > 0]])
    means = [p[start:stop].mean() for start, stop in pairwise(ends)]
    widths = [d * (mean / means[0]) ** alpha for mean in means]
    rounded = [d if width >= d else min(d, max(1, 2 ** round(np.log2(max(width, 1))))) for width in widths]
    return [(int(size), width) for size, width in zip(np.diff(ends), rounded, strict=True)]


class MixedDimensionEmbedding(SharedRows):
    """ids (*batch) → vectors (*batch, d). `counts` (V,) says how often each object occurs; without it, ids are taken to be
    sorted by popularity, which falls as 1/rank. `num_anchors` has no effect (`uses_anchors` is False)."""

    requires = frozenset({"counts"})
    small_init = 0.01
    row_of: Tensor  # (V,): the row of each object, counted over all blocks, one after the other

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        *,
        counts: Tensor | None = None,
        alpha: float = 0.3,
        blocks: int = 8,
        **options: Unpack[TableOptions],
    ):
        super().__init__(num_embeddings, embedding_dim, padding_idx, **options)
        if alpha < 0 or blocks < 1:
            raise ValueError(f"alpha must be ≥ 0 and blocks ≥ 1, got {alpha} and {blocks}")
        order = ids_by_count(counts, num_embeddings)
        popularity = 1 / np.arange(1.0, num_embeddings + 1) if counts is None else counts.double().cpu().numpy()[order]
        row_of = torch.from_numpy(np.argsort(order))
        self.register_buffer("row_of", row_of.to(self._like.device))
        self._build(blocks_of(popularity, blocks, embedding_dim, alpha), self._like)
        self._place_padding(row_of)

    def _build(self, shapes: list[tuple[int, int]], like: Tensor) -> None:
        self.rows, self.projections = nn.ModuleList(), nn.ParameterList()
        for objects, width in shapes:
            self.rows.append(RowTable(torch.randn_like(like.new_empty(objects, width)) * self.std, None, self.sparse))
            if width < self._width:  # initialized so that t·P is as large as a vector that is not projected
                self.projections.append(nn.Parameter(torch.randn_like(like.new_empty(width, self._width)) * width**-0.5))

    @torch.no_grad()
    def _place_padding(self, row_of: Tensor) -> None:
        if self._padding is None:
            return
        for start, table, _ in self._blocks():
            own = int(row_of[self._padding]) - start
            table.padding_idx = own if 0 <= own < table.num_embeddings else None
            if table.padding_idx is not None:
                table.weight[own].zero_()

    def _blocks(self) -> Iterator[tuple[int, RowTable, Tensor | None]]:
        """For each block: its first row, its table, its projection."""
        start, projections = 0, iter(self.projections)
        for table in self.tables:
            yield start, table, next(projections) if table.embedding_dim < self._width else None
            start += table.num_embeddings

    @property
    def pairs(self) -> list[tuple[RowTable, Tensor]]:
        return [(table, projection) for _, table, projection in self._blocks() if projection is not None]

    def forward(self, ids: Tensor) -> Tensor:
        check_ids(ids, self.num_embeddings)
        row_of, parts = self.row_of[ids], []
        for start, table, projection in self._blocks():
            # Every block looks up every id, and rows of other blocks are masked: no shape depends on the data.
            inside = (row_of >= start) & (row_of < start + table.num_embeddings)
            rows = table(torch.where(inside, row_of - start, 0))
            parts.append((rows if projection is None else rows @ projection) * inside.unsqueeze(-1))
        return torch.stack(parts).sum(0)

    def new_rows(self, table: RowTable, n: int) -> Tensor:
        rows = n if table is self.tables[-1] else 0  # new objects are the least popular
        return torch.randn_like(table.weight.new_empty(rows, table.embedding_dim)) * self.std

    def add_objects(self, n: int) -> None:
        """Append n new objects to the last block."""
        V = self.num_embeddings
        super().add_objects(n)
        self.row_of = torch.cat([self.row_of, torch.arange(V, V + n).to(self.row_of)])

    def factors(self) -> tuple[Tensor, Tensor]:
        """T (V, Σ widths), zero outside the columns of the object's block, and all projections stacked; that of a block of
        width d is the identity."""
        T = torch.block_diag(*(table.current for table in self.tables))[self.row_of]
        identity = torch.eye(self._width, device=T.device, dtype=T.dtype)
        return T, torch.cat([identity if projection is None else projection for _, _, projection in self._blocks()])

    def _load_from_state_dict(self, state_dict: JSON, prefix: str, *args: object) -> None:
        """Blocks depend on the counts, which may be unknown when a checkpoint is loaded: take the checkpoint's blocks."""
        row_of, names = state_dict.get(prefix + "row_of"), (f"{prefix}rows.{block}.weight" for block in count())
        shapes = [tuple(state_dict[name].shape) for name in takewhile(state_dict.__contains__, names)]
        if row_of is not None and row_of.shape == self.row_of.shape and shapes:
            if shapes != [tuple(table.weight.shape) for table in self.tables]:
                self._build(shapes, self.tables[0].weight.data.new_empty(0))
            self._place_padding(row_of)
        super()._load_from_state_dict(state_dict, prefix, *args)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, widths={[table.embedding_dim for table in self.tables]}"
