"""CodedEmbedding: a compressed table as a layer. The table stays entropy-coded in memory; rows are decoded when looked up."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from antembed.files import JSON
from antembed.layer.row_table import check_ids
from antembed.tables.save import read_table
from antembed.tables.table import Table


class CodedEmbedding(nn.Module):
    """ids (*batch) → vectors (*batch, d), as `load_table(file)[ids]` gives them. It cannot be trained.

    `coded` has the bytes of a file that `antembed compress` writes. A tied output layer (`logits`) needs all rows at each
    step: it decodes them once and keeps them."""

    coded: Tensor
    like: Tensor

    def __init__(self, num_embeddings: int, embedding_dim: int, padding_idx: int | None = None, *, coded: Tensor):
        super().__init__()
        self.num_embeddings, self.embedding_dim, self.padding_idx = num_embeddings, embedding_dim, padding_idx
        self.register_buffer("coded", coded)
        self.register_buffer("like", torch.empty(0), persistent=False)  # the device and type of the vectors
        self._forget()

    def _forget(self) -> None:
        self.__dict__["opened"], self.__dict__["dense"] = None, None

    @property
    def table(self) -> Table:
        """The table whose bytes are in `coded`."""
        opened: tuple[Tensor, Table] | None = self.__dict__["opened"]
        if opened is None or opened[0] is not self.coded:
            self._forget()
            table = read_table(self.coded.cpu().numpy().tobytes())
            if table.shape != (self.num_embeddings, self.embedding_dim):
                raise ValueError(
                    f"the coded table is {table.shape[0]} × {table.shape[1]}, the layer {self.num_embeddings} × "
                    f"{self.embedding_dim}; build the layer with the table's sizes"
                )
            opened = self.__dict__["opened"] = self.coded, table
        return opened[1]

    @torch.compiler.disable
    def forward(self, ids: Tensor) -> Tensor:
        check_ids(ids, self.num_embeddings)
        return torch.from_numpy(self.table[ids.detach().cpu().numpy()]).to(self.like)

    @torch.compiler.disable
    def to_dense(self) -> Tensor:
        """All vectors (V, d)."""
        return torch.from_numpy(self.table[:]).to(self.like)

    @property
    def weight(self) -> Tensor:
        """E (V, d), decoded anew at each access; not a parameter."""
        return self.to_dense()

    def logits(self, hidden: Tensor, *, bias: Tensor | None = None) -> Tensor:
        """Scores of a tied output layer, hidden (*batch, d) → E·h + bias: (*batch, V)."""
        if self.__dict__["dense"] is None:
            self.__dict__["dense"] = self.to_dense()
        return nn.functional.linear(hidden, self.__dict__["dense"], bias)

    def extra_repr(self) -> str:
        return f"{self.num_embeddings}, {self.embedding_dim}, {self.coded.numel():,} bytes"

    def _load_from_state_dict(self, state_dict: JSON, prefix: str, *args: Any) -> None:
        """Bytes of another length are taken too: how many a table has depends on its numbers."""
        found = state_dict.get(prefix + "coded")
        if found is not None and found.shape != self.coded.shape:
            self.coded = self.coded.new_empty(found.shape)
        super()._load_from_state_dict(state_dict, prefix, *args)
        self._forget()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "CodedEmbedding":
        super()._apply(fn, recurse)
        self._forget()
        return self

    def __getstate__(self) -> JSON:
        return {**self.__dict__, "opened": None, "dense": None}  # a copy opens its own
