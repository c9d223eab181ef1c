"""ShardedRowTable: a table of rows of which each process holds a part; ids are those of the full table.

    ids → distinct rows → to their owners (4 bytes each) → rows, up to date by the owner's lazy clocks → back (K numbers each)

Gradients go back the same way, and arrive as one row-sparse gradient. Lazy rows are exact in each process by itself, because
their clocks depend on the step, the learning rate and the penalty alone: `check_agreement` compares these.
"""

import gc
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast
from weakref import ref

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.optim import Optimizer

from antembed.layer.lookup import ReadPending
from antembed.layer.optim.lazy_kernel import Groups
from antembed.layer.optim.prox import L1, FreeEntries
from antembed.layer.optim.proximal_optimizer import SHARED, ProximalOptimizer, State
from antembed.layer.row_table import IN_CACHE, Numbers, RowTable, check_integers, check_range, from_the_front, log_total
from antembed.layer.sharded.collectives import Exchange, Ranks
from antembed.tables.number_formats import BLOCK

GOLDEN = (5**0.5 - 1) / 2  # its multiples are spread most evenly
WIDTH = 8  # columns that are sent at a time: what is on its way needs memory, too
LOOK_UP, ADD_UP, LOG_TOTAL = 0, 1, 2  # how a table is read
LARGEST = 2**62  # no table has so many entries
BITS = {torch.float32: torch.int32, torch.float64: torch.int64}  # of numbers ≥ 0, larger ones have larger bits
STEP_ALIKE = "all ranks must make the same steps with the same learning rate and penalty, also with an empty batch"
DOING = "adding up scores"


@dataclass(frozen=True)
class Spread:
    """V rows over n processes: the row of an id is (a·id) mod V, and each process holds a range of rows.

    Ids are often sorted by frequency, and a range of them would make rank 0 serve most of the rows. The row does not depend on
    the number of processes, so that a checkpoint can be cut anew."""

    V: int
    n: int

    @cached_property
    def factor(self) -> int:
        """a: coprime to V, near V times the golden ratio, and such that a·id fits into 64 bits."""
        a = max(min(int(GOLDEN * self.V), (2**63 - 1) // max(self.V, 1)), 1)
        while math.gcd(a, self.V) != 1 and a > 1:
            a -= 1
        return a

    @property
    def size(self) -> int:
        """Rows of a process; the last ones may have fewer. The cut of torch.chunk and DTensor."""
        return -(-self.V // self.n)

    def range(self, rank: int) -> tuple[int, int]:
        """The rows that a process holds."""
        return min(rank * self.size, self.V), min((rank + 1) * self.size, self.V)

    def rows(self, ids: Tensor) -> Tensor:
        """ids → rows."""
        return ids.long() * self.factor % max(self.V, 1)

    def ids(self, rank: int) -> Tensor:
        """The ids whose rows a process holds, in their order."""
        return self.ids_at(torch.arange(*self.range(rank)))

    def ids_at(self, rows: Tensor) -> Tensor:
        """rows → ids."""
        inverse = pow(self.factor, -1, self.V) if self.V > 1 else 0
        if inverse * self.V < 2**63:
            return rows * inverse % max(self.V, 1)
        return torch.tensor([row * inverse % self.V for row in rows.tolist()], dtype=torch.long)


class Move:
    """From the rows of `old` and new ones, `drawn[r]` by rank r, to the rows of `new`; made and called by all processes.

    When a table grows, (a·id) mod V is elsewhere: each process sends every row that it holds, or has drawn, to its holder in
    the larger table. Ids are not sent: both ends know from the two spreads which rows these are, and in which order."""

    def __init__(self, ranks: Ranks, old: Spread, drawn: list[int]):
        self.ranks, self.new = ranks, Spread(old.V + sum(drawn), ranks.size)
        ends = old.V + torch.tensor(drawn).cumsum(0)
        mine = torch.arange(int(ends[ranks.rank]) - drawn[ranks.rank], int(ends[ranks.rank]))
        rows = self.new.rows(torch.cat([old.ids(ranks.rank), mine]))
        self.order = rows.argsort()  # by holder
        self.send = self._counts(rows // max(self.new.size, 1))
        held = self.new.ids(ranks.rank)
        from_old = old.rows(held.clamp(max=max(old.V - 1, 0))) // max(old.size, 1)
        sender = torch.where(held < old.V, from_old, torch.searchsorted(ends, held, right=True))
        self.receive = self._counts(sender)
        self.arrival = sender.argsort(stable=True)  # by sender; of one sender, in the order of the rows

    def _counts(self, owners: Tensor) -> list[int]:
        return [int(count) for count in torch.bincount(owners, minlength=self.ranks.size)]

    def __call__(self, rows: Tensor, drawn: Tensor) -> Tensor:
        """Of (m, K) rows held here and those drawn here: the rows held here afterwards."""
        found = rows.new_empty(len(self.arrival), rows.shape[1])
        for first in range(0, rows.shape[1], WIDTH):
            columns = slice(first, first + WIDTH)
            leaving = torch.cat([rows[:, columns], drawn[:, columns].to(rows)])[self.order]
            found[self.arrival, columns] = self.ranks.swap(leaving, self.send, self.receive, "moving rows")
        return found


class SharedLogTotal(torch.autograd.Function):
    """log Σ_i exp(x_i·s + b_i) over the rows of a shared table, of states that each process has for itself.

    states (m, K), the rows of this process (V/n, K), b (V,) → (m,). T stays where it is: states go to all processes, each adds
    up the rows that it holds and returns one number a state; on the way back, the gradients of the states and of b. So each
    sends about 2·(n − 1)·m·K numbers, and V·(n − 1)/n for the gradient of b, where the rows and their gradients would be
    2·(n − 1)·V·K/n. The gradient of the rows is divided by n, as that of all shared rows is; those of states and b are of this
    process's own result. `fixed`: a row that has no gradient."""

    @staticmethod
    def forward(
        ctx: Any, states: Tensor, weight: Tensor, bias: Tensor, ranks: Ranks, spread: Spread, fixed: int | None
    ) -> Tensor:
        n, m = ranks.size, len(states)
        counts = ranks.gather(torch.tensor(m)).tolist()
        own_bias = bias[spread.ids(ranks.rank)]
        every = to_all(states, counts, ranks)
        partial = torch.cat([log_total(weight, some, own_bias) for some in every.split(counts)])
        total = ranks.swap(partial, counts, [m] * n, DOING).view(n, m).logsumexp(0)
        ctx.save_for_backward(every, weight, own_bias, total)
        ctx.about = counts, ranks, spread, fixed
        return total

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor | None, ...]:
        every, weight, own_bias, found = ctx.saved_tensors
        counts, ranks, spread, fixed = ctx.about
        n, m = ranks.size, len(found)
        totals, scales = to_all(torch.stack([found, outer[0]], 1), counts, ranks).unbind(1)
        dweight, dstates, dbias = torch.zeros_like(weight), torch.zeros_like(every), weight.new_zeros(n, len(weight))
        parts = zip(every.split(counts), totals.split(counts), scales.split(counts), dstates.split(counts), dbias, strict=True)
        for states, total, scale, dsome, db in parts:
            step = max(IN_CACHE // max(len(states), 1), 1)
            for first in range(0, len(weight), step):
                some = slice(first, first + step)
                scores = torch.addmm(own_bias[some], states, weight[some].T)
                shares = scores.sub_(total.unsqueeze(1)).exp_().mul_(scale.unsqueeze(1))
                dweight[some].addmm_(shares.T, states)
                dsome.addmm_(shares, weight[some])
                db[some] = shares.sum(0)
        if fixed is not None:
            dweight[fixed] = 0
        dstates = ranks.swap(dstates, counts, [m] * n, DOING).view(n, m, every.shape[1]).sum(0)
        sizes = [stop - start for start, stop in map(spread.range, range(n))]
        by_row = ranks.swap(dbias.view(-1), [len(weight)] * n, sizes, DOING)
        dbias = by_row[spread.rows(torch.arange(spread.V))]
        return dstates, dweight / n, dbias, None, None, None


def to_all(values: Tensor, counts: list[int], ranks: Ranks) -> Tensor:
    """The rows of all processes, one after the other; counts[r] are those of rank r."""
    n = ranks.size
    return ranks.swap(values.repeat(n, *[1] * (values.dim() - 1)), [len(values)] * n, counts, DOING)


class ShardedRowTable(RowTable):
    """ids (*batch) → rows (*batch, K) of V rows, of which `weight` has those of this process. All processes look up at the same
    time, with as many ids as they have, perhaps none."""

    shared = True
    ask: Callable[[int], object] | None = None  # rank 0, served by the others (train/processes.py): say how this is read

    def __init__(self, weight: Tensor, num_embeddings: int, padding_idx: int | None, ranks: Ranks, sparse: bool = True):
        super().__init__(weight, None, sparse)
        self.ranks, self.spread = ranks, Spread(num_embeddings, ranks.size)
        self.optimizers: list[ref[Optimizer]] = []
        self.start, stop = self.spread.range(ranks.rank)
        if len(weight) != stop - self.start:
            raise ValueError(f"rank {ranks.rank} holds {stop - self.start} of {num_embeddings} rows, not {len(weight)}")
        self.num_embeddings = num_embeddings
        self.padding_idx = from_the_front(padding_idx, num_embeddings)
        self._zero_padding()
        self._share()

    @classmethod
    def cut(cls, table: RowTable, ranks: Ranks) -> "ShardedRowTable":
        """The part of this process of a table that every process has."""
        ids = Spread(table.num_embeddings, ranks.size).ids(ranks.rank)
        weight = table.current.detach()[ids.to(table.weight.device)].clone()
        return cls(weight, table.num_embeddings, table.padding_idx, ranks, table.sparse)

    def joined(self) -> RowTable:
        """All rows in an ordinary table, in every process."""
        rows = self.weight.new_empty(self.num_embeddings, self.embedding_dim)
        for part, block in zip(rows.split(BLOCK), self.blocks(), strict=True):
            part.copy_(block)
        return RowTable(rows, self.padding_idx, self.sparse)

    @torch.no_grad()
    def blocks(self) -> Iterator[Tensor]:
        for start in range(0, self.num_embeddings, BLOCK):
            yield self(torch.arange(start, min(start + BLOCK, self.num_embeddings)))

    def _share(self) -> None:
        SHARED[self.weight] = self.ranks.sum  # not self.summed, which would keep the table alive

    @property
    def own_padding(self) -> int | None:
        if self.padding_idx is None:
            return None
        own = int(self.spread.rows(torch.tensor(self.padding_idx))) - self.start
        return own if 0 <= own < len(self.weight) else None

    def forward(self, ids: Tensor) -> Tensor:
        check_integers(ids)
        flat = ids.reshape(-1)
        wrong = flat[(flat < 0) | (flat >= self.num_embeddings)][:1]  # raised once all processes know of it
        rows, back = self.spread.rows(flat if not len(wrong) else flat[:0]).unique(return_inverse=True)  # sorted: by owner
        n, size = self.ranks.size, max(self.spread.size, 1)
        counts = torch.bincount(rows // size, minlength=n)
        problem = torch.full_like(counts, int(wrong)) if len(wrong) else torch.zeros_like(counts)
        header = torch.stack([counts, torch.full_like(counts, len(wrong)), problem], 1)
        if self.ask is not None:
            self.ask(LOOK_UP)
        answers = self.ranks.swap(header.cpu(), [1] * n, [1] * n, "looking up rows")
        if len(failed := answers[:, 1].nonzero()[:, 0]):  # the same error everywhere, which says whose it is
            try:
                check_range(answers[failed[0], 2], self.num_embeddings)
            except IndexError as error:
                raise IndexError(f"rank {int(failed[0])}: {error}") from None
        send, receive = counts.tolist(), answers[:, 0].tolist()
        narrow = torch.int32 if size < 2**31 else torch.int64
        wanted = self.ranks.swap((rows % size).to(narrow), send, receive, "sending ids").long()
        found = Exchange.apply(self._read(wanted), receive, send, self.ranks)
        return found.index_select(0, back).view(*ids.shape, self.embedding_dim)

    def _read(self, rows: Tensor) -> Tensor:
        if self.pending is not None:
            return ReadPending.apply(rows, self.weight, self.own_padding, self.pending)
        return F.embedding(rows, self.weight, self.own_padding, sparse=self.sparse)

    def groups(self, ids: Tensor, most_distinct: float = 1.0) -> Groups | None:
        return None  # forward sends each row once

    def full_tensor(self) -> Tensor:
        return self(torch.arange(self.num_embeddings, device=self.weight.device))

    def own(self, values: Tensor) -> Tensor:
        return values[self.spread.ids(self.ranks.rank).to(values.device)]

    def own_entries(self, free: FreeEntries) -> FreeEntries:
        rows = self.spread.rows(free.objects) - self.start
        here = (rows >= 0) & (rows < len(self.weight))
        return FreeEntries(rows[here], free.columns[here], (len(self.weight), free.shape[1]))

    def summed(self, values: Tensor) -> Tensor:
        return self.ranks.sum(values)

    def agreed(self, number: float) -> float:
        return float(self.ranks.from_first({"number": number})["number"])

    def nth_largest(self, values: Tensor, n: int) -> float:
        bits = values.view(BITS[values.dtype])
        return float(bits.new_tensor(self._nth_bits(bits, n)).view(values.dtype))

    def _nth_bits(self, bits: Tensor, n: int) -> int:
        """The largest bits that at least n numbers reach."""
        infinite = torch.inf * torch.ones((), dtype=torch.float32 if bits.dtype == torch.int32 else torch.float64)
        return _bisect(0, int(infinite.view(bits.dtype)), lambda bound: int(self.summed((bits >= bound).sum())) >= n)

    def largest(self, values: Tensor, n: int, numbers: Numbers) -> Tensor:
        bits = values.view(BITS[values.dtype])
        low = self._nth_bits(bits, n)
        mask = bits > low
        equal = (bits == low).nonzero()[:, 0]
        left, found = n - int(self.summed(mask.sum())), numbers(equal)  # of equal ones the first, of all processes together
        mask[equal[found <= _bisect(-1, LARGEST, lambda bound: int(self.summed((found <= bound).sum())) <= left)]] = True
        return mask

    def ids_at(self, positions: Tensor) -> Tensor:
        return self.spread.ids_at(positions + self.start)

    def count_nonzeros(self) -> int:
        return int(self.count_by_column().sum())

    def count_by_column(self) -> Tensor:
        if self.ask is not None:
            self.ask(ADD_UP)
        return self.summed(super().count_by_column())

    def log_total(self, states: Tensor, bias: Tensor) -> Tensor:
        """Each process over its own rows; all have the same states, or rank 0 has them, while the others serve it."""
        if self.ask is not None:
            self.ask(LOG_TOTAL)
            return self.serve_log_total(states, bias)
        return self._log_total(states, bias)

    def serve_log_total(self, states: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
        """The same of what rank 0 gives."""
        kind = self.weight.dtype
        return self._log_total(self.ranks.tensor_from_first(states, kind, 2), self.ranks.tensor_from_first(bias, kind, 1))

    def _log_total(self, states: Tensor, bias: Tensor) -> Tensor:
        return self.ranks.gather(log_total(self.current, states, self.own(bias))).logsumexp(0)

    def log_totals(self, states: Tensor, bias: Tensor, learn_padding: bool = False) -> Tensor:
        fixed = None if learn_padding else self.own_padding
        return cast(Tensor, SharedLogTotal.apply(states, self.current, bias, self.ranks, self.spread, fixed))

    def check_agreement(self, rates: dict[str, float]) -> None:
        self.ranks.check_same(rates, STEP_ALIKE)

    def new_normal(self, n: int) -> Tensor:
        """Each process draws an equal part, if that is by blocks; else rank 0 draws all, as one process does."""
        rank, size, V = self.ranks.rank, self.ranks.size, self.num_embeddings
        self.ranks.check_same({"the number of new objects": n}, "add equally many on every rank")
        if self.noise is None:
            return super().new_normal(n if self.ranks.first else 0)
        first, stop = V + n * rank // size, V + n * (rank + 1) // size
        return self.noise(first, stop, self.embedding_dim, self.weight.dtype)

    def used_by(self, optimizer: Optimizer) -> None:
        self.optimizers = [*(own for own in self.optimizers if own() not in (None, optimizer)), ref(optimizer)]

    def add_rows(self, rows: Tensor) -> None:
        """`rows`: those that this process has drawn; they follow those of lower ranks. Most rows get other holders, and the
        state of the optimizers follows them."""
        optimizers, drawn = self._optimizers(), self.ranks.gather(torch.tensor(len(rows))).tolist()
        self.release()
        move, rows = Move(self.ranks, self.spread, drawn), rows.to(self.weight)
        for optimizer in optimizers:
            optimizer.move_rows(self.weight, move, rows)
        self.support = None if self.support is None else move(self.support, torch.ones_like(rows, dtype=torch.bool))
        self.weight.data, self.weight.grad = move(self.weight.data, rows), None
        self.spread, self.num_embeddings = move.new, move.new.V
        self.start = self.spread.range(self.ranks.rank)[0]

    def _optimizers(self) -> list[ProximalOptimizer]:
        """Those whose state follows the rows; an error if it cannot."""
        gc.collect()  # so that unused ones are gone everywhere
        alive = [own() for own in self.optimizers]
        found = [optimizer for optimizer in alive if isinstance(optimizer, ProximalOptimizer)]
        self.ranks.check_same({"the number of optimizers of this table": len(found)}, "make them alike on every rank")
        for prox in [optimizer.group_of(self.weight)["prox"] for optimizer in found]:
            if isinstance(prox, L1) and prox.free is not None:
                raise ValueError(
                    f"free entries are for a table of {self.num_embeddings} rows; set the group's prox.free to None, add "
                    "objects, then set it to layer.rows.own_entries(…) of the larger table"
                )
        return found

    def replace(self, weight: Tensor) -> None:
        if len(weight) != len(self.weight):
            raise ValueError(f"rank {self.ranks.rank} holds {len(self.weight)} rows, not {len(weight)}")
        super().replace(weight)
        self.num_embeddings = self.spread.V

    def __getstate__(self) -> State:
        return {**super().__getstate__(), "optimizers": []}  # copies have none

    def __setstate__(self, state: State) -> None:
        super().__setstate__(state)
        self._share()


def _bisect(low: int, high: int, holds: Callable[[int], bool]) -> int:
    """The largest number in low … high that `holds`; it holds at `low`, and at all numbers below one where it holds."""
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if holds(middle) else (low, middle - 1)
    return low
