"""Examples in the order of an epoch, read block by block: only the order is in memory, not a second copy of the data."""

from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Self

import numpy as np

from antembed.train.examples_kernel import pick, shuffled

if TYPE_CHECKING:  # reading text or ratings must not wait for torch
    from torch import Tensor

CHUNK = 1 << 17  # examples that are fetched at a time


@dataclass(frozen=True)
class Pieces:
    """A batch in parts, none of them empty, which are fetched one by one: a process reads those that it works on."""

    sizes: list[int]  # examples of each
    fetch: "Callable[[int], tuple[Tensor, ...]]"

    @classmethod
    def cut(cls, n: int, pieces: int, fetch: "Callable[[int, int], tuple[Tensor, ...]]", each: int = 1) -> "Pieces":
        """n items of a batch, with `each` examples each, in so many parts; fetch(a, b) gives items a … b."""
        ends = [-(-n * piece // pieces) for piece in range(pieces + 1)]
        parts = [(a, b) for a, b in pairwise(ends) if a < b]
        return cls([each * (b - a) for a, b in parts], lambda number: fetch(*parts[number]))


class RowExamples:
    """Examples that are rows, in any order; a subclass, a dataclass, fetches those of a range."""

    rows: np.ndarray  # (n,) int32 or int64
    threads: int | None  # None: torch's

    @abstractmethod
    def _range(self, a: int, b: int) -> "tuple[Tensor, ...]": ...

    def __len__(self) -> int:
        return len(self.rows)

    def pieces(self, size: int, n: int) -> Iterator[Pieces]:
        """The batches in n parts."""
        for start in range(0, len(self), size):
            own = self.with_rows(self.rows[start : start + size])
            yield Pieces.cut(len(own), n, own._range)

    def shuffled(self, seed: int, epoch: int) -> Self:
        """In the order of this epoch, which depends on the seed and the epoch only: a resumed run sees the same order."""
        return self.in_order(self.order(seed, epoch))

    def order(self, seed: int, epoch: int) -> np.ndarray:
        """The rows in the order of an epoch."""
        import torch

        return shuffled(self.rows, seed, epoch, self.threads or torch.get_num_threads())

    def with_rows(self, rows: np.ndarray) -> Self:
        """Other rows of the same data."""
        return replace(self, rows=rows)  # type: ignore[type-var]

    def in_order(self, rows: np.ndarray) -> Self:
        """For training, in this order."""
        return self.with_rows(rows)


@dataclass(frozen=True)
class Examples(RowExamples):
    """Rows `rows` of aligned columns, which may be memory-mapped."""

    columns: tuple[np.ndarray, ...]
    rows: np.ndarray  # (n,) int32 or int64
    device: str = "cpu"
    threads: int | None = None  # None: torch's

    def __post_init__(self) -> None:
        n = min(len(column) for column in self.columns)
        if len(self.rows) and not (self.rows.min() >= 0 and self.rows.max() < n):
            raise IndexError(f"rows {self.rows.min()} to {self.rows.max()} are not all within the {n} rows of the data")

    def __getitem__(self, piece: slice) -> "tuple[Tensor, ...]":
        """A slice of the examples, as tensors on the device."""
        import torch

        rows, threads = self.rows[piece], self.threads or torch.get_num_threads()
        return tuple(torch.from_numpy(pick(column, rows, threads)).to(self.device) for column in self.columns)

    def batches(self, size: int) -> "Iterator[tuple[Tensor, ...]]":
        """One after the other; small ones are fetched many at a time."""
        chunk = chunk_size(size)
        for start in range(0, len(self), chunk):
            yield from zip(*(column.split(size) for column in self[start : start + chunk]), strict=True)

    def _range(self, a: int, b: int) -> "tuple[Tensor, ...]":
        return self[a:b]


def chunk_size(batch_size: int) -> int:
    """Examples to fetch at a time: many, in full batches."""
    return max(CHUNK // batch_size, 1) * batch_size
