"""What a run asks of a model: its embeddings, what they cost, and the files they become."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from antembed.layer.embedding import Embedding, Usage
from antembed.layer.row_table import RowTable
from antembed.tables.save import export, load_table, serialize, serialized, size_of
from antembed.tables.table import Table


@dataclass(frozen=True)
class TableBias:
    """Biases that belong to a table: one a row (or none), and one number that is added to all of them."""

    bias: np.ndarray | None = None
    offset: float = 0.0


@dataclass(frozen=True)
class ModelSize:
    """Counted as the paper does: non-zeros and anchors in use, by table; parameters of all tables."""

    anchors: dict[str, int]
    nnz: dict[str, int]
    parameters: int
    other_parameters: int  # outside the tables


class TaskModel(nn.Module, ABC):
    """A model that knows its size and can be written as small files."""

    state: object = None  # what the next batch continues from: an LSTM's, say
    details: Mapping[str, object] = MappingProxyType({})  # that results of a run show, too

    @abstractmethod
    def model_size(self) -> ModelSize: ...

    @abstractmethod
    def export(self, folder: Path, values: str, encoding: str) -> dict[str, int]:
        """Write the files into the folder; → bytes of each, by file name."""

    @abstractmethod
    def file_names(self) -> list[str]:
        """What `export` writes."""

    @property
    def embeddings(self) -> dict[str, Embedding]:
        """By name; a model may have none."""
        return {}


class EmbeddingModel(TaskModel):
    """A model over one or more embeddings: NAME.ant for each. A task says which by `embeddings`."""

    stored_with_tables: ClassVar[tuple[str, ...]] = ()  # attributes that the tables' files hold, as biases

    @property
    @abstractmethod
    def embeddings(self) -> dict[str, Embedding]: ...

    def table_biases(self) -> dict[str, TableBias]:
        """Biases that are stored with a table."""
        return {}

    def bias_parameters(self) -> int:
        """How many numbers these biases are."""
        return 0

    def model_size(self) -> ModelSize:
        usage: dict[str, Usage] = {name: table.usage() for name, table in self.embeddings.items()}
        inside = {id(weight) for table in self.embeddings.values() for weight in table.parameters()}
        return ModelSize(
            {name: used.anchors_in_use for name, used in usage.items()},
            {name: used.nnz for name, used in usage.items()},
            sum(used.parameters for used in usage.values()) + self.bias_parameters(),
            sum(weight.numel() for weight in self.parameters() if id(weight) not in inside) - self.bias_parameters(),
        )

    def export(self, folder: Path, values: str, encoding: str) -> dict[str, int]:
        folder.mkdir(parents=True, exist_ok=True)
        return {
            file: self.export_table(name, folder / file, values, encoding).size
            for name, file in zip(self.embeddings, self.file_names(), strict=True)
        }

    def file_names(self) -> list[str]:
        return [f"{name}.ant" for name in self.embeddings]

    def export_table(self, name: str, path: Path, values: str, encoding: str) -> Table:
        """One table as a file."""
        biases = self.table_biases().get(name, TableBias())
        table = self.eval().embeddings[name]
        return export(table, path, values=values, encoding=encoding, bias=biases.bias, offset=biases.offset)

    @torch.no_grad()
    def stored_size(self, unit: str, values: str, encoding: str) -> float:
        """What a budget counts: parameters, or bytes of the exported files."""
        if unit == "parameters":
            return self.bias_parameters() + sum(table.count_parameters() for table in self.embeddings.values())
        total, biases = 0, self.table_biases()
        for name, table in self.embeddings.items():
            (T, A, rows), own = table.arrays(), biases.get(name, TableBias())
            options = {"values": values, "encoding": encoding}
            total += size_of(serialized(T, A, row_index=rows, bias=own.bias, offset=own.offset, **options))
        return total

    def smallest_size(self, unit: str, values: str, encoding: str) -> float:
        """What is left of empty tables: no budget below it can be met."""
        if unit == "parameters":
            return 1
        total, biased = 0, self._biased()
        for name, table in self.embeddings.items():
            T, A = np.zeros((table.num_embeddings, 1), np.float32), np.zeros((1, table.embedding_dim), np.float32)
            total += len(serialize(T, A, bias=T[:, 0] if name in biased else None, values=values, encoding=encoding))
        return total

    def _biased(self) -> set[str]:
        """Tables with a bias for each row."""
        return {name for name, own in self.table_biases().items() if own.bias is not None}

    def dense_bytes(self) -> int:
        """Of full tables of this width with their biases, in fp32."""
        biased = self._biased()
        return sum(
            4 * table.num_embeddings * (table.embedding_dim + (name in biased)) for name, table in self.embeddings.items()
        )

    def from_files(self, folder: Path) -> "EmbeddingModel":
        """The same model with the vectors and biases of exported files, whose numbers may be coarser."""
        clone = copy(self)
        clone._modules, clone._parameters = dict(self._modules), dict(self._parameters)  # a change stays in the copy
        for name in self.embeddings:
            clone.use_file(name, load_table(folder / f"{name}.ant"))
        return clone

    def use_file(self, name: str, table: Table) -> None:
        """Take the vectors of table `name` from a file; by default it is the attribute of that name."""
        self.add_module(name, StoredVectors(table))


class StoredVectors(nn.Module):
    """ids (*batch) → vectors (*batch, d) of an exported file, for evaluation."""

    tables: ClassVar[tuple[RowTable, ...]] = ()  # none that is trained, or that processes share

    def __init__(self, table: Table):
        super().__init__()
        self.table, self.num_embeddings, self.embedding_dim = table, table.num_embeddings, table.embedding_dim

    def forward(self, ids: Tensor) -> Tensor:
        return torch.from_numpy(self.table[ids.cpu().numpy()]).to(ids.device)

    def row_index(self) -> None:
        """None: the file says which rows are shared, and looks them up."""

    def coordinates(self, ids: Tensor) -> tuple[Tensor, None]:
        return self(ids), None

    @cached_property
    def dense(self) -> Tensor:
        """All vectors (V, d), for output layers."""
        return torch.from_numpy(self.table[np.arange(self.num_embeddings)])

    def logits(self, hidden: Tensor, ids: Tensor | None = None, *, bias: Tensor | None = None) -> Tensor:
        """As those of an embedding."""
        scores = hidden @ (self.dense.to(hidden.device) if ids is None else self(ids)).T
        return scores if bias is None else scores + (bias if ids is None else bias[ids])


class StoredBias(nn.Module):
    """ids (n,) → biases (n, 1) of an exported file."""

    def __init__(self, table: Table):
        super().__init__()
        self.table = table

    def forward(self, ids: Tensor) -> Tensor:
        return torch.from_numpy(self.table.bias_of(ids.cpu().numpy())).to(ids.device).unsqueeze(-1)


def by_table(counts: Mapping[str, int]) -> dict[str, int] | int:
    """For people: one number where there is one table."""
    return dict(counts) if len(counts) != 1 else next(iter(counts.values()))
