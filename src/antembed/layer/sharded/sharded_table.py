"""ShardedRowTable: a table of rows of which each process holds a part; ids are those of the whole table.

    ids → distinct rows → to their owners (4 bytes each) → rows, up to date by the owner's lazy clocks → back (K numbers each)

Gradients go back the same way, and arrive as one row-sparse gradient. Lazy rows are exact in each process by itself, because
their clocks depend on the step, the learning rate and the penalty alone: `check_agreement` compares these.
"""

import gc
from collections.abc import Callable, Iterator
from typing import Any
from weakref import ref

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.optim import Optimizer

from antembed.layer.group_kernel import Groups
from antembed.layer.lookup import ReadPending
from antembed.layer.optim.clip import SHARED
from antembed.layer.optim.prox import L1, FreeEntries, NonNegativeL1
from antembed.layer.optim.proximal import ProximalOptimizer, State
from antembed.layer.row_table import IN_CACHE, Numbers, RowTable, check_integers, check_range, from_the_front, log_total
from antembed.layer.sharded.collectives import Exchange, Ranks
from antembed.layer.sharded.placement import Move, Spread
from antembed.tables.nonzeros import BLOCK

# MERGED log Σ_i exp(x_i·s + b_i) over the rows of a shared table, for states of which each process has its own; T stays where it is.
#
# States (K numbers each) go to all processes. Each adds up the rows that it holds and returns one number a state; on the way
# back, the gradients of the states and of b. So a process sends about 2·(n − 1)·m·K numbers for m states, and V·(n − 1)/n for the
# gradient of b, where the rows and their gradients would be 2·(n − 1)·V·K/n.

DOING = "adding up scores"


class SharedLogTotal(torch.autograd.Function):
    """states (m, K), the rows of this process (V/n, K), b (V,) → (m,). The gradient of the rows is divided by n, as that of
    all shared rows is; those of states and b are of this process's own result. `fixed`: a row that has no gradient."""

    @staticmethod
    def forward(
        ctx: Any, states: Tensor, weight: Tensor, bias: Tensor, ranks: Ranks, spread: Spread, fixed: int | None
    ) -> Tensor:
        n, m = ranks.size, len(states)
        counts = ranks.gather(torch.tensor(m)).tolist()
        own_bias = bias[spread.ids(ranks.rank)]
        every = to_all(states, counts, ranks)
        partial = torch.cat([log_total(weight, some, own_bias) for some in every.split(counts)])
        found = ranks.swap(partial, counts, [m] * n, DOING).view(n, m).logsumexp(0)
        ctx.save_for_backward(every, weight, own_bias, found)
        ctx.about = counts, ranks, spread, fixed
        return found

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
        by_place = ranks.swap(dbias.view(-1), [len(weight)] * n, sizes, DOING)
        dbias = by_place[spread.places(torch.arange(spread.V))]
        return dstates, dweight / n, dbias, None, None, None


def to_all(values: Tensor, counts: list[int], ranks: Ranks) -> Tensor:
    """The rows of all processes, one after the other; counts[r] are those of rank r."""
    n = ranks.size
    return ranks.swap(values.repeat(n, *[1] * (values.dim() - 1)), [len(values)] * n, counts, DOING)


STEP_ALIKE = "all ranks must make the same steps with the same learning rate and penalty, also with an empty batch"
LOOK_UP, ADD_UP, LOG_TOTAL = 0, 1, 2  # how a table is read
LARGEST = 2**62  # no table has so many entries
BITS = {torch.float32: torch.int32, torch.float64: torch.int64}  # of numbers ≥ 0, larger ones have larger bits


class ShardedRowTable(RowTable):
    """ids (*batch) → rows (*batch, K) of V rows, of which `weight` has those of this process. All processes look up at the same
    time, with as many ids as they have, perhaps none."""

    shared = True
    ask: Callable[[int], object] | None = None  # of rank 0, while the others serve it (served.py): say how this table is read

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
        """The whole table as an ordinary one, in every process."""
        whole = self.weight.new_empty(self.num_embeddings, self.embedding_dim)
        for part, block in zip(whole.split(BLOCK), self.blocks(), strict=True):
            part.copy_(block)
        return RowTable(whole, self.padding_idx, self.sparse)

    @torch.no_grad()
    def blocks(self) -> Iterator[Tensor]:
        for start in range(0, self.num_embeddings, BLOCK):
            yield self(torch.arange(start, min(start + BLOCK, self.num_embeddings)))

    def _share(self) -> None:
        SHARED[self.weight] = self.ranks.sum  # not self.summed, which would keep the table alive

    @property
    def own_padding(self) -> int | None:
        """The place of the padding row in `weight`, if it is here."""
        if self.padding_idx is None:
            return None
        place = int(self.spread.places(torch.tensor(self.padding_idx))) - self.start
        return place if 0 <= place < len(self.weight) else None

    @torch.no_grad()
    def _zero_padding(self) -> None:
        if (place := self.own_padding) is not None:
            self.weight[place].zero_()

    def forward(self, ids: Tensor) -> Tensor:
        check_integers(ids)
        flat, problem = ids.reshape(-1), ""
        try:
            check_range(flat, self.num_embeddings)
        except IndexError as error:
            problem = str(error)  # raised once all processes know of it
        wrong = int(flat.max() if int(flat.max()) >= self.num_embeddings else flat.min()) if problem else 0
        places, back = self.spread.places(flat[:0] if problem else flat).unique(return_inverse=True)  # sorted: by owner
        size = max(self.spread.size, 1)
        counts = torch.bincount(places // size, minlength=self.ranks.size)
        header = torch.stack([counts, torch.full_like(counts, bool(problem)), torch.full_like(counts, wrong)], 1)
        if self.ask is not None:
            self.ask(LOOK_UP)
        n = self.ranks.size
        answers = self.ranks.swap(header.cpu(), [1] * n, [1] * n, "looking up rows")
        self._check(answers, problem)
        send, receive = counts.tolist(), answers[:, 0].tolist()
        narrow = torch.int32 if size < 2**31 else torch.int64
        wanted = self.ranks.swap((places % size).to(narrow), send, receive, "sending ids").long()
        rows = Exchange.apply(self._read(wanted), receive, send, self.ranks)
        return rows.index_select(0, back).view(*ids.shape, self.embedding_dim)

    def _check(self, answers: Tensor, problem: str) -> None:
        """The same error everywhere, which says whose it is."""
        if not bool(answers[:, 1].any()):
            return
        rank = int(answers[:, 1].nonzero()[0, 0])
        if not problem or rank != self.ranks.rank:
            try:
                check_range(answers[rank, 2], self.num_embeddings)
            except IndexError as error:
                problem = str(error)
        raise IndexError(f"rank {rank}: {problem}")

    def _read(self, places: Tensor) -> Tensor:
        if self.pending is not None:
            return ReadPending.apply(places, self.weight, self.own_padding, self.pending)
        return F.embedding(places, self.weight, self.own_padding, sparse=self.sparse)

    def groups(self, ids: Tensor, most_distinct: float = 1.0) -> Groups | None:
        return None  # forward sends each row once

    def whole(self) -> Tensor:
        return self(torch.arange(self.num_embeddings, device=self.weight.device))

    def own(self, values: Tensor) -> Tensor:
        return values[self.spread.ids(self.ranks.rank).to(values.device)]

    def own_entries(self, free: FreeEntries) -> FreeEntries:
        objects = torch.arange(free.shape[0]).repeat_interleave(free.starts.diff())
        places = self.spread.places(objects) - self.start
        here = (places >= 0) & (places < len(self.weight))
        return FreeEntries(places[here], free.columns[here], (len(self.weight), free.shape[1]))

    def summed(self, values: Tensor) -> Tensor:
        return self.ranks.sum(values)

    def agreed(self, number: float) -> float:
        return float(self.ranks.from_first({"number": number})["number"])

    def nth_largest(self, values: Tensor, n: int) -> float:
        bits = values.view(BITS[values.dtype])
        return float(bits.new_tensor(self._nth_bits(bits, n)).view(values.dtype))

    def _nth_bits(self, bits: Tensor, n: int) -> int:
        """By bisection: at least n numbers are ≥ low, fewer than n are > high."""
        low, high = (
            0,
            int(torch.tensor(torch.inf, dtype={kind: own for own, kind in BITS.items()}[bits.dtype]).view(bits.dtype)),
        )
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if int(self.summed((bits >= middle).sum())) >= n else (low, middle - 1)
        return low

    def largest(self, values: Tensor, n: int, numbers: Numbers) -> Tensor:
        bits = values.view(BITS[values.dtype])
        low = self._nth_bits(bits, n)
        mask = bits > low
        equal = (bits == low).nonzero()[:, 0]
        left = n - int(self.summed(mask.sum()))
        mask[equal[self._first(numbers(equal), left)]] = True
        return mask

    def _first(self, numbers: Tensor, n: int) -> Tensor:
        """True at the n smallest of these different numbers, of all processes together; by bisection as well."""
        low, high = -1, LARGEST
        if int(self.summed(torch.tensor(len(numbers)))) <= n:
            low = high
        while low < high:  # at most n numbers are ≤ low, more than n are ≤ high
            middle = (low + high + 1) // 2
            low, high = (middle, high) if int(self.summed((numbers <= middle).sum())) <= n else (low, middle - 1)
        return numbers <= low

    def ids_at(self, places: Tensor) -> Tensor:
        return self.spread.ids_at(places + self.start)

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
        found: Tensor = SharedLogTotal.apply(states, self.current, bias, self.ranks, self.spread, fixed)
        return found

    def check_agreement(self, rates: dict[str, float]) -> None:
        self.ranks.check_same(rates, STEP_ALIKE)

    def new_normal(self, n: int) -> Tensor:
        """Each process draws an equal part, if that is by blocks; else rank 0 draws all, as one process does."""
        rank, size, V = self.ranks.rank, self.ranks.size, self.num_embeddings
        self.ranks.check_same({"the number of new objects": n}, "add equally many on every rank")
        if self.noise is None:
            return super().new_normal(n if self.ranks.first else 0)
        first, stop = V + n * rank // size, V + n * (rank + 1) // size
        return self.noise.normal(first, stop, self.embedding_dim, self.weight.dtype)

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
        gc.collect()  # those that nobody uses are gone everywhere
        alive = [own() for own in self.optimizers]
        found = [optimizer for optimizer in alive if isinstance(optimizer, ProximalOptimizer)]
        self.ranks.check_same({"the number of optimizers of this table": len(found)}, "make them alike on every rank")
        for prox in [optimizer.group_of(self.weight)["prox"] for optimizer in found]:
            if isinstance(prox, NonNegativeL1 | L1) and prox.free is not None:
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

    def reset_to(self, weight: Tensor) -> None:
        padding, self.padding_idx = self.padding_idx, None
        super().reset_to(weight)
        self.padding_idx = padding
        self._zero_padding()

    def __getstate__(self) -> State:
        return {**super().__getstate__(), "optimizers": []}  # copies have none

    def __setstate__(self, state: State) -> None:
        super().__setstate__(state)
        self._share()
