"""T as its non-zeros, row after row: what the encodings of a file are made from. It is filled block by block, so that a T which
lies in several processes is never dense in one of them."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

BLOCK = 1 << 16  # rows that are dense at a time


def smallest_unsigned(largest: int) -> np.dtype:
    """The narrowest unsigned type that holds `largest`."""
    return next(np.dtype(kind) for kind in ("u1", "u2", "u4", "u8") if largest <= np.iinfo(kind).max)


@dataclass(frozen=True)
class Nonzeros:
    """A matrix (V, K): how many non-zeros each row has (V,), their columns (nnz,) and their values (nnz,)."""

    width: int  # K
    counts: np.ndarray
    columns: np.ndarray
    values: np.ndarray

    @classmethod
    def of(cls, T: np.ndarray) -> "Nonzeros":
        """Of a dense matrix (V, K)."""
        return cls.gathered((T[at : at + BLOCK] for at in range(0, len(T), BLOCK)), T.shape[1], T.dtype)

    @classmethod
    def gathered(cls, blocks: Iterable[np.ndarray], width: int, dtype: np.dtype) -> "Nonzeros":
        """Of dense blocks of rows, one after the other."""
        kind = smallest_unsigned(max(width - 1, 0))
        counts, columns, values = [np.empty(0, smallest_unsigned(width))], [np.empty(0, kind)], [np.empty(0, dtype)]
        for block in blocks:
            nonzero = block != 0
            counts.append(nonzero.sum(axis=1).astype(counts[0].dtype))
            columns.append(np.nonzero(nonzero)[1].astype(kind))
            values.append(block[nonzero])
        return cls(width, *(np.concatenate(parts) for parts in (counts, columns, values)))

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.counts), self.width

    def __len__(self) -> int:
        return len(self.counts)

    def by_column(self) -> np.ndarray:
        """How many non-zeros each column has, (K,)."""
        return np.bincount(self.columns, minlength=self.width)

    def narrowed(self, kept: np.ndarray) -> "Nonzeros":
        """Without those columns, all of them zero, that are not `kept` (K,)."""
        number = np.cumsum(kept) - 1
        width = int(kept.sum())
        return Nonzeros(width, self.counts, number.astype(smallest_unsigned(max(width - 1, 0)))[self.columns], self.values)

    def with_values(self, values: np.ndarray) -> "Nonzeros":
        """Other numbers in these places; those that are zero now are left out."""
        if (values != 0).all():
            return Nonzeros(self.width, self.counts, self.columns, values)
        kept = values != 0
        ends = np.cumsum(self.counts, dtype=np.int64)
        before = np.concatenate([[0], np.cumsum(kept)])
        counts = before[ends] - before[ends - self.counts]
        return Nonzeros(self.width, counts.astype(self.counts.dtype), self.columns[kept], values[kept])

    def blocks(self) -> Iterator[np.ndarray]:
        """Dense blocks of rows."""
        if len(self.values) == len(self) * self.width:
            whole = self.values.reshape(self.shape)
            yield from (whole[at : at + BLOCK] for at in range(0, len(self), BLOCK))
            return
        end = 0
        for at in range(0, len(self.counts), BLOCK):
            counts = self.counts[at : at + BLOCK]
            begin, end = end, end + int(counts.sum(dtype=np.int64))
            dense = np.zeros((len(counts), self.width), self.values.dtype)
            dense[np.repeat(np.arange(len(counts)), counts), self.columns[begin:end]] = self.values[begin:end]
            yield dense


@dataclass(frozen=True)
class Dense:
    """The dense matrix of these non-zeros as an array of a file (container.Stream): never there as a whole."""

    nonzeros: Nonzeros

    @property
    def shape(self) -> tuple[int, int]:
        return self.nonzeros.shape

    @property
    def dtype(self) -> np.dtype:
        return self.nonzeros.values.dtype

    @property
    def nbytes(self) -> int:
        return self.shape[0] * self.shape[1] * self.dtype.itemsize

    def blocks(self) -> Iterator[np.ndarray]:
        return self.nonzeros.blocks()
