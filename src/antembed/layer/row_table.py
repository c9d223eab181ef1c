"""RowTable, the table of rows inside every layer: an nn.Embedding whose rows an optimizer may keep exactly lazy.

It is an nn.Embedding because DDP supports row-sparse gradients only for those. How lazy rows work is in layer/optim/lazy.py;
its readers see none of it. A context may say how new tables are drawn (`making_rows`).
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from numbers import Integral

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.types import Device

from antembed.files import JSON
from antembed.layer.lookup import ReadPending
from antembed.layer.optim.lazy import LazyRows, in_huge_pages
from antembed.layer.optim.lazy_kernel import Groups
from antembed.layer.optim.prox import FreeEntries
from antembed.tables.number_formats import BLOCK, Nonzeros

WORTH_GROUPING = 2048  # ids
ROWS_AT_ONCE = 1 << 20  # where intermediate results for all rows might not fit into memory
IN_CACHE = 1 << 21  # scores that are held at a time
MOSTLY_DISTINCT = 0.75  # share of distinct ids above which torch's products are not faster for grouping

# Positions of entries → their numbers, which do not depend on how many processes there are.
Numbers = Callable[[Tensor], Tensor]
# first, stop, K, dtype → N(0, 1) for the ids first … stop of a table (stop − first, K), by a seed and the ids alone.
Noise = Callable[[int, int, int, torch.dtype], Tensor]
# V, K, padding_idx, sparse, dtype, std → a table whose rows start as N(0, std²), or, if that is None, as |N(0, 1)|·√(2/V).
MakeRows = Callable[[int, int, int | None, bool, torch.dtype | None, float | None], "RowTable"]
_make: ContextVar[MakeRows | None] = ContextVar("make_rows", default=None)


class RowTable(nn.Embedding):
    """ids: (*batch) → rows: (*batch, K), up to date even if the optimizer is lazy. Only `weight` itself, as `parameters()`
    returns it (to EMA or SWA, say), may lag behind: call the optimizer's `flush()` before using that."""

    pending: LazyRows | None = None
    penalized = False  # an optimizer that applies the prox, or a solver, has had this table
    support: Tensor | None = None  # (V, K) of bool: the entries that an optimizer can move (freeze_support); None: all
    shared = False  # `weight` has the rows of this process alone, others hold the rest (layer/sharded/sharded_table.py)
    noise: Noise | None = None  # where the rows were drawn from, and new ones are; None: torch's generator

    def __init__(self, weight: Tensor, padding_idx: int | None, sparse: bool):
        V, K = weight.shape
        super().__init__(V, K, from_the_front(padding_idx, V), sparse=sparse, _weight=weight)
        self._zero_padding()

    def forward(self, ids: Tensor) -> Tensor:
        if self.pending is not None:
            check_ids(ids, self.num_embeddings)
            return ReadPending.apply(ids, self.weight, self.padding_idx, self.pending)
        check_integers(ids)
        if torch.compiler.is_compiling():
            return F.embedding(ids, self.weight, self.padding_idx, sparse=self.sparse)
        try:
            return F.embedding(ids, self.weight, self.padding_idx, sparse=self.sparse)
        except (IndexError, RuntimeError):  # an empty table raises the second
            check_range(ids, self.num_embeddings)
            raise

    @property
    def current(self) -> Tensor:
        """All rows, up to date."""
        self.flush()
        return self.weight

    def flush(self) -> None:
        """Apply the updates that the optimizer has deferred."""
        if self.pending is not None:
            self.pending.flush()

    def release(self) -> None:
        """Flush, and detach the optimizer until its next step."""
        self.flush()
        self.pending = None

    def groups(self, ids: Tensor, most_distinct: float = 1.0) -> Groups | None:
        """Equal ids grouped, if rows are lazy, there are enough ids, and at most this share of them is distinct."""
        if self.pending is None or ids.numel() < WORTH_GROUPING:
            return None
        check_ids(ids, self.num_embeddings)
        groups = self.pending.group(ids.reshape(-1))
        return groups if groups is not None and len(groups.unique) <= most_distinct * ids.numel() else None

    # What is different where processes share a table. Each of these is called by all of them.

    def full_tensor(self) -> Tensor:
        """All rows in the order of the ids, up to date, with gradients: (V, K)."""
        return self.current

    def own(self, values: Tensor) -> Tensor:
        """Of one row an id (V, …), those whose rows are held here, in the order of `weight`."""
        return values

    def own_entries(self, free: FreeEntries) -> FreeEntries:
        """The free entries of the rows held here, by their position in `weight`."""
        return free

    def summed(self, values: Tensor) -> Tensor:
        """The sum over all processes."""
        return values

    def agreed(self, number: float) -> float:
        """That of rank 0: what is decided by it must be decided alike, also on other processors."""
        return number

    @property
    def own_padding(self) -> int | None:
        """The position of the padding row in `weight`; None if it is not here."""
        return self.padding_idx

    def nth_largest(self, values: Tensor, n: int) -> float:
        """The n-th largest of these numbers ≥ 0 (negative ones are left out), of all processes together."""
        return float(values.topk(n).values[-1])

    def ids_at(self, positions: Tensor) -> Tensor:
        """The ids of rows of `weight`."""
        return positions

    def largest(self, values: Tensor, n: int, numbers: Numbers) -> Tensor:
        """True at the n largest of these numbers ≥ 0 (negative ones are left out), of all processes together. Of equal ones the
        first by `numbers`, which rise along `values`."""
        if n == 0:
            return torch.zeros(len(values), dtype=torch.bool, device=values.device)
        least = values.topk(n).values[-1]
        mask, equal = values > least, (values == least).nonzero()[:, 0]
        mask[equal[: n - int(mask.sum())]] = True
        return mask

    def log_total(self, states: Tensor, bias: Tensor) -> Tensor:
        """log Σ_i exp(x_i·s + b_i) over all rows x_i, for states s (n, K) and b (V,): (n,). Rows are taken some at a time, so
        that their scores stay in the cache."""
        return log_total(self.current, states, bias)

    def log_totals(self, states: Tensor, bias: Tensor, learn_padding: bool = False) -> Tensor:
        """The same with gradients, of the padding row only if asked for. Where processes share the table, each has its own
        states."""
        rows = self.full_tensor()
        if self.padding_idx is not None and not learn_padding:
            rows = rows.index_fill(0, torch.tensor(self.padding_idx, device=rows.device), 0.0)
        return torch.addmm(bias, states, rows.T).logsumexp(1)

    def blocks(self) -> Iterator[Tensor]:
        """All rows in the order of the ids, up to date, some at a time: (n, K)."""
        yield from self.current.detach().split(BLOCK)

    def nonzeros(self) -> Nonzeros:
        """T as its non-zeros, in the order of the ids."""
        dtype = torch.empty(0, dtype=self.weight.dtype).numpy().dtype
        return Nonzeros.gathered((block.cpu().numpy() for block in self.blocks()), self.embedding_dim, dtype)

    def check_agreement(self, rates: dict[str, float]) -> None:
        """Raise if another process is about to make another step."""

    def count_nonzeros(self) -> int:
        """nnz over all rows."""
        return int(sum((rows.count_nonzero() for rows in self.current.split(ROWS_AT_ONCE)), torch.tensor(0)))

    def count_by_column(self) -> Tensor:
        """nnz of each column over all rows: (K,)."""
        counts = (rows.count_nonzero(dim=0) for rows in self.current.split(BLOCK))  # in between, 8 bytes a weight
        return sum(counts, torch.zeros(self.embedding_dim, dtype=torch.long, device=self.weight.device))

    def new_normal(self, n: int) -> Tensor:
        """N(0, 1) for n rows that are to be added: (n, K), or those of them that this process draws."""
        K, dtype = self.embedding_dim, self.weight.dtype
        if self.noise is None:
            return torch.randn(n, K, device=self.weight.device, dtype=dtype)
        return self.noise(self.num_embeddings, self.num_embeddings + n, K, dtype).to(self.weight.device)

    def used_by(self, optimizer: Optimizer) -> None:
        """An optimizer has this table: its state is by the rows of `weight`."""

    def add_rows(self, rows: Tensor) -> None:
        """Append rows, as many as `new_normal` gives. The parameter object stays the same, so an optimizer keeps its state for
        the old rows."""
        self.release()
        self.weight.data, self.weight.grad = torch.cat([self.weight.data, rows.to(self.weight)]), None
        self.num_embeddings = self.weight.shape[0]

    def replace(self, weight: Tensor) -> None:
        """Replace the data of the parameter, e.g. by a table of another width."""
        self.release()
        self.weight.data, self.weight.grad = weight, None
        self.num_embeddings, self.embedding_dim = weight.shape
        self.penalized = True

    @torch.no_grad()
    def reset_to(self, weight: Tensor) -> None:
        """Start again from these weights; the padding row is zero."""
        self.release()
        self.weight.copy_(weight)
        self._zero_padding()
        self.penalized = False

    @torch.no_grad()
    def _zero_padding(self) -> None:
        if (row := self.own_padding) is not None:
            self.weight[row].zero_()

    def reset_parameters(self) -> None:
        """Nothing: the layer initializes its tables. (nn.Embedding's N(0, 1) would make T negative.)"""

    # Everything that reads or moves all rows flushes them first.

    def train(self, mode: bool = True) -> "RowTable":
        if not mode:
            self.release()
        return super().train(mode)

    def _save_to_state_dict(self, *args: object, **kwargs: object) -> None:
        self.flush()
        super()._save_to_state_dict(*args, **kwargs)

    def _load_from_state_dict(self, *args: object, **kwargs: object) -> None:
        self.release()  # deferred updates must not be applied to the loaded rows
        super()._load_from_state_dict(*args, **kwargs)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "RowTable":
        self.release()
        return super()._apply(fn, recurse)

    def __getstate__(self) -> JSON:
        self.flush()  # copies are up to date and have no optimizer
        return {**self.__dict__, "pending": None}


def log_total(rows: Tensor, states: Tensor, bias: Tensor) -> Tensor:
    """The same of these rows (m, K) and b (m,)."""
    total, step = states.new_full((len(states),), -torch.inf), max(IN_CACHE // max(len(states), 1), 1)
    for some, offsets in zip(rows.split(step), bias.split(step), strict=True):
        total = torch.logaddexp(total, torch.addmm(offsets, states, some.T).logsumexp(1))
    return total


def check_integers(ids: Tensor) -> None:
    """Raise if `ids` could not be row numbers."""
    if not isinstance(ids, Tensor):
        raise TypeError(f"ids must be a tensor of integers, got a {type(ids).__name__}; wrap them in torch.tensor(…)")
    if ids.dtype not in (torch.int64, torch.int32):
        raise TypeError(f"ids must be int32 or int64, got {ids.dtype}; convert them with ids.long()")


def check_range(ids: Tensor, V: int) -> None:
    """Raise if an id is none of 0 … V − 1."""
    if ids.numel() == 0:
        return
    low, high = (int(bound) for bound in ids.aminmax())
    if high >= V:
        raise IndexError(f"id {high} is outside a table of {V} rows; grow it with layer.add_objects({high - V + 1})")
    if low < 0:
        raise IndexError(f"id {low} is negative; a table of {V} rows has the ids 0 to {V - 1}")


def check_ids(ids: Tensor, V: int) -> None:
    """Both checks, for a layer that indexes a tensor by the ids first (where −1 would silently be the last)."""
    check_integers(ids)
    if not torch.compiler.is_compiling() and ids.device.type == "cpu":
        check_range(ids, V)


def numbers_of(tables: Sequence[RowTable], masks: Sequence[Tensor] | None, positions: Tensor) -> Tensor:
    """Numbers of entries by table, id and column. `positions` (sorted) are among the entries of all tables one after the other,
    or among those where `masks` (a mask like `weight` for each) are true."""
    found, begin, before = [], 0, 0
    for which, table in enumerate(tables):
        K, mask = table.embedding_dim, None if masks is None else masks[which].reshape(-1)
        size = table.weight.numel() if mask is None else int(mask.sum())
        here = positions[(positions >= begin) & (positions < begin + size)] - begin
        flat = here if mask is None or not len(here) else mask.nonzero()[:, 0][here]
        found.append(before + table.ids_at(flat // K) * K + flat % K)
        begin, before = begin + size, before + table.num_embeddings * K
    return torch.cat(found)


def from_the_front(padding_idx: int | None, V: int) -> int | None:
    """A padding index as nn.Embedding takes it: negative ones count from the end."""
    if padding_idx is not None and not isinstance(padding_idx, Integral):
        raise TypeError(f"padding_idx is an integer, got {padding_idx!r}")
    if padding_idx is not None and not -V <= padding_idx < V:
        remedy = f"give one of {-V} to {V - 1}" if V else "leave it out"
        raise ValueError(f"padding_idx {padding_idx} is outside a table of {V} rows; {remedy}")
    return padding_idx + V if padding_idx is not None and padding_idx < 0 else padding_idx


def check_sizes(num_embeddings: int, embedding_dim: int, num_anchors: int, dtype: torch.dtype | None) -> None:
    """Raise if a table of these sizes cannot be made, and name the number that is wrong."""
    for name, size in (("num_embeddings", num_embeddings), ("embedding_dim", embedding_dim), ("num_anchors", num_anchors)):
        if not isinstance(size, Integral):
            raise TypeError(f"{name} is an integer, got {size!r}; convert it with int()")
    if num_embeddings < 0:
        raise ValueError(f"num_embeddings must be ≥ 0, got {num_embeddings}")
    if embedding_dim < 1:
        raise ValueError(f"embedding_dim must be ≥ 1, got {embedding_dim}")
    if num_anchors < 1:
        raise ValueError(f"num_anchors must be ≥ 1, got {num_anchors}; start with 10 to 100")
    if dtype in (torch.float16, torch.bfloat16):
        raise ValueError(
            f"dtype {dtype} is too coarse for T: the prox takes steps far below its resolution; keep float32 and run "
            "the model under torch.autocast"
        )


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
    V: int, K: int, padding_idx: int | None, sparse: bool, device: Device, dtype: torch.dtype | None, std: float | None = None
) -> RowTable:
    """A table (V, K) as it starts: N(0, std²), or half_normal."""
    if (make := _make.get()) is not None:
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
