"""TensorTrainEmbedding (Hrinchuk et al. 2020): the table, reshaped to a tensor, as a product of three small cores."""

import math
from dataclasses import replace
from typing import Unpack

import torch
from torch import Tensor, nn

from antembed.baselines.hashed import SharedRows
from antembed.layer.embedding import Usage
from antembed.layer.full import TableOptions
from antembed.layer.row_table import ROWS_AT_ONCE, RowTable, check_ids, check_sizes

RANK = 8  # unless num_anchors says another


def three_factors(n: int, *, exact: bool) -> tuple[int, int, int]:
    """Three numbers as equal as can be, in falling order, whose product is n, or (not exact) n or little more."""
    if not exact:
        a = math.ceil(n ** (1 / 3) - 1e-9)
        b = math.ceil(math.sqrt(n / a) - 1e-9)
        return a, b, max(math.ceil(n / (a * b)), 1)
    found = [
        (a, b, n // (a * b))
        for a in range(1, n + 1)
        if n % a == 0
        for b in range(1, a + 1)
        if (n // a) % b == 0 and n // (a * b) <= b
    ]
    return min(found, key=sum)


class TensorTrainEmbedding(SharedRows):
    """ids (*batch) → vectors (*batch, d). An object is three digits (i, j, k), a dimension three more; its vector is
    G₁[i]·G₂[j]·G₃[k], matrices (d₁, r), (r, d₂·r) and (r, d₃), with the rank r = `num_anchors`. Files hold the dense table."""

    uses_anchors = True
    small_init = 0.1  # a product of three has hardly a gradient near 0

    def __init__(self, num_embeddings: int, embedding_dim: int, padding_idx: int | None = None, **more: Unpack[TableOptions]):
        super().__init__(num_embeddings, embedding_dim, padding_idx, **more)
        self.rank = r = RANK if self.num_rows is None else self.num_rows
        check_sizes(num_embeddings, embedding_dim, r, self._like.dtype)
        self.digits = three_factors(max(num_embeddings, 1), exact=False)
        self.widths = d1, d2, d3 = three_factors(embedding_dim, exact=True)
        shapes = zip(self.digits, (d1 * r, r * d2 * r, r * d3), strict=True)
        self.cores = nn.ModuleList(RowTable(self._draw(self._like, n, width), None, self.sparse) for n, width in shapes)

    def _draw(self, like: Tensor, rows: int, width: int) -> Tensor:
        """Numbers such that those of a vector, sums of r² products of three, have the deviation `std`."""
        return torch.randn_like(like.new_empty(rows, width)) * (self.std / self.rank) ** (1 / 3)

    def forward(self, ids: Tensor) -> Tensor:
        check_ids(ids, self.num_embeddings)
        flat = ids.reshape(-1)
        # torch.compile cannot split by lengths that depend on the ids.
        vectors = self._one_by_one(flat) if torch.compiler.is_compiling() else self._by_middle(flat)
        vectors = vectors.reshape(*ids.shape, self.embedding_dim)
        return vectors if self._padding is None else vectors * (ids != self._padding).unsqueeze(-1)

    def _one_by_one(self, flat: Tensor) -> Tensor:
        """(n,) → (n, d): three matrices for each object."""
        _, J, K = self.digits
        n, r, (d1, d2, d3) = len(flat), self.rank, self.widths
        digits = flat // (J * K), flat // K % J, flat % K
        first, second, third = (core(digit) for core, digit in zip(self.tables, digits, strict=True))
        left = first.view(n, d1, r) @ second.view(n, r, d2 * r)
        return (left.view(n, d1 * d2, r) @ third.view(n, r, d3)).view(n, d1 * d2 * d3)

    def _by_middle(self, flat: Tensor) -> Tensor:
        """The same in the order of the second digit: its matrices are the largest, and each is fetched and multiplied once."""
        _, J, K = self.digits
        n, r, (d1, d2, d3) = len(flat), self.rank, self.widths
        middle, order = (flat // K % J).sort(stable=True)
        digits, counts = middle.unique_consecutive(return_counts=True)
        first = self.tables[0](flat[order] // (J * K)).view(n * d1, r)
        second, third = self.tables[1](digits).view(-1, r, d2 * r), self.tables[2](flat[order] % K)
        parts = zip(first.split((counts * d1).tolist()), second, strict=True)
        left = torch.cat([rows @ matrix for rows, matrix in parts] or [first.new_empty(0, d2 * r)])
        vectors = (left.view(n, d1 * d2, r) @ third.view(n, r, d3)).view(n, d1 * d2 * d3)
        return vectors[order.argsort()]

    def factors(self) -> tuple[Tensor, None]:
        ids = torch.arange(self.num_embeddings, device=self.tables[0].weight.device)
        return torch.cat([self(some) for some in ids.split(ROWS_AT_ONCE)]), None

    def reset_parameters(self) -> None:
        """Initialize the cores anew, as at construction. An optimizer keeps its moments: make a new one."""
        for core in self.tables:
            core.reset_to(self._draw(core.weight, *core.weight.shape))

    def new_rows(self, table: RowTable, n: int) -> Tensor:
        """Only the first core grows, by full blocks of J·K objects."""
        _, J, K = self.digits
        rows = max(-(-(self.num_embeddings + n) // (J * K)) - table.num_embeddings, 0) if table is self.tables[0] else 0
        return self._draw(table.weight, rows, table.embedding_dim)

    def add_objects(self, n: int) -> None:
        super().add_objects(n)
        self.digits = (self.tables[0].num_embeddings, *self.digits[1:])

    def usage(self) -> Usage:
        """The numbers of the cores; bytes of the file, which holds the dense table."""
        numbers = sum(int(core.weight.count_nonzero()) for core in self.tables)
        return replace(super().usage(), nnz=numbers, parameters=numbers)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, rank={self.rank}, objects={self.digits}, width={self.widths}"
