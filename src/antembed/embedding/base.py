"""What every embedding of this room is and can do; the tasks, the trainer and the exporter know no more of it than this."""

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor, nn

from antembed.embedding.table import RowTable
from antembed.embedding.usage import Usage, usage_of

PIECE = 1 << 20  # rows at a time, where a whole table's worth of intermediate results might not fit


class Embedding(nn.Module, ABC):
    """ids (*batch) → vectors (*batch, d), held in one or more tables of rows."""

    @property
    @abstractmethod
    def tables(self) -> list[RowTable]:
        """The inner tables, V rows each."""

    @property
    @abstractmethod
    def pairs(self) -> list[tuple[RowTable, Tensor]]:
        """Each T (V, K) with its A (K, d); none for a table without anchors."""

    @property
    @abstractmethod
    def embedding_dim(self) -> int:
        """d."""

    @abstractmethod
    def param_groups(self, l1: float) -> list[dict[str, Any]]:
        """Groups for an optimiser, each with its penalty (l1·‖T‖₁ where there is a T) and its table."""

    @abstractmethod
    def factors(self) -> tuple[Tensor, Tensor | None]:
        """T (V, K) and A (K, d) with E = T·A, up to date; A is None for a table without anchors. This is exported."""

    def places(self) -> Tensor | None:
        """Where objects share rows, the row of T of each object, (V,): E = (T·A)[places]. None: a row an object, in order."""
        return None

    @property
    def num_embeddings(self) -> int:
        return self.tables[0].num_embeddings

    @property
    def padding_idx(self) -> int | None:
        return self.tables[0].padding_idx

    def flush(self) -> None:
        """Bring all rows up to date after lazy steps. Only needed where `parameters()` are read directly (EMA, SWA)."""
        for table in self.tables:
            table.flush()

    @abstractmethod
    def new_rows(self, table: RowTable, n: int) -> Tensor:
        """n rows for `table`, as a layer of the present size would start them."""

    @torch.no_grad()
    def add_objects(self, n: int) -> None:
        """Append n new objects with random vectors. An optimiser that holds this layer goes on with it."""
        if n < 0:
            raise ValueError(f"add_objects takes a number ≥ 0, got {n}")
        for table in self.tables:
            table.add_rows(self.new_rows(table, n))

    @torch.no_grad()
    def prune(self, share: float) -> int:
        """Set to zero what hardly counts, and say how many: weights whose part of the vector, t_k·‖a_k‖, is below `share` of
        the mean one. Gradient noise keeps such weights alive at a small fraction of the others, where no penalty gets at them.
        """
        pruned = 0
        for table, anchors in self.pairs:
            norms, total, count = anchors.norm(dim=1), 0.0, 0
            for rows in table.current.split(PIECE):
                total += float((rows.abs() * norms).sum())
                count += int(rows.count_nonzero())
            for rows in table.weight.split(PIECE):
                parts = rows.abs() * norms
                small = (parts < share * total / max(count, 1)) & (parts > 0)
                rows[small] = 0
                pruned += int(small.sum())
        return pruned

    def to_dense(self) -> Tensor:
        """The whole E: (V, d)."""
        T, A = self.factors()
        E, places = T if A is None else T @ A, self.places()
        return E if places is None else E[places]

    def to_embedding(self) -> nn.Embedding:
        """A plain nn.Embedding with the same vectors and its own memory."""
        vectors = self.to_dense().detach().clone()
        return nn.Embedding.from_pretrained(vectors, freeze=False, padding_idx=self.padding_idx)

    def usage(self) -> Usage:
        """Non-zeros, anchors in use, parameters by the paper's count, and bytes of the exported file."""
        return usage_of(*self.factors(), self.padding_idx, self.places())


def param_groups(model: nn.Module, l1: float, weight_decay: float = 0.0) -> list[dict[str, Any]]:
    """Optimiser groups of a whole model: each T with the penalty l1·‖T‖₁, everything else without one.

    `weight_decay` (decoupled) is for the tables without a penalty and for the anchors: T has its own price, and of the rest
    of a model we know nothing.

    optimiser = ProximalYogi(param_groups(model, l1=2e-6), lr=0.01)
    """
    groups = [group for layer in model.modules() if isinstance(layer, Embedding) for group in layer.param_groups(l1)]
    for group in groups:
        prox = group.get("prox")
        group["weight_decay"] = weight_decay if prox is None or not prox.priced else 0.0
    seen = {id(weight) for group in groups for weight in group["params"]}
    rest = [weight for weight in model.parameters() if id(weight) not in seen]
    return [*groups, {"params": rest}] if rest else groups
