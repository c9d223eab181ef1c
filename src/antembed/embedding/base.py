"""What every embedding of this room is and can do; the tasks, the trainer and the exporter know no more of it than this."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from antembed.embedding.table import RowTable
from antembed.embedding.usage import Usage, usage_of
from antembed.optim.prox import L1, NonNegativeL1, Prox, SubgradientL1

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
    def param_groups(self, l1_penalty: float) -> list[dict[str, Any]]:
        """Groups for an optimizer, each with its penalty (l1_penalty·‖T‖₁ where there is a T) and its table."""

    @abstractmethod
    def factors(self) -> tuple[Tensor, Tensor | None]:
        """T (V, K) and A (K, d) with E = T·A, up to date; A is None for a table without anchors. This is exported."""

    def row_index(self) -> Tensor | None:
        """The row of T of each object (V,), where objects share rows: E = (T·A)[row_index]. None: a row an object, in order."""
        return None

    def coordinates(self, ids: Tensor) -> tuple[Tensor, Tensor | None]:
        """ids (n,) → X (n, k) and A (k, d) with vectors X·A, where k < d: who multiplies the vectors by more takes A into that
        first. (vectors, None) where there is nothing smaller."""
        return self(ids), None

    def divergence(self) -> Tensor | None:
        """A variational layer's KL(posterior ‖ prior), summed over all its weights: whoever adds it to a mean loss divides it
        by the number of training examples (and warms it up). None: there is no such term."""
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
        """Append n new objects with random vectors. An optimizer that holds this layer goes on with it."""
        if n < 0:
            raise ValueError(f"add_objects takes a number ≥ 0, got {n}")
        for table in self.tables:
            table.add_rows(self.new_rows(table, n))

    @torch.no_grad()
    def prune(self, share: float) -> int:
        """Set to zero what hardly counts, and say how many: weights whose part of the vector, t_k·‖a_k‖, is below `share` of
        the mean one. Gradient noise keeps such weights alive at a small fraction of the others, where no penalty gets at them.
        Tables whose weights have no price each are meant to be dense, and stay so.
        """
        priced = {id(group["table"]) for group in self.param_groups(0.0) if _by_weight(group.get("prox"))}
        pruned = 0
        for table, norms in self.lengths():
            if id(table) not in priced:
                continue
            total, count = 0.0, 0
            for rows in table.current.split(PIECE):
                total += float((rows.abs() * norms).sum())
                count += int(rows.count_nonzero())
            for rows in table.weight.split(PIECE):
                parts = rows.abs() * norms
                small = (parts < share * total / max(count, 1)) & (parts > 0)
                rows[small] = 0
                pruned += int(small.sum())
        return pruned

    def keep(self, n: int) -> int:
        """Set all but the n weights to zero that have the largest part of a vector; → how many that were not zero. Methods that
        drop whole rows, or go by noise, do that."""
        return keep_largest([self], n)

    def lengths(self) -> list[tuple[RowTable, Tensor]]:
        """Each table with the lengths of what its weights multiply: ‖a_k‖, or 1 in a table without anchors."""
        anchors = {id(table): A for table, A in self.pairs}
        return [
            (table, anchors[id(table)].norm(dim=1) if id(table) in anchors else table.weight.new_ones(table.embedding_dim))
            for table in self.tables
        ]

    def to_dense(self) -> Tensor:
        """The whole E: (V, d)."""
        T, A = self.factors()
        E, row_index = T if A is None else T @ A, self.row_index()
        return E if row_index is None else E[row_index]

    def to_embedding(self) -> nn.Embedding:
        """A plain nn.Embedding with the same vectors and its own memory."""
        vectors = self.to_dense().detach().clone()
        return nn.Embedding.from_pretrained(vectors, freeze=False, padding_idx=self.padding_idx)

    def usage(self) -> Usage:
        """Non-zeros, anchors in use, parameters by the paper's count, and bytes of the exported file."""
        return usage_of(*self.factors(), self.padding_idx, self.row_index())


def _by_weight(prox: Prox | None) -> bool:
    """Whether every weight has a price of its own."""
    return isinstance(prox, NonNegativeL1 | L1 | SubgradientL1) and prox.scheduled


def check_kept(n: int) -> None:
    if n < 0:
        raise ValueError(f"the number of weights to keep must be ≥ 0, got {n}")


@torch.no_grad()
def keep_largest(layers: Iterable[Embedding], n: int) -> int:
    """Over all tables of all these layers, set all but the n largest contributions (|t_k|·‖a_k‖, or |e_k| in a table without
    anchors) to zero; → how many that were not zero."""
    check_kept(n)
    tables = [pair for layer in layers for pair in layer.lengths()]
    parts = torch.cat([(table.current.abs() * norms).reshape(-1).float() for table, norms in tables])
    before = sum(int(table.weight.count_nonzero()) for table, _ in tables)
    if n >= before:
        return 0
    dropped = torch.ones(len(parts), dtype=torch.bool, device=parts.device)
    dropped[parts.topk(n).indices] = False
    for (table, _), drop in zip(tables, dropped.split([table.weight.numel() for table, _ in tables]), strict=True):
        table.weight[drop.view(table.weight.shape)] = 0
    return before - sum(int(table.weight.count_nonzero()) for table, _ in tables)


def param_groups(model: nn.Module, l1_penalty: float, weight_decay: float = 0.0) -> list[dict[str, Any]]:
    """Optimizer groups of a whole model: each T with the penalty l1_penalty·‖T‖₁, everything else without one.

    `weight_decay` (decoupled) is for the tables without a penalty and for the anchors: T has its own price, and of the rest
    of a model we know nothing.

    optimizer = ProximalYogi(param_groups(model, l1_penalty=2e-6), lr=0.01)
    """
    groups = [group for layer in model.modules() if isinstance(layer, Embedding) for group in layer.param_groups(l1_penalty)]
    for group in groups:
        prox = group.get("prox")
        group["weight_decay"] = weight_decay if prox is None or not prox.scheduled else 0.0
    seen = {id(weight) for group in groups for weight in group["params"]}
    rest = [weight for weight in model.parameters() if id(weight) not in seen]
    return [*groups, {"params": rest}] if rest else groups
