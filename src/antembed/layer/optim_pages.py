"""Large tables and their moments in huge pages (native/huge_pages.py)."""

import torch
from torch import Tensor

from antembed.native.huge_pages import ask_for_huge_pages


def in_huge_pages(table: Tensor) -> Tensor:
    """The same tensor, fresh and not yet written to, in huge pages where there are some."""
    if table.device.type == "cpu":
        ask_for_huge_pages(table.data_ptr(), table.numel() * table.element_size())
    return table


def filled_like(table: Tensor, value: float) -> Tensor:
    """torch.full_like."""
    return in_huge_pages(torch.empty_like(table)).fill_(value)
