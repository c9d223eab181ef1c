"""Embedding, the interface of every layer: anchored, full or baseline. Tasks, solvers and export use nothing else of them."""

import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from antembed.layer.optim.prox import L1, NonNegativeL1, Prox, SubgradientL1
from antembed.layer.optim.proximal_optimizer import Group
from antembed.layer.row_table import ROWS_AT_ONCE, RowTable, numbers_of
from antembed.tables.number_formats import BLOCK, Nonzeros
from antembed.tables.save import file_size

REMEDY = "use antembed.ProximalYogi(antembed.param_groups(model, l1_penalty=…))"


@dataclass(frozen=True)
class Usage:
    """K `anchors` (0: a plain table) and those in use; nnz(T) + K·d parameters; bytes of the exported file."""

    num_embeddings: int
    embedding_dim: int
    anchors: int
    anchors_in_use: int
    nnz: int
    parameters: int
    bytes: int


def usage_of(
    T: np.ndarray | Nonzeros, A: np.ndarray | None, row_index: np.ndarray | None = None, padding_idx: int | None = None
) -> Usage:
    """Count E = T·A, or (T·A)[row_index]: a shared row counts once, and the row index counts as bytes, not as parameters. An
    anchor whose column of T is zero is not in use. The padding row is not counted. Zeros of a plain table (A is None) are not
    counted either."""
    found = T if isinstance(T, Nonzeros) else Nonzeros.of(T)
    size = file_size(found, A, row_index)
    V, K = len(T) if row_index is None else len(row_index), found.width
    if padding_idx is not None and row_index is not None:
        padding_idx = int(row_index[padding_idx])
    nnz = len(found.values) - (0 if padding_idx is None else int(found.counts[padding_idx]))
    if A is None:
        return Usage(V, K, 0, 0, nnz, nnz, size)
    in_use = int((found.by_column() > 0).sum())
    return Usage(V, A.shape[1], K, in_use, nnz, nnz + in_use * A.shape[1], size)


class Embedding(nn.Module, ABC):
    """ids (*batch) → vectors (*batch, d), held in one or more tables of rows.

    A class in EMBEDDINGS is constructed as cls(num_embeddings, embedding_dim, padding_idx, *, num_anchors=…, sparse=…,
    device=…, dtype=…, **options). What differs between embeddings is said by these attributes, and nowhere by name."""

    # What must be known of the objects: "counts" and "tf-idf" are passed as `counts`, "features" as `codes`.
    requires: ClassVar[frozenset[str]] = frozenset()
    anchored: ClassVar[bool] = False  # E = T·A with anchors A that an orthogonality penalty can act on
    uses_anchors: ClassVar[bool] = False  # whether `num_anchors` has an effect (for hashed tables it is the number of rows)
    softmax: ClassVar[bool] = False  # the weights of T go through a softmax: scaling T does not scale the vectors
    variational: ClassVar[bool] = False  # the loss must add `divergence()`
    # `std` for a product of two tables (ratings), where larger vectors start as noise that is never unlearned; None: the layer
    # has no `std` that suits, and T is rescaled after construction.
    small_init: ClassVar[float | None] = None

    ridge_total: Tensor | None = None  # (V,): `set_ridge`
    ridge_per_lookup: Tensor | None = None
    ridge_active = True  # a sparsifier switches it off while it looks at the loss alone

    warned: frozenset[str] = frozenset()  # what `usage` and `export` have warned of

    @property
    def tables(self) -> list[RowTable]:
        """The inner tables, V rows each."""
        return [module for module in self.modules() if isinstance(module, RowTable)]

    @property
    def pairs(self) -> list[tuple[RowTable, Tensor]]:
        """Each T (V, K) with its A (K, d); an empty list for a table without anchors."""
        return []

    @property
    def num_embeddings(self) -> int:
        """V."""
        return self.tables[0].num_embeddings

    @property
    def embedding_dim(self) -> int:
        """d."""
        return self.tables[0].embedding_dim

    @property
    def padding_idx(self) -> int | None:
        return self.tables[0].padding_idx

    def penalty(self, l1_penalty: float) -> Prox | None:
        """The penalty on each table, l1_penalty·‖T‖₁ where there is a T; None: there is none, whatever l1_penalty is."""
        return None

    def param_groups(self, l1_penalty: float = 0.0) -> list[Group]:
        """Optimizer groups: each table with its penalty (if any), then all other parameters without one."""
        tables = self.tables
        groups: list[Group] = [{"params": [table.weight], "prox": self.penalty(l1_penalty), "table": table} for table in tables]
        held = {id(table.weight) for table in tables}
        rest = [weight for weight in self.parameters() if id(weight) not in held]
        return [*groups, {"params": rest}] if rest else groups

    @abstractmethod
    def factors(self) -> tuple[Tensor, Tensor | None]:
        """T (V, K) and A (K, d) with E = T·A, up to date; A is None for a table without anchors. `export` writes this."""

    def arrays(self) -> tuple[np.ndarray | Nonzeros, np.ndarray | None, np.ndarray | None]:
        """T, A and the row index as a file is made from them. Of a T that processes share, the non-zeros: no process has it
        dense."""
        if (shared := self._shared()) is not None:
            return shared.nonzeros(), next((A.detach().cpu().numpy() for _, A in self.pairs), None), None
        T, A, rows = (None if part is None else part.detach().cpu().numpy() for part in (*self.factors(), self.row_index()))
        assert T is not None
        return T, A, rows

    def row_index(self) -> Tensor | None:
        """The row of T of each object (V,), where objects share rows: E = (T·A)[row_index]. None: a row an object, in order."""
        return None

    def coordinates(self, ids: Tensor) -> tuple[Tensor, Tensor | None]:
        """ids (n,) → X (n, k) and A (k, d) with vectors X·A, where k < d: if the vectors are multiplied by a matrix, multiply A
        by it first. (vectors, None) where there is nothing smaller."""
        return self(ids), None

    def logits(self, hidden: Tensor, ids: Tensor | None = None, *, bias: Tensor | None = None) -> Tensor:
        """Scores of a tied output layer, hidden (*batch, d) → E·h + bias: (*batch, V); or those of the objects `ids` (n,)
        alone: (*batch, n), whose rows alone get a gradient."""
        self.check_hidden(hidden)
        scores = hidden @ (self.to_dense() if ids is None else self(ids)).T
        return scores if bias is None else scores + (bias if ids is None else bias[ids])

    def check_hidden(self, hidden: Tensor) -> None:
        """Raise if the states have another width than the vectors."""
        if hidden.shape[-1] != self.embedding_dim:
            raise ValueError(f"hidden has {hidden.shape[-1]} dimensions, this layer {self.embedding_dim}; project it first")

    def divergence(self) -> Tensor | None:
        """A variational layer's KL(posterior ‖ prior), summed over all weights. Divide it by the number of training examples
        before adding it to a mean loss (and warm it up). None: there is no such term."""
        return None

    def set_ridge(self, total: Tensor | float, counts: Tensor) -> None:
        """A penalty of ½·total_i·‖e_i‖² on the vector of object i, over an epoch in which it is looked up counts_i times.
        `ridge` has its share of a batch. Objects that are never looked up are left alone."""
        counts = counts.to(self.tables[0].weight.device, torch.float32)
        if counts.shape != (self.num_embeddings,):
            raise ValueError(f"{tuple(counts.shape)} counts for {self.num_embeddings} objects; give one for each")
        strengths = torch.as_tensor(total, dtype=torch.float32, device=counts.device)
        self.ridge_total = torch.where(counts > 0, strengths, 0.0)
        self.ridge_per_lookup = self.ridge_total / counts.clamp(min=1)

    def ridge(self, ids: Tensor, examples: int | None = None) -> Tensor:
        """The share of a batch in the penalty of `set_ridge`, to be added to the mean loss of its examples: ids (B, …), or the
        ids of all `examples` one after the other."""
        if self.ridge_per_lookup is None or not self.ridge_active:
            return torch.zeros((), device=ids.device)
        X, A = self.coordinates(ids.reshape(-1))
        squares = X.square() if A is None else X * (X @ (A @ A.T))
        total = (squares.sum(-1) * self.ridge_per_lookup[ids.reshape(-1)]).sum()
        return total / (2 * max(len(ids) if examples is None else examples, 1))

    def flush(self) -> None:
        """Bring all rows up to date after lazy steps. Only needed where `parameters()` are read directly (EMA, SWA)."""
        for table in self.tables:
            table.flush()

    @abstractmethod
    def new_rows(self, table: RowTable, n: int) -> Tensor:
        """n rows for `table`, initialized as in a layer of the new size; of a table that processes share, those drawn here."""

    @torch.no_grad()
    def add_objects(self, n: int) -> None:
        """Append n new objects with random vectors. An existing optimizer keeps working. Processes that share the layer call it
        together."""
        if n < 0:
            raise ValueError(f"add_objects takes a number ≥ 0, got {n}")
        for table in self.tables:
            table.add_rows(self.new_rows(table, n))

    @torch.no_grad()
    def prune(self, share: float) -> int:
        """Set weights to zero whose contribution t_k·‖a_k‖ is below `share` of the mean one; → how many. Gradient noise keeps
        such weights at a small fraction of the others, where no penalty removes them. Tables without a penalty on every
        weight are meant to be dense and stay so."""
        proxes = [(group.get("table"), group.get("prox")) for group in self.param_groups(0.0)]
        penalized = {id(table) for table, prox in proxes if isinstance(prox, L1 | SubgradientL1) and prox.scheduled}
        pruned = 0
        for table, norms in self.lengths():
            if id(table) not in penalized:
                continue
            before, own = table.count_nonzeros(), 0.0
            for rows in table.weight.split(ROWS_AT_ONCE):
                own += float((rows.abs() * norms).sum())
            total = float(table.summed(torch.tensor(own, dtype=torch.float64)))
            for rows in table.weight.split(ROWS_AT_ONCE):
                parts = rows.abs() * norms
                rows[(parts < share * total / max(before, 1)) & (parts > 0)] = 0
            pruned += before - table.count_nonzeros()
        return pruned

    def keep(self, n: int) -> int:
        """Set all but the n largest contributions to zero; → how many of them were not zero before. Group lasso and
        variational layers drop entire rows, or the noisiest weights, instead."""
        return keep_largest([self], n)

    def lengths(self) -> list[tuple[RowTable, Tensor]]:
        """Each table with the norms of the vectors that its weights multiply: ‖a_k‖, or 1 in a table without anchors."""
        norms = {id(table): A.norm(dim=1) for table, A in self.pairs}
        return [(table, norms.get(id(table), table.weight.new_ones(table.embedding_dim))) for table in self.tables]

    def extra_repr(self) -> str:
        return f"{self.num_embeddings}, {self.embedding_dim}"

    def to_dense(self) -> Tensor:
        """E as one tensor: (V, d)."""
        T, A = self.factors()
        E, row_index = T if A is None else T @ A, self.row_index()
        return E if row_index is None else E[row_index]

    def to_embedding(self) -> nn.Embedding:
        """A plain nn.Embedding with the same vectors and its own memory."""
        vectors = self.to_dense().detach().clone()
        return nn.Embedding.from_pretrained(vectors, freeze=False, padding_idx=self.padding_idx)

    def usage(self) -> Usage:
        """Non-zeros, anchors in use, parameters by the paper's count, and bytes of the exported file."""
        self._warn_if_dense(exporting=False)
        return usage_of(*self.arrays(), self.padding_idx)

    def count_parameters(self) -> int:
        """nnz(T) + K·d over anchors in use, as a budget counts; the padding row counts, too."""
        if (shared := self._shared()) is not None:
            counts, A = shared.count_by_column(), next((anchors for _, anchors in self.pairs), None)
        else:
            T, A = self.factors()
            counts = T.count_nonzero(dim=0)
        return int(counts.sum()) + (0 if A is None else int((counts > 0).sum()) * A.shape[1])

    def _shared(self) -> RowTable | None:
        """The table, if processes share it."""
        return next((table for table in self.tables[:1] if table.shared), None)

    def before_export(self) -> None:
        """`export` calls it: warns of a T that is not sparse."""
        self._warn_if_dense(exporting=True)

    def _warn_if_dense(self, *, exporting: bool) -> None:
        """Warn, once a layer, of negative weights of T, and if no weight is zero though one should be: its optimizer had no
        prox, or not the layer's groups.

        A new layer has no zero either, and l1_penalty=0 leaves none. So nothing is said of a T that an optimizer with a prox
        (or a solver) has had, and `usage` says it only of one that is being trained: it has a gradient."""
        for group in self.param_groups(0.0):
            prox, table = group.get("prox"), group.get("table")
            if not isinstance(prox, NonNegativeL1) or not prox.scheduled or not isinstance(table, RowTable):
                continue
            T = table.current.detach()
            if not T.numel() or T.is_meta:
                continue
            if negative := sum(int((rows < 0).count_nonzero()) for rows in T.split(BLOCK)):  # a sum takes 8 bytes a weight
                least = f"{float(T.min()):.2g}"
                self._warn("negative", f"T has {negative:,} negative weights (smallest {least}), but weights of T are ≥ 0")
            weights = (table.num_embeddings - (table.padding_idx is not None)) * T.shape[1]
            suspicious = not table.penalized and (exporting or table.weight.grad is not None)
            if suspicious and weights and table.count_nonzeros() == weights:
                text = f"no weight of T is zero ({weights:,} of {weights:,} are not); was a proximal optimizer used?"
                self._warn("dense", text)

    def _warn(self, kind: str, text: str) -> None:
        if kind not in self.warned:
            self.warned |= {kind}
            more = "or antembed.optim.Proximal(torch.optim.…(antembed.param_groups(model, l1_penalty=…)))"
            warnings.warn(f"{text} {REMEDY}, {more}", stacklevel=4)


def check_kept(n: int) -> None:
    if n < 0:
        raise ValueError(f"the number of weights to keep must be ≥ 0, got {n}")


@torch.no_grad()
def keep_largest(layers: Iterable[Embedding], n: int) -> int:
    """Over all tables of all these layers, set all but the n largest contributions (|t_k|·‖a_k‖, or |e_k| in a table without
    anchors) to zero; → how many of them were not zero before."""
    check_kept(n)
    tables = [pair for layer in layers for pair in layer.lengths()]
    if len({table.shared for table, _ in tables}) > 1:
        raise ValueError("some of these tables are shared among processes and some are not; shard all of them, or none")
    parts = torch.cat([(table.current.abs() * norms).reshape(-1).float() for table, norms in tables])
    before = sum(table.count_nonzeros() for table, _ in tables)
    if n >= before:
        return 0
    dropped = ~tables[0][0].largest(parts, n, partial(numbers_of, [table for table, _ in tables], None))
    for (table, _), drop in zip(tables, dropped.split([table.weight.numel() for table, _ in tables]), strict=True):
        table.weight[drop.view(table.weight.shape)] = 0
    return before - sum(table.count_nonzeros() for table, _ in tables)


def param_groups(model: nn.Module, l1_penalty: float, weight_decay: float = 0.0) -> list[Group]:
    """Optimizer groups of a model: each T with the penalty l1_penalty·‖T‖₁, everything else without one.

    `weight_decay` (decoupled) applies to tables without a penalty and to anchors, not to T and not to the rest of the model.

    optimizer = ProximalYogi(param_groups(model, l1_penalty=2e-6), lr=0.01)"""
    groups = [group for layer in model.modules() if isinstance(layer, Embedding) for group in layer.param_groups(l1_penalty)]
    for group in groups:
        prox = group.get("prox")
        group["weight_decay"] = weight_decay if prox is None or not prox.scheduled else 0.0
    seen = {id(weight) for group in groups for weight in group["params"]}
    rest = [weight for weight in model.parameters() if id(weight) not in seen]
    return [*groups, {"params": rest}] if rest else groups
