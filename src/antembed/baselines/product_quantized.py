"""QuantizedEmbedding: a trained table in few bits, by product quantization with k-means codebooks, as fastText does.

(int8 with a scale for each column needs no layer: `export(layer, path, values="int8")`.)
"""

import os
from pathlib import Path

import torch
from torch import Tensor, nn

from antembed.baselines.hashed import SharedRows
from antembed.files import write_atomically
from antembed.layer.embedding import Embedding, Usage
from antembed.layer.row_table import RowTable, check_ids, from_the_front
from antembed.tables.encodings import serialize_product
from antembed.tables.save import load_table
from antembed.tables.table import Table

CANNOT_GROW = "a quantized table cannot grow; add objects before quantizing it"
PER_ENTRY = 64  # at most so many rows per entry to learn a codebook from; more change little
ROWS_AT_ONCE = 1 << 12  # their distances stay in the cache


def nearest(x: Tensor, book: Tensor) -> Tensor:
    """x (n, w), book (C, w) → the index of each row's nearest entry: (n,)."""
    return torch.cat([(book.square().sum(1) - 2 * rows @ book.T).min(1).indices for rows in x.split(ROWS_AT_ONCE)])


def learn_book(x: Tensor, entries: int, iterations: int, generator: torch.Generator) -> Tensor:
    """k-means (Lloyd): min over C entries of Σ_rows ‖x − nearest‖². An entry without rows is set to a random row."""
    n = len(x)
    book = x[torch.randperm(n, generator=generator)[:entries]].clone()
    for _ in range(iterations):
        owner = nearest(x, book)
        counts = torch.bincount(owner, minlength=len(book))
        sums = torch.zeros_like(book).index_add_(0, owner, x)
        book = sums / counts.clamp(min=1).unsqueeze(1)
        idle = (counts == 0).nonzero()[:, 0]
        book[idle] = x[torch.randint(n, (len(idle),), generator=generator)]
    return book


def vectors_of(weight: Tensor | nn.Embedding | Embedding) -> Tensor:
    """The vectors of a table or layer (V, d), on the CPU."""
    if isinstance(weight, Embedding | nn.Embedding):
        weight = weight.to_dense() if isinstance(weight, Embedding) else weight.weight
    return weight.detach().cpu()


@torch.no_grad()
def quantize(
    weight: Tensor | nn.Embedding | Embedding,
    *,
    parts: int,
    bits: int = 8,
    iterations: int = 15,
    seed: int = 0,
    padding_idx: int | None = None,
) -> "QuantizedEmbedding":
    """weight (V, d) → `parts` codes of `bits` bits for each vector. `parts` divides d; parts=d, bits=4 gives 4-bit numbers."""
    if isinstance(weight, Embedding | nn.Embedding) and padding_idx is None:
        padding_idx = weight.padding_idx
    weight = vectors_of(weight)
    V, d = weight.shape
    if parts < 1 or d % parts:
        raise ValueError(f"{d} dimensions cannot be cut into {parts} equal parts; take a divisor of {d}")
    if not 1 <= bits <= 8:
        raise ValueError(f"a code has 1 to 8 bits, not {bits}")
    padding_idx = from_the_front(padding_idx, V)
    generator = torch.Generator().manual_seed(seed)
    some = torch.randperm(V, generator=generator)[: PER_ENTRY << bits]
    if padding_idx is not None:
        some = some[some != padding_idx]
    if not len(some):
        raise ValueError(f"a table of {V} rows, padding included, has nothing to learn codebooks from")
    cut = weight.view(V, parts, d // parts)
    books = torch.stack([learn_book(cut[some, part], 1 << bits, iterations, generator) for part in range(parts)])
    codes = torch.stack([nearest(cut[:, part], books[part]) for part in range(parts)], 1)
    return QuantizedEmbedding(codes.to(torch.uint8), books, padding_idx)


class QuantizedEmbedding(SharedRows):
    """ids (*batch) → vectors (*batch, d), each part looked up in its codebook. For evaluation: it cannot be trained."""

    codes: Tensor
    books: Tensor

    def __init__(self, codes: Tensor, books: Tensor, padding_idx: int | None = None):
        super().__init__(len(codes), books.shape[0] * books.shape[2], padding_idx)
        self.register_buffer("codes", codes)  # (V, parts)
        self.register_buffer("books", books)  # (parts, entries, d/parts)

    def forward(self, ids: Tensor) -> Tensor:
        check_ids(ids, self.num_embeddings)
        parts = torch.arange(self.codes.shape[1], device=ids.device)
        vectors = self.books[parts, self.codes[ids.long()].long()].flatten(-2)
        return vectors if self._padding is None else vectors * (ids != self._padding).unsqueeze(-1)

    def to_dense(self) -> Tensor:
        return self(torch.arange(self.num_embeddings, device=self.codes.device))

    def factors(self) -> tuple[Tensor, None]:
        raise TypeError("a quantized table has codes and codebooks, no T and A; write it with layer.export(path)")

    def new_rows(self, table: RowTable, n: int) -> Tensor:
        raise TypeError(CANNOT_GROW)

    def add_objects(self, n: int) -> None:
        raise TypeError(CANNOT_GROW)

    def _bytes(self, values: str = "fp32") -> bytes:
        return serialize_product(self.codes.cpu().numpy(), self.books.cpu().numpy(), self._padding, values)

    def usage(self) -> Usage:
        """Codes and codebook entries count as parameters; bytes are those of the file."""
        numbers = self.codes.numel() + self.books.numel()
        return Usage(self.num_embeddings, self.embedding_dim, 0, 0, numbers, numbers, len(self._bytes()))

    def export(self, path: str | os.PathLike[str], *, values: str = "fp32") -> Table:
        """Write the small file and load it; `values` (fp32, fp16) is the type of the codebooks."""
        write_atomically(Path(path), self._bytes(values))
        return load_table(path)

    def extra_repr(self) -> str:
        parts, entries, _ = self.books.shape
        return f"{super().extra_repr()}, parts={parts}, entries={entries}"
