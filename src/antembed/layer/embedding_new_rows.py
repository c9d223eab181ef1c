"""How a new table is made: drawn here by torch's generator, or as a context says, in which a process may hold only a part of
the rows (layer/sharded/draw.py)."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor
from torch.types import Device

from antembed.layer.optim_pages import in_huge_pages
from antembed.layer.row_table import RowTable

MakeRows = Callable[[int, int, int | None, bool, torch.dtype | None, float | None], RowTable]
"""V, K, padding_idx, sparse, dtype, std → a table whose rows start as N(0, std²), or, if that is None, as |N(0, 1)|·√(2/V)."""

_make: ContextVar[MakeRows | None] = ContextVar("make_rows", default=None)


@contextmanager
def making_rows(make: MakeRows) -> Iterator[None]:
    """Layers that are built inside have the rows that `make` gives them."""
    before = _make.set(make)
    try:
        yield
    finally:
        _make.reset(before)


def half_normal(*shape: int, device: Device = None, dtype: torch.dtype | None = None) -> Tensor:
    """|N(0, 1)|·√(2/rows): never zero, since T = 0 has no gradient for A (and A = 0 none for T)."""
    fresh = in_huge_pages(torch.empty(*shape, device=device, dtype=dtype))
    return fresh.normal_().abs_().mul_(math.sqrt(2 / max(shape[0], 1)))


def new_rows(
    V: int,
    K: int,
    padding_idx: int | None,
    sparse: bool,
    device: Device,
    dtype: torch.dtype | None,
    std: float | None = None,
) -> RowTable:
    """A table (V, K) as it starts: N(0, std²), or half_normal."""
    make = _make.get()
    if make is not None:
        return make(V, K, padding_idx, sparse, dtype, std).to(device)
    if std is None:
        return RowTable(half_normal(V, K, device=device, dtype=dtype), padding_idx, sparse)
    return RowTable(torch.randn(V, K, device=device, dtype=dtype).mul_(std), padding_idx, sparse)


@torch.no_grad()
def redraw_(table: RowTable, std: float) -> None:
    """Start a table that is as `new_rows` has made it with |N(0, std²)| instead."""
    if _make.get() is None:
        table.weight.normal_(std=std).abs_()
    else:
        table.weight.mul_(std / math.sqrt(2 / max(table.num_embeddings, 1)))
