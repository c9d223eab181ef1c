"""The fused engine: matrix factorization with Yogi on the CPU, many batches in one compiled pass (recommend/fused_kernel.py).

It takes over the tensors of a model and its optimizer: their values move into rows that hold everything of one object, and the
parameters become views of those rows. Evaluation, checkpoints and export work as with the torch engine, and see the same.
"""

import time
from collections import deque
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from antembed.baselines.low_rank import LowRankEmbedding, NonnegativeLowRank
from antembed.layer.anchor import AnchoredTable, AnchorEmbedding
from antembed.layer.full import FullEmbedding
from antembed.layer.optim.lazy import SMALLEST_SCALE, fading_powers
from antembed.layer.optim.prox import FreeEntries, NonNegativeL1, shrinks_linearly
from antembed.layer.optim.proximal_optimizer import ProximalOptimizer
from antembed.layer.optim.rules import ProximalYogi
from antembed.native.threads import parallel_for, run_workers, usable_cpus
from antembed.native.vector import CANCELLED, barrier_counter
from antembed.recommend import fused_kernel as kernel
from antembed.recommend.model import MatrixFactorization
from antembed.train.engine import set_rates
from antembed.train.examples import Examples, chunk_size
from antembed.train.task import Schedule, Source

NO_INTS = np.empty(0, np.int64)
HOLD = 32  # chunks, at most
KNOWN: tuple[type, ...] = (AnchorEmbedding, LowRankEmbedding, NonnegativeLowRank, FullEmbedding)


def unsupported_reason(model: nn.Module, optimizer: ProximalOptimizer) -> str | None:
    """What keeps this model from the fused engine; None if nothing does."""
    if not isinstance(model, MatrixFactorization):
        return "it is made for matrix factorisation"
    if type(model.users) is not type(model.items) or type(model.users) not in KNOWN:
        return "it knows anchored, low-rank and full tables, users' and items' alike"
    if type(optimizer) is not ProximalYogi or any(group["metric"] != "diagonal" for group in optimizer.param_groups):
        return "it knows Yogi with the diagonal metric"
    if optimizer.max_grad_norm is not None:
        return "it does not clip gradients (max_grad_norm)"
    if any(p.device.type != "cpu" or p.dtype not in (torch.float32, torch.float64) for p in model.parameters()):
        return "it runs on the CPU, in float32 or float64"
    if not all(shrinks_linearly(group["prox"]) for group in optimizer.param_groups):
        return "it knows the non-negative ℓ1 penalty"
    trained = {id(p) for group in optimizer.param_groups for p in group["params"] if p.requires_grad}
    if not all(id(p) in trained for p in model.parameters()):
        return "it trains all of a model's parameters"
    if any(table.padding_idx is not None for table in model.embeddings.values()):
        return "it has no padding row"
    pairs = [table.parameters() for table in (model.users, model.items)]
    pairs += [bias.parameters() for bias in (model.user_bias, model.item_bias) if bias is not None]
    for one, other in (pairs[:2], pairs[2:] or pairs[:2]):
        if any(_settings(optimizer, a) != _settings(optimizer, b) for a, b in zip(one, other, strict=True)):
            return "it has one setting for users and items"
    if len({(*group["betas"], group["eps"]) for group in optimizer.param_groups}) > 1:
        return "it has the same betas and eps for all parameters"
    return None


def _settings(optimizer: ProximalYogi, weight: Tensor) -> tuple[Any, ...]:
    """What must be the same for users and items."""
    group = optimizer.group_of(weight)
    return group["weight_decay"], group["prox"] is None, group["prox"] is not None and group["prox"].scheduled


class _Table:
    """A table with its biases and moments as rows of everything."""

    def __init__(self, weight: Tensor, bias: Tensor | None, optimizer: ProximalYogi):
        V, K = weight.shape
        self.width, self.K = K, kernel.padded(K)
        biased, number = bias is not None, weight.detach().numpy().dtype
        self.head = kernel.head_of(K, biased)
        self.rows = kernel.make_rows(V, kernel.row_length(K, biased, number.itemsize), number)
        prox = optimizer.group_of(weight)["prox"]
        self.free: FreeEntries | None = prox.free if isinstance(prox, NonNegativeL1) else None
        _adopt(optimizer, weight, self.rows, 0, self.K)
        if bias is not None:
            _adopt(optimizer, bias, self.rows, self.head + kernel.LAST, 1)

    def laid_out(self, batch: int) -> kernel.Table:
        """As the kernel wants it, with room to show the other worker a batch."""
        dtype = self.rows.dtype
        inside = (np.arange(self.K) < self.width).astype(dtype)
        starts, columns = (NO_INTS,) * 2 if self.free is None else (self.free.starts.numpy(), self.free.columns.numpy())
        x, bias = np.zeros((2, batch + kernel.VECTOR, self.K), dtype), np.zeros((2, batch), dtype)
        ints, slots = kernel.integers(self.rows), np.empty((2, batch), np.int32)
        return kernel.Table(self.rows, ints, self.width, self.head, inside, starts, columns, slots, x, bias)


def _adopt(optimizer: ProximalYogi, weight: Tensor, rows: np.ndarray, at: int, apart: int) -> None:
    """Move a parameter and its moments into the rows, `apart` numbers from each other, and leave views behind."""
    group = optimizer.group_of(weight)
    if group["table"] is not None:
        group["table"].release()
    state = optimizer.state_of(weight, group)
    starts = range(at, at + 3 * apart, apart)
    views = [torch.from_numpy(rows)[:, start : start + weight.shape[1]] for start in starts]
    for view, tensor in zip(views, (weight.data, state["momentum"], state["second"]), strict=True):
        view.copy_(tensor)
    weight.data, state["momentum"], state["second"] = views


class Pace:
    """Whether one thread alone is faster than two, as on a machine that is busy, or that a host lends to others meanwhile.

    Both ways are timed. The faster one is kept for a chunk before the other is tried again, and for twice as many each time
    that it wins again: a machine that stays as it is costs a chunk in HOLD, and a disturbance is noticed within so many.
    """

    def __init__(self) -> None:
        self.alone, self.kept, self.left = False, 1, 1  # `left`: chunks until the other way is tried
        self.won = False  # which way was faster the last time: alone or not
        self.seconds: dict[bool, deque[float]] = {way: deque(maxlen=2) for way in (True, False)}

    def took(self, alone: bool, seconds: float) -> None:
        """What a batch of the last chunk took; the lesser of two counts, since the first one may wait for the compiler."""
        self.seconds[alone].append(seconds)
        if self.left:
            self.left -= 1
            self.alone = self.won if self.left else not self.won
        else:
            self.alone = min(self.seconds[True]) < min(self.seconds[False])
            self.kept = min(2 * self.kept, HOLD) if self.alone is self.won else 1
            self.won, self.left = self.alone, self.kept


class FusedEngine:
    """Trains a MatrixFactorization in place; see `unsupported_reason`. At most two threads work; one gives the same bytes."""

    def __init__(self, model: nn.Module, optimizer: ProximalOptimizer, threads: int | None = None):
        reason = unsupported_reason(model, optimizer)
        if reason is not None:
            raise ValueError(f"the fused engine cannot train this model: {reason}; use the torch engine")
        assert isinstance(model, MatrixFactorization)
        assert isinstance(optimizer, ProximalYogi)
        self.model, self.optimizer, self._torn, self.pace = model, optimizer, False, Pace()
        self.threads = min(torch.get_num_threads(), usable_cpus()) if threads is None else threads
        biases = [None if table is None else table.rows.weight for table in (model.user_bias, model.item_bias)]
        self.tables = [table.tables[0].weight for table in (model.users, model.items)]
        self.biases = [bias for bias in biases if bias is not None]
        self.users, self.items = (_Table(w, b, optimizer) for w, b in zip(self.tables, biases, strict=True))
        self.anchors = [t.anchors for t in (model.users, model.items) if isinstance(t, AnchoredTable)]
        self.kind = kernel.Model(bool(self.anchors), bool(self.biases))
        group = optimizer.group_of(self.tables[0])
        beta1, beta2 = group["betas"]
        self.rule = kernel.Rule(beta1, beta2, group["eps"], 0.0 if isinstance(group["prox"], NonNegativeL1) else -np.inf)

    def run(self, examples: Source, batch_size: int, first: int, lr: Schedule, l1: Schedule) -> Iterator[tuple[int, float]]:
        """One epoch over shuffled examples, from step `first` on; yields (ratings, their summed loss) as it goes."""
        assert isinstance(examples, Examples)
        if self._torn:
            raise RuntimeError("an epoch broke off in the middle of a batch; make the model and the engine anew, or --resume")
        batch_size = min(batch_size, max(len(examples), 1))
        batches = -(-len(examples) // batch_size)
        strengths = np.array([l1(first + b) for b in range(batches)])
        history = self._history(first, lr, strengths)
        # A penalty that falls faster than momentum fades: settle all rows at the old strength first (layer/optim/lazy.py).
        steep = set((np.flatnonzero(strengths[1:] < self.rule.beta1 * strengths[:-1]) + 1).tolist())
        cuts = sorted({*range(0, batches, chunk_size(batch_size) // batch_size), *steep, batches})
        tables = [table.laid_out(batch_size) for table in (self.users, self.items)]
        # The anchors' gradients are added up with the table that has fewer objects: it has fewer distinct rows a batch.
        dtype, fewer = self.users.rows.dtype, len(self.items.rows) <= len(self.users.rows)
        sums = kernel.Sums(fewer, np.empty((2, self.users.K, self.items.K), dtype), np.empty(2, dtype))
        A, now = self._anchors(), 0
        try:
            for start, stop in pairwise(cuts):
                chunk = self._batches(examples[start * batch_size : stop * batch_size], batch_size)
                losses = np.empty(stop - start)
                self._torn = True
                if start in steep:
                    self._flush(tables, history, start, anew=False)
                self._train(chunk, (*tables, sums), A, history, start, losses)
                self._torn, now = False, stop
                counts = np.full(stop - start, batch_size)
                counts[-1] = len(chunk.ratings) - batch_size * (stop - start - 1)
                yield len(chunk.ratings), float((losses * counts).sum())
        finally:  # also if the rest of the epoch is not asked for
            if not self._torn and now:
                self._flush(tables, history, now, anew=True)
                for inside, p in zip(self._unpadded(A), self._tensors(), strict=True):
                    p[:] = inside
                for weight in (*self.tables, *self.biases, *self.anchors, self.model.bias):
                    self.optimizer.state[weight]["step"] = first + now
                set_rates(self.optimizer, lr(first + now - 1), l1(first + now - 1))

    def _batches(self, columns: tuple[Tensor, ...], size: int) -> kernel.Batches:
        users, items, *values = (column.numpy() for column in columns)
        for name, ids, V in (("user", users, len(self.users.rows)), ("item", items, len(self.items.rows))):
            if not (ids.min() >= 0 and ids.max() < V):  # compiled code would write anywhere
                raise IndexError(f"{name} {ids.min() if ids.min() < 0 else ids.max()} is not one of the {V} {name}s")
        ratings, *weights = (column.astype(self.users.rows.dtype, copy=False) for column in values)
        users, items = (ids.astype(np.int32, copy=False) for ids in (users, items))
        return kernel.Batches(users, items, ratings, weights[0] if weights else ratings[:0], size)

    def _train(
        self, chunk: kernel.Batches, tables: tuple[Any, ...], A: kernel.Anchors, history: kernel.History, now: int, losses: Any
    ) -> None:
        """A chunk of batches, by one or two workers, whatever is faster just now. `tables`: and the sums."""
        started, alone = time.perf_counter(), self.threads < 2 or self.pace.alone
        rest = self.kind, history, self.rule, now, losses
        if alone:
            kernel.train_alone(chunk, *tables, A, *rest)
        else:
            copy, counter = kernel.Anchors(*(p.copy() for p in A)), barrier_counter()

            def work(worker: int) -> None:  # both start from the same anchors; worker 0 changes ours
                kernel.train_table(worker == 0, counter, chunk, *tables, copy if worker else A, *rest)

            def give_up() -> None:
                counter[0] = CANCELLED  # the other one does not wait

            run_workers(work, 2, give_up)
        if self.threads > 1:
            self.pace.took(alone, (time.perf_counter() - started) / len(losses))

    def _history(self, first: int, lr: Schedule, strengths: np.ndarray) -> kernel.History:
        """The epoch's steps, and what they will do to rows that are idle."""
        batches, group = len(strengths), self.optimizer.group_of(self.tables[0])
        rates = [lr(first + b) for b in range(batches)]
        steps = np.array([self.optimizer._scale(first + b + 1, group | {"lr": rate}) for b, rate in enumerate(rates)])
        takes = steps * strengths if group["prox"] is not None and group["prox"].scheduled else 0 * steps
        some = [(weights[:1] or [None])[0] for weights in (self.tables, self.biases, self.anchors, [self.model.bias])]
        decays = [0.0 if w is None else self.optimizer.group_of(w)["weight_decay"] for w in some]
        keeps = [1 - np.array(rates) * decay for decay in decays]
        idle = np.zeros((batches + 1, kernel.IDLE))
        idle[:, [kernel.SCALE, kernel.BIAS_SCALE]] = 1.0
        for keep, drift, scale in ((keeps[0], kernel.DRIFT, kernel.SCALE), (keeps[1], kernel.BIAS_DRIFT, kernel.BIAS_SCALE)):
            idle[1:, scale] = np.cumprod(keep)
            if idle[-1, scale] < SMALLEST_SCALE:
                raise ValueError(
                    f"weight decay leaves {idle[-1, scale]:.0e} of an idle weight over an epoch; "
                    "lower lr·weight_decay, or use the torch engine"
                )
            kernel.future_drift(steps / idle[1:, scale], self.rule.beta1, idle[:, drift])
        idle[1:, kernel.CLOCK] = np.cumsum(takes / idle[1:, kernel.SCALE])
        fading = np.concatenate([[1.0], fading_powers(self.rule.beta1)[::-1], [0.0]])
        return kernel.History(idle, np.stack([steps, takes, *keeps], axis=1), fading)

    def _anchors(self) -> kernel.Anchors:
        """Anchors and the global bias with their moments, padded with zeros."""
        dtype, d = self.users.rows.dtype, kernel.padded(self.model.users.embedding_dim)
        A = kernel.Anchors(*(np.zeros((3, n, w), dtype) for n, w in ((self.users.K, d), (self.items.K, d), (1, kernel.VECTOR))))
        for inside, p in zip(self._unpadded(A), self._tensors(), strict=True):
            inside[:] = p
        return A

    def _unpadded(self, A: kernel.Anchors) -> list[np.ndarray]:
        shapes = [(padded, weight.shape) for padded, weight in zip(A, self.anchors, strict=False)] + [(A.bias, (1, 1))]
        return [padded[part, : shape[0], : shape[1]] for padded, shape in shapes for part in range(3)]

    def _tensors(self) -> list[np.ndarray]:
        found = []
        for weight in (*self.anchors, self.model.bias):
            state = self.optimizer.state_of(weight, self.optimizer.group_of(weight))
            found += [np.atleast_2d(t.numpy()) for t in (weight.detach(), state["momentum"], state["second"])]
        return found

    def _flush(self, tables: list[kernel.Table], history: kernel.History, now: int, anew: bool) -> None:
        """All rows up to date; `anew`: as of step 0 of the next epoch."""
        for table in tables:
            settled = partial(kernel.flush, table, self.kind.biased, history, self.rule, now, anew)
            parallel_for(settled, len(table.rows), table.rows.shape[1], self.threads)
